from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks import code_version

SOURCE = '''"""About."""

from paraplan import constants

def double(x: int) -> int:
    """Twice x."""
    return constants.TWO * x
'''


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A small project in place of this one."""
    folder = tmp_path / "paraplan"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "constants.py").write_text("TWO = 2\n")
    (folder / "maths.py").write_text(SOURCE)
    (folder / "unrelated.py").write_text("X = 1\n")
    monkeypatch.setattr(code_version, "ROOT", tmp_path)
    yield folder
    forget()


def forget() -> None:
    for cached in (code_version.digest, code_version._tree, code_version._imports, code_version._code_of):
        cached.cache_clear()


def version() -> str:
    forget()
    return code_version.digest(("paraplan.maths",))


def test_closure_follows_imports_and_packages(project: Path) -> None:
    assert code_version.closure(["paraplan.maths"]) == ["paraplan", "paraplan.constants", "paraplan.maths"]


def test_version_stays_when_only_comments_docstrings_and_layout_change(project: Path) -> None:
    before = version()
    (project / "maths.py").write_text(SOURCE.replace('"""Twice x."""', '"""Two times x."""\n    # Fast.\n'))
    assert version() == before


def test_version_changes_with_a_constant_in_an_imported_module(project: Path) -> None:
    before = version()
    (project / "constants.py").write_text("TWO = 3\n")
    assert version() != before


def test_version_changes_with_a_table_beside_the_code(project: Path) -> None:
    before = version()
    (project / "efficiency.yaml").write_text("matmul: 0.8\n")
    assert version() != before


def test_version_stays_when_an_unrelated_module_changes(project: Path) -> None:
    before = version()
    (project / "unrelated.py").write_text("X = 2\n")
    assert version() == before
