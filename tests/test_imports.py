"""Imports point one way: deployments → flows → tasks → paraplan, and downward through the packages of paraplan."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

PACKAGES = (
    "foundation",
    "schedules",
    "simulate",
    "question",
    "operators",
    "memory",
    "time",
    "search",
    "balance",
    "runs",
    "plan",
    "frameworks_io",
    "cli",
)
"""The packages of paraplan from the lowest to the highest, as docs/architecture.md lists them."""


def modules(path: Path) -> set[str]:
    """Full names of what a file imports, wherever the imports stand in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize(
    ("folder", "forbidden"),
    [("paraplan", {"prefect", "tasks", "flows", "deployments"}), ("tasks", {"flows", "deployments"})],
)
def test_no_module_imports_what_stands_above_it(folder: str, forbidden: set[str]) -> None:
    paths = sorted((ROOT / folder).rglob("*.py"))
    assert paths
    wrong = {str(path): {name.split(".")[0] for name in modules(path)} & forbidden for path in paths}
    assert {path: names for path, names in wrong.items() if names} == {}


def test_paraplan_has_no_loose_modules_and_no_unranked_package() -> None:
    entries = {path.name for path in (ROOT / "paraplan").iterdir() if path.name != "__pycache__"}
    assert entries == {"__init__.py", *PACKAGES}


def test_packages_of_paraplan_import_downward_only() -> None:
    rank = {name: i for i, name in enumerate(PACKAGES)}
    upward = []
    for package in PACKAGES:
        for path in (ROOT / "paraplan" / package).rglob("*.py"):
            for name in modules(path):
                parts = name.split(".")
                if parts[0] == "paraplan" and len(parts) > 1 and rank.get(parts[1], -1) > rank[package]:
                    upward.append(f"{path.relative_to(ROOT)} imports {name}")
    assert upward == []


def test_modules_of_paraplan_do_not_import_each_other_in_a_circle() -> None:
    files = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in (ROOT / "paraplan").rglob("*.py")
    }
    needs = {name: {_module_of(full, files) for full in modules(path)} - {None, name} for name, path in files.items()}
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " imports ".join([*trail[trail.index(name) :], name])
        if name not in done:
            for needed in sorted(filter(None, needs[name])):
                visit(needed, (*trail, name))
            done.add(name)

    for name in sorted(files):
        visit(name, ())


def _module_of(name: str, files: dict[str, Path]) -> str | None:
    """The module that an imported name is, or is in; ``None`` for other libraries."""
    return next((known for known in (name, name.rpartition(".")[0]) if known in files), None)


def test_library_loads_without_prefect_when_all_of_it_is_imported() -> None:
    names = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in sorted((ROOT / "paraplan").rglob("*.py"))
        if path.name != "__main__.py"
    ]
    program = (
        f"import importlib, sys\nfor m in {names!r}: importlib.import_module(m)\nassert 'prefect' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
