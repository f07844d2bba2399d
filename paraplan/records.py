"""From plain mappings to the frozen dataclasses of the package, checked by pydantic, errors as one line."""

import difflib
import math
from collections.abc import Collection, Mapping
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from paraplan.errors import InputError

Record = TypeVar("Record")

LARGEST = 2**31 - 1
"""Of any width or count of a model or a batch: a product of two still fits the 64 bits of a column."""


def build(kind: type[Record], values: Mapping[str, Any], where: str, prefix: str = "") -> Record:
    """A dataclass of type ``kind`` from ``values``.

    Args:
        kind: The dataclass; nested dataclasses are built from nested mappings.
        values: Field name to value; unknown names are refused with a suggestion.
        where: File, for messages.
        prefix: Where in the file, e.g. ``training.``.

    Raises:
        InputError: unknown key, missing field, wrong type.
    """
    refuse_unknown(values, [field.name for field in fields(kind)], where, prefix)  # type: ignore[arg-type]
    try:
        return cast(Record, _adapter(cast(Any, kind)).validate_python(dict(values)))
    except ValidationError as error:
        raise InputError(f"{where}: {one_line(error, prefix)}") from None


def refuse_unknown(values: Mapping[str, Any], known: Collection[str], where: str, prefix: str = "") -> None:
    """Raise :class:`InputError` for the first key that is not ``known``, with the nearest that is."""
    for key in values:
        if key not in known:
            close = difflib.get_close_matches(str(key), list(known), 1, 0.5)
            hint = f"; did you mean {close[0]!r}?" if close else f"; allowed: {', '.join(sorted(known))}"
            raise InputError(f"{where}: {prefix}{key}: unknown key{hint}")


def one_line(error: ValidationError, prefix: str = "") -> str:
    """The first problem of a validation: field, value found, what is allowed."""
    first = error.errors(include_url=False)[0]
    name = ".".join(str(part) for part in first["loc"] if not str(part).startswith("function-"))
    message = first["msg"][0].lower() + first["msg"][1:].replace("a valid tuple", "a list")
    if first["type"] == "dataclass_type":
        message = "a mapping is needed"
    if first["type"] == "too_short":
        message = f"at least {first['ctx']['min_length']} entry is needed"
    if first["type"] == "missing":
        return f"{prefix}{name}: missing, a value is needed"
    return f"{prefix}{name}: {shortened(first['input'])} found, {message}"


def shortened(value: object) -> str:
    """A value as it is shown in a message."""
    try:
        text = repr(value)
    except ValueError:
        # Python writes no number of thousands of digits.
        return "a number of thousands of digits"
    return text if len(text) < 60 else text[:57] + "..."


def finite(value: object) -> bool:
    """Whether a number is neither infinite nor NaN, nor too large for a float; true for what is no number."""
    try:
        return not isinstance(value, (int, float)) or math.isfinite(value)
    except OverflowError:
        return False


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
