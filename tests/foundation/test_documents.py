"""What reading a file gives, and what writing one does to what stands in its place."""

import math
import os
import threading
from pathlib import Path

import pytest

from paraplan.foundation.documents import parse, write_whole
from paraplan.foundation.errors import InputError


@pytest.mark.parametrize("where", ["x.json", "x.yaml"])
def test_whole_number_beyond_64_bits_is_read_as_a_float(where: str) -> None:
    # NumPy's columns hold 64 bits, float() stops at 1e308 and int() at 4300 digits; fields refuse such floats by name.
    assert parse(f"[{2**63 - 1}, {-(2**63)}]", where) == [2**63 - 1, -(2**63)]
    beyond = parse(f"[{2**63}, {10**400}, {-(10**400)}, {'9' * 5000}]", where)
    assert [type(value) for value in beyond] == [float] * 4
    assert beyond == [2.0**63, math.inf, -math.inf, math.inf]


def test_yaml_numbers_of_other_bases_are_read_as_before() -> None:
    assert parse("[0x10, 010, 1_000, 1:30]", "x.yaml") == [16, 8, 1000, 90]
    assert parse("0x" + "f" * 300, "x.yaml") == math.inf
    with pytest.raises(InputError, match=r"x\.yaml: YAML syntax"):
        parse("!!int x", "x.yaml")


def test_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    for name in ("there.csv", "new.csv"):
        (tmp_path / name).symlink_to(Path("kept") / name)
    (tmp_path / "kept" / "there.csv").write_text("old")
    for name in ("there.csv", "new.csv"):
        write_whole(tmp_path / name, "text")
        assert (tmp_path / name).is_symlink()
        assert (tmp_path / "kept" / name).read_text() == "text"
    assert len(list(tmp_path.rglob("*"))) == 5


def test_pipe_is_written_to_and_stays(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    write_whole(pipe, "text")
    reader.join(10)
    assert read == ["text"]
    assert pipe.is_fifo()


def test_what_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    with pytest.raises(InputError, match=r"file: a file stands in the way, a folder is needed$"):
        write_whole(tmp_path / "file" / "x.csv", "")
    with pytest.raises(InputError, match=r"cannot be written \(Is a directory\)$"):
        write_whole(tmp_path, "")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    # A node of one's own, for the system's is lost if this test fails as root.
    full = tmp_path / "full"
    try:
        os.mknod(full, 0o20666, os.makedev(1, 7))
        full.open("wb").close()
    except OSError:
        pytest.skip("device nodes cannot be made here")
    with pytest.raises(InputError, match=r"full: cannot be written \(No space left on device\)$"):
        write_whole(full, "text")
    assert full.is_char_device()
