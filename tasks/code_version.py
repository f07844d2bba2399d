"""Which code computed a result: a digest of the modules a step uses, as Python reads them.

Comments, layout and docstrings do not count. Every module of the project that the named ones import does, and so do
the tables beside them (catalogues in folders of their own reach a step as values) and the versions of the packages
whose numbers end up in a plan.
"""

import ast
import hashlib
import importlib.metadata
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from paraplan.foundation.syntax import parse

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("paraplan", "tasks")
LIBRARIES = ("highspy", "numpy", "pulp")
DATA = (".json", ".yaml")


@cache
def digest(modules: tuple[str, ...]) -> str:
    """Twenty hex digits for ``modules`` (dotted names) and everything of the project that they import."""
    parts = [f"{name} {importlib.metadata.version(name)}" for name in LIBRARIES]
    reached = closure(modules)
    parts += [f"{name} {_code_of(_file(name))}" for name in reached]
    folders = {_file(name).parent for name in reached}
    for path in sorted(path for folder in folders for path in folder.glob("*") if path.suffix in DATA):
        parts.append(f"{path.relative_to(ROOT)} {hashlib.sha256(path.read_bytes()).hexdigest()}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:20]


def closure(modules: Iterable[str]) -> list[str]:
    """The named modules, their packages and all they import, of this project, sorted."""
    waiting, seen = list(modules), set[str]()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        if not _file(name).exists():
            continue  # ``from package import name``: the name was not a module
        seen.add(name)
        if "." in name:
            waiting.append(name.rpartition(".")[0])
        waiting += _imports(_file(name))
    return sorted(seen)


def _file(module: str) -> Path:
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@cache
def _tree(path: Path) -> ast.Module:
    return parse(path.read_text(encoding="utf-8"), "exec")


@cache
def _imports(path: Path) -> tuple[str, ...]:
    found = []
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return tuple(name for name in found if name.split(".")[0] in PACKAGES)


@cache
def _code_of(path: Path) -> str:
    tree = _tree(path)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            # A docstring is an expression statement; so is the text under a field.
            node.body = [line for line in node.body if not _is_text(line)] or [ast.Pass()]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
