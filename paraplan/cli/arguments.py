"""What several commands read from their arguments."""

import argparse
import math
import re
from typing import Any

from paraplan.foundation.errors import InputError
from paraplan.question.layouts import COLUMNS
from paraplan.question.search_spec import ALIASES, NAMES

_UNITS = {
    "": 1.0,
    "B": 1.0,
    "KB": 1e3,
    "MB": 1e6,
    "GB": 1e9,
    "TB": 1e12,
    "KIB": 2.0**10,
    "MIB": 2.0**20,
    "GIB": 2.0**30,
    "TIB": 2.0**40,
}


def size(text: str, option: str) -> float:
    """Bytes from ``4GB``, ``59.5 GiB`` or ``56000MB``.

    Raises:
        InputError: no number, no unit, or an unknown one.
    """
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+(?:[eE][+-]?\d+)?)\s*([a-zA-Z]+)\s*", text)
    if match is None or match[2].upper() not in _UNITS:
        raise InputError(f"{option}: {text!r} found, a size with its unit such as 4GB or 60GiB is needed")
    found = float(match[1]) * _UNITS[match[2].upper()]
    if not 0 < found < math.inf:
        raise InputError(f"{option}: {text!r} found, more than 0 is needed")
    return found


def settings(pairs: list[str], option: str = "--set") -> dict[str, int]:
    """Dimension to value from ``tp=8``, ``tp=8,pp=4`` or, as layouts are printed, ``tp=8 pp=4``.

    Raises:
        InputError: an unknown dimension or a value that is not one.
    """
    from paraplan.question.plan_config import dimension_values

    found: dict[str, int] = {}
    for pair in [part for given in pairs for part in _BETWEEN.split(given.strip()) if part]:
        name, separator, value = pair.partition("=")
        key = name.strip().lower()
        key = ALIASES.get(key, key)
        if not separator or key not in COLUMNS:
            raise InputError(f"{option}: {pair!r} found, DIMENSION=VALUE with one of {', '.join(COLUMNS)} is needed")
        text = value.strip()
        given: Any = text
        if key not in NAMES:
            given = int(text) if re.fullmatch(r"[+-]?\d{1,18}", text) else _TRUTHS.get(text.lower(), text)
        values = dimension_values(given, key, f"{option} {key}") if text else None
        if values is None:
            raise InputError(f"{option}: {pair!r} found, a value is needed")
        found[key] = values[0]
    if pairs and not found:
        raise InputError(f"{option}: {' '.join(pairs)!r} found, DIMENSION=VALUE is needed, e.g. tp=8")
    return found


_BETWEEN = re.compile(r"\s*,\s*|(?<![=\s])\s+(?![=\s])")
"""Commas, or blanks that do not belong to a sign of equality."""

_TRUTHS = {"true": True, "false": False, "yes": True, "no": False, "on": True, "off": False}


def filled(text: str) -> str:
    """A text that says something."""
    if not text.strip():
        raise argparse.ArgumentTypeError(f"{text!r} found, a value is needed")
    return text


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> Any:
        raise InputError(f"{self.prog}: {message}; see {self.prog} --help")


def positive(text: str) -> int:
    """A whole number of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} found, at least 1 is needed")
    return value
