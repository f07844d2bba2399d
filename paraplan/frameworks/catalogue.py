"""The shipped framework descriptions, by name or alias."""

import difflib
from functools import cache
from pathlib import Path
from typing import Any

from paraplan.documents import read_mapping
from paraplan.errors import InputError
from paraplan.frameworks.spec import FrameworkSpec
from paraplan.records import build

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
        raise InputError(f"{where}: {name!r} found, one of {', '.join(framework_names())} is needed{hint}")
    path = _FOLDER / f"{known[key]}.yaml"
    values = {field: value for field, value in read_mapping(path).items() if field != "aliases"}
    build(FrameworkSpec, {"name": known[key]} | values, str(path))
    return build(FrameworkSpec, {"name": known[key]} | values | (options or {}), where, "framework_options.")
