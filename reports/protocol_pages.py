"""A page for every protocol: what it does, its rule, a timeline, how it was measured, its options, and the pages that use it."""

import ast
import inspect
import re
import textwrap
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from lib.options.checked import show_value
from lib.options.registry import field_descriptions
from lib.protocols import ALL
from reports.families import families
from reports.markup import rounded
from reports.palette import colour

APART = 0.05
"""Speeds that differ by less are equal: simulated time is no better than that."""
LOSS = 0.003
"""An AUC that is lower by more is not called the same, however wide its interval: a hundredth of what training gains there."""
ENOUGH = 10
"""Lines of a rule; where a class has fewer, the class that it extends follows."""
CONTRACTS = {f"lib.protocols.{name}rule" for name in ("", "server_", "replica_", "pipeline_")}


def entries(measured: Mapping[str, Mapping[str, list[float]]]) -> list[dict[str, Any]]:
    """Every protocol in the families' order: its name, family, colour, sentence, and where it is fastest without a loss."""
    return [
        {
            "name": name,
            "family": family["family"],
            "colour": colour(name)[0],
            "sentence": ALL.sentence(name),
            "wins": [place for place, row in measured.items() if name in row and _wins(row[name], best(row))],
        }
        for family in families()
        for name in family["members"]
    ]


def best(row: Mapping[str, list[float]]) -> float:
    """The speed of the fastest registered protocol without a loss of AUC."""
    return max((numbers[0] for name, numbers in row.items() if name in ALL and sound(numbers)), default=1.0)


def sound(numbers: list[float]) -> bool:
    """Whether no loss of AUC was measured, and none is large."""
    return numbers[5] >= 0 and numbers[3] >= -LOSS


def _wins(numbers: list[float], fastest: float) -> bool:
    return sound(numbers) and numbers[0] >= (1 - APART) * fastest


def details(name: str, measured: Mapping[str, Mapping[str, list[float]]]) -> dict[str, Any]:
    """What the page of one protocol shows."""
    kind, rule = ALL[name], ALL.make(name)
    module = inspect.getmodule(kind)
    said = re.search(rf"The rule(?: of {name})? in one sentence: (.*?)(?:\n\n|$)", module.__doc__ or "", re.DOTALL)
    link = re.search(r"arXiv:(\d+\.\d+)", kind.cite)
    about = [" ".join(each.split()) for each in inspect.cleandoc(kind.__doc__ or "").split("\n\n")]
    of_module = [each for each in map(ALL.get, ALL) if each.__module__ == kind.__module__]
    if said and (of_module[0] is kind or f" of {name} " in said[0]):
        about.insert(1, f"In one sentence: {' '.join(said[1].split())}")
    texts = dict(field_descriptions(kind))
    return {
        "about": about,
        "cite": kind.cite,
        "link": f"https://arxiv.org/abs/{link[1]}" if link else "",
        "source": f"{kind.__module__.replace('.', '/')}.py",
        "rule": rule_text(kind),
        "options": [
            (each.name, show_value(getattr(rule, each.name)), texts.get(each.name, "")) for each in fields(kind)
        ],
        "rows": [(place, row[name], *words(row[name]), best(row)) for place, row in measured.items() if name in row],
    }


def rule_text(kind: type) -> str:
    """The class's code without its texts; short ones with the classes that they extend, short of the contract's."""
    parts: list[str] = []
    for each in kind.__mro__:
        if each.__module__ in CONTRACTS or "\n".join(parts).count("\n") >= ENOUGH:
            break
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(each))).body
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                node.body = [line for line in node.body if not _is_text(line)] or [ast.Pass()]
        tree.decorator_list = []
        parts.append(ast.unparse(tree))
    return "\n\n".join(parts)


def _is_text(node: ast.AST) -> bool:
    """A docstring, a name, a check of options, or an option, which has a row of its own on the page."""
    if isinstance(node, ast.AnnAssign):
        return "ClassVar" not in ast.unparse(node.annotation) or ast.unparse(node.target) in ("name", "cite")
    if isinstance(node, ast.Assign):
        return "name" in ast.unparse(node.targets[0])
    text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return text or getattr(node, "name", "") == "__post_init__"


def words(numbers: list[float]) -> tuple[str, str, str]:
    """Speed and AUC compared with Sync's, and both in words."""
    speed, _, _, auc, low, high = numbers
    faster = "as fast" if abs(speed - 1) < APART else "faster" if speed > 1 else "slower"
    quality = "lower AUC" if high < 0 else "higher AUC" if low > 0 else "same AUC" if sound(numbers) else "AUC unclear"
    return f"{speed:.2f}×", f"{rounded(auc, 4)} [{rounded(low, 4)}, {rounded(high, 4)}]", f"{faster}, {quality}"
