"""Imports point one way: deployments → flows → tasks → paraplan."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def imported(path: Path) -> set[str]:
    """Top-level names of all imports in a file, wherever they stand in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize(
    ("folder", "forbidden"),
    [("paraplan", {"prefect", "tasks", "flows", "deployments"}), ("tasks", {"flows", "deployments"})],
)
def test_no_module_imports_what_stands_above_it(folder: str, forbidden: set[str]) -> None:
    paths = sorted((ROOT / folder).rglob("*.py"))
    assert paths
    assert {str(path): imported(path) & forbidden for path in paths if imported(path) & forbidden} == {}


def test_library_loads_without_prefect_when_all_of_it_is_imported() -> None:
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in sorted((ROOT / "paraplan").rglob("*.py"))
    ]
    program = (
        f"import importlib, sys\nfor m in {modules!r}: importlib.import_module(m)\nassert 'prefect' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
