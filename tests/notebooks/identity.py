"""What code does, whatever its names: for constants that a rule's own commit draws, so that nobody chooses them."""

import ast
import hashlib
import inspect
import subprocess
from pathlib import Path
from types import ModuleType

from lib.results import key

NAMES = ("id", "attr", "arg", "name", "asname", "module")
"""Fields of a syntax tree that hold a name."""


def identity(*modules: ModuleType) -> str:
    """A digest of the modules' code without imports, docstrings, annotations and names."""
    found = hashlib.sha256()
    for module in modules:
        numbers: dict[str, str] = {}
        tree = ast.parse(inspect.getsource(module))
        for node in ast.walk(tree):
            for field in ("body", "orelse", "finalbody"):
                if isinstance(getattr(node, field, None), list):
                    setattr(node, field, [each for each in getattr(node, field) if not _is_said(each)])
            for field in ("annotation", "returns"):
                if hasattr(node, field):
                    setattr(node, field, None)
        for node in ast.walk(tree):
            for field in NAMES:
                if isinstance(name := getattr(node, field, None), str):
                    setattr(node, field, numbers.setdefault(name, str(len(numbers))))
        found.update(key.dump(tree).encode())
    return found.hexdigest()[:12]


def is_a_commit(name: str) -> bool | None:
    """Whether the repository has this commit; None where there is no history."""
    here = Path(__file__).parents[2]
    if not (here / ".git").exists() or (here / ".git" / "shallow").exists():
        return None
    return subprocess.run(["git", "cat-file", "-e", f"{name}^{{commit}}"], check=False, cwd=here).returncode == 0


def _is_said(node: ast.AST) -> bool:
    """Whether it is an import, a docstring, or a field's."""
    text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return text or isinstance(node, ast.Import | ast.ImportFrom)
