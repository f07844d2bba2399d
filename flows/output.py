"""The folder of one plan: every file written whole, ``plan.json`` last, nothing left of an earlier answer."""

import base64
import contextlib
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from paraplan.foundation.documents import make_folder, write_whole
from paraplan.foundation.errors import InputError

FILES = ("plan.json", "candidates.csv", "ranking.png", "report.md")
"""What every plan puts into its folder, beside a folder for each ranked layout."""

PLAN_FOLDER = re.compile(r"\d+-tp\d+\S*")
"""Folders named by :func:`paraplan.plan.document.layout_name` with the rank in front."""


def require_writable(folder: Path) -> None:
    """Check, before anything is computed, that a folder can be made and takes files; nothing of the check is left.

    Raises:
        InputError: it cannot, or a folder stands where a file of the plan goes.
    """
    try:
        missing = [path for path in (folder, *folder.parents) if not path.exists()]
        try:
            make_folder(folder)
            with tempfile.TemporaryFile(dir=folder):
                pass
        finally:
            for made in missing:
                with contextlib.suppress(OSError):
                    made.rmdir()
    except OSError as error:
        raise InputError(f"{folder}: cannot be written ({error.strerror or error})") from None
    for name in FILES:
        if (folder / name).is_dir():
            raise InputError(f"{folder / name}: is a folder, a file is to be written there")


def write_files(folder: Path, files: Mapping[str, str], images: Mapping[str, str]) -> list[Path]:
    """Put the files of a plan into its folder.

    A reader that finds ``plan.json`` with a fingerprint may rely on every other file being of the same answer, so it
    goes before the first change and comes back last.

    Args:
        folder: Made if missing.
        files: Path in the folder to text.
        images: Path in the folder to base64.

    Returns:
        The paths, in the order a person reads them.
    """
    unchanged = all(_same(folder / name, text.encode()) for name, text in files.items())
    unchanged = unchanged and all(_same(folder / name, base64.b64decode(data)) for name, data in images.items())
    if not unchanged:
        (folder / "plan.json").unlink(missing_ok=True)
        for name, data in images.items():
            write_whole(folder / name, base64.b64decode(data))
        for name, text in sorted(files.items(), key=lambda item: item[0] == "plan.json"):
            write_whole(folder / name, text)
    wanted = {Path(name).parts[0] for name in files}
    for old in folder.iterdir():
        if old.is_dir() and old.name not in wanted and PLAN_FOLDER.fullmatch(old.name):
            shutil.rmtree(old)
    names = sorted([*files, *images], key=lambda name: ("/" in name, name))
    return [folder / name for name in names]


def _same(path: Path, content: bytes) -> bool:
    try:
        return path.read_bytes() == content
    except OSError:
        return False
