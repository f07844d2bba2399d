"""The shipped framework descriptions, by name or alias."""

import difflib
import re
from functools import cache
from pathlib import Path
from typing import Any

from paraplan.foundation.documents import read_mapping
from paraplan.foundation.errors import InputError
from paraplan.foundation.records import build, shown
from paraplan.question.frameworks.spec import FrameworkSpec

_FOLDER = Path(__file__).parent


def framework_names() -> list[str]:
    """Names of the shipped descriptions, without aliases."""
    return sorted(path.stem for path in _FOLDER.glob("*.yaml"))


@cache
def _by_name() -> dict[str, str]:
    names = {name: name for name in framework_names()}
    for name in framework_names():
        names |= dict.fromkeys(read_mapping(_FOLDER / f"{name}.yaml").get("aliases", []), name)
    return names


def load_framework(name: str, options: dict[str, Any] | None = None, where: str = "framework") -> FrameworkSpec:
    """A framework's defaults, with a user's ``options`` laid over them.

    Raises:
        InputError: an unknown name (with the known ones) or option.
    """
    known = _by_name()
    key = name.lower().replace("_", "-")
    if key not in known:
        close = difflib.get_close_matches(key, list(known), 1, 0.5)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise InputError(f"{where}: {shown(name)} found, one of {', '.join(framework_names())} is needed{hint}")
    path = _FOLDER / f"{known[key]}.yaml"
    written = read_mapping(path)
    values = {field: value for field, value in written.items() if field not in ("aliases", "until")}
    build(FrameworkSpec, {"name": known[key]} | values, str(path))
    asked = dict(options or {})
    if "release" in asked:
        values |= _of_release(written.get("until", {}), str(asked["release"]), f"{where}_options")
    return build(FrameworkSpec, {"name": known[key]} | values | asked, f"{where}_options")


def _of_release(earlier: dict[str, dict[str, Any]], release: str, where: str) -> dict[str, Any]:
    """What an earlier release did otherwise: of the entries by their last release the first that is not older."""
    if not re.fullmatch(r"\d\d\.\d\d(\.\d+)?", release):
        raise InputError(f"{where}: release: {shown(release)} found, year and month as in '25.11' are needed")
    return next((earlier[last] for last in sorted(earlier) if release[:5] <= last), {})
