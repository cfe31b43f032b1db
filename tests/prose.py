"""Lists words and sentences that a cold reader stumbles over: `python -m tests.prose FILES...`.

Without files, those that differ from where this branch left main. It reads Markdown, notebooks' text, and Python's docstrings,
comments and names, without code and quotations. It is a help for reviewers: a word may stand where no other says it better.
"""

import ast
import io
import json
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

LONGEST = 30
"""Words of a sentence."""
WORDS = {
    r"whoever|nobody|somebody|everybody": "a thing is no person: name it",
    r"(?:protocols?|runs?|gradients?|files?|modes?|notebooks?),? who": "that, or which",
    r"beside": "next to, besides, with or compared with",
    r"foretells?|foretold": "predict",
    r"mend(?:s|ed|ing)?": "fix",
    r"hangs? on": "depend on",
    r"(?:held|holds?) against": "compare with",
    r"tells? (?:of|apart)|told|say of|said of": "report, state or describe",
    r"sooner|soonest": "faster, fastest",
    r"less (?:the|a|sync|frozen)\b(?! \w+ than)": "minus",
    r"times as (?:many|much|fast)": "3x as ... or 3x faster, in digits",
    r"planted": "synthetic",
    r"one batch after another": "sequential",
    r"so it is|be it": "name what it is",
}
NAMES = r"told|asked|given|held|goes|lasting|settled|apart|beside|here|way|kept|lent|said|drawn"
"""Participles, adverbs and pronouns, which are no names of functions and classes."""


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """The prose of a file, paragraph by paragraph, each with its line."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        tree = ast.parse(source)
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                yield from _paragraphs(node.value.value, node.lineno)
            named = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            if named and re.fullmatch(NAMES, node.name.lower()):
                yield node.lineno, f"the name {node.name} is told without a noun"
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string.lstrip("# ")
    elif path.suffix == ".ipynb":
        for number, cell in enumerate(json.loads(source)["cells"], 1):
            if cell["cell_type"] == "markdown":
                yield from ((number, text) for _, text in _paragraphs("".join(cell["source"]), 1))
    elif path.suffix == ".md":
        yield from _paragraphs(re.sub(r"^    .*$", "", source, flags=re.MULTILINE), 1)


def _paragraphs(text: str, line: int) -> Iterator[tuple[int, str]]:
    """Paragraphs, list items, headings and rows of tables, without code and quotations."""
    text = re.sub(r"^```.*?^```$", lambda code: "\n" * code[0].count("\n"), text, flags=re.MULTILINE | re.DOTALL)
    start, lines = line, []
    for number, each in enumerate([*text.splitlines(), ""], line):
        begins = re.match(r"\s*([-*|#]|\d+\.) ?", each) or not each.strip()
        if begins and lines:
            yield start, re.sub(r'`[^`]*`|"[^"]*"|“[^”]*”', "x", " ".join(lines))
            lines = []
        if each.strip():
            start, lines = (start if lines else number), [*lines, each.strip()]


def findings(path: Path) -> Iterator[str]:
    """A line for each word and each long sentence."""
    for line, text in texts(path):
        for pattern, better in WORDS.items():
            for found in re.findall(rf"\b(?:{pattern})\b", text, re.IGNORECASE):
                yield f"{path}:{line}: {found!r}: {better}"
        for sentence in re.split(r"(?<=[.!?:;])\s|\s\|\s", text):
            if (count := len(sentence.split())) > LONGEST:
                yield f"{path}:{line}: {count} words: {sentence[:60]} ..."


def changed() -> list[Path]:
    """The files that differ from where this branch left main, or from the last commit on main itself."""
    git = ["git", "diff", "--name-only", "--diff-filter=d", "--relative", "--merge-base", "main"]
    return [Path(name) for name in subprocess.run(git, capture_output=True, text=True, check=True).stdout.split()]


if __name__ == "__main__":
    for each in map(Path, sys.argv[1:]) if sys.argv[1:] else changed():
        for finding in findings(each):
            print(finding)
