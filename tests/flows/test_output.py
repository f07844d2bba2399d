import base64
from pathlib import Path

import pytest

from flows.output import FILES as PLAN_FILES
from flows.output import require_writable, write_files
from paraplan.foundation.errors import InputError

FILES = {"1-tp8-pp1-dp1-mbs1/timeline.svg": "<svg/>", "report.md": "# r\n", "plan.json": "{}\n"}
IMAGES = {"ranking.png": base64.b64encode(b"\x89PNG").decode()}


def test_write_files_puts_every_file_in_its_place(tmp_path: Path) -> None:
    paths = write_files(tmp_path / "new", FILES, IMAGES)
    assert [path.relative_to(tmp_path / "new").as_posix() for path in paths] == [
        "plan.json",
        "ranking.png",
        "report.md",
        "1-tp8-pp1-dp1-mbs1/timeline.svg",
    ]
    assert (tmp_path / "new" / "ranking.png").read_bytes() == b"\x89PNG"
    assert (tmp_path / "new" / "plan.json").read_text() == "{}\n"


def test_write_files_removes_plans_of_an_earlier_answer_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "2-tp4-pp1-dp2-mbs1").mkdir()
    (tmp_path / "2-tp4-pp1-dp2-mbs1" / "timeline.svg").write_text("old")
    (tmp_path / "notes").mkdir()
    write_files(tmp_path, FILES, IMAGES)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["1-tp8-pp1-dp1-mbs1", "notes"]


def test_write_files_does_not_touch_files_that_are_right(tmp_path: Path) -> None:
    write_files(tmp_path, FILES, IMAGES)
    before = {path: path.stat().st_ino for path in tmp_path.rglob("*") if path.is_file()}
    write_files(tmp_path, FILES, IMAGES)
    assert {path: path.stat().st_ino for path in tmp_path.rglob("*") if path.is_file()} == before


def test_write_files_mends_what_was_altered(tmp_path: Path) -> None:
    write_files(tmp_path, FILES, IMAGES)
    (tmp_path / "report.md").write_text("half")
    write_files(tmp_path, FILES, IMAGES)
    assert (tmp_path / "report.md").read_text() == "# r\n"


def test_folder_that_can_be_written_is_left_as_it_was(tmp_path: Path) -> None:
    require_writable(tmp_path / "new" / "plan")
    assert list(tmp_path.iterdir()) == []
    write_files(tmp_path / "plan", FILES, IMAGES)
    require_writable(tmp_path / "plan")
    assert len(list((tmp_path / "plan").iterdir())) == len([*FILES, *IMAGES])


def test_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"file/plan: a file stands in the way, a folder is needed$"):
        require_writable(tmp_path / "file" / "plan")
    for name in PLAN_FILES:
        (tmp_path / name / name).mkdir(parents=True)
        with pytest.raises(InputError, match=rf"{name}: is a folder, a file is to be written there$"):
            require_writable(tmp_path / name)
