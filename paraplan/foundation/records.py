"""From plain mappings to the frozen dataclasses of the package, checked by pydantic, errors as one line."""

import difflib
from collections.abc import Collection, Mapping
from dataclasses import fields
from functools import cache
from typing import Annotated, Any, TypeVar, cast

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError

from paraplan.foundation.errors import InputError

Record = TypeVar("Record")


def _no_switch(value: object) -> object:
    """``true`` is no number, though Python counts with it."""
    if isinstance(value, bool):
        raise PydanticCustomError("float_type", "a number is needed")
    return value


Number = Annotated[float, BeforeValidator(_no_switch), Field(allow_inf_nan=False)]
"""A finite number."""
Amount = Annotated[Number, Field(ge=0)]
Share = Annotated[Number, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0, strict=True)]
"""A whole number, written as one."""

_NEEDED = {
    "greater_than": "more than {gt:,.10g} is needed",
    "greater_than_equal": "at least {ge:,.10g} is needed",
    "less_than": "less than {lt:,.10g} is needed",
    "less_than_equal": "at most {le:,.10g} is needed",
    "finite_number": "a finite number is needed",
    "int_type": "a whole number is needed",
    "float_type": "a number is needed",
    "float_parsing": "a number is needed",
    "dataclass_type": "a mapping is needed",
    "too_short": "at least {min_length} entry is needed",
}
"""What pydantic's kinds of error ask for, in the words of the other errors."""


def build(kind: type[Record], values: Mapping[str, Any], where: str, prefix: str = "") -> Record:
    """A dataclass of type ``kind`` from ``values``.

    Args:
        kind: The dataclass; nested dataclasses are built from nested mappings.
        values: Field name to value; unknown names are refused with a suggestion.
        where: File, for messages.
        prefix: Where in the file, e.g. ``training.``.

    Raises:
        InputError: unknown key, missing field, wrong type, out of the field's range.
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
    if first["type"] == "missing":
        return f"{prefix}{name}: missing, a value is needed"
    if first["type"] == "unexpected_keyword_argument":
        return f"{prefix}{name}: unknown key"
    needed = _NEEDED.get(first["type"])
    if needed is None:
        message = first["msg"][0].lower() + first["msg"][1:].replace("a valid tuple", "a list")
    else:
        message = needed.format(**first.get("ctx", {}))
    return f"{prefix}{name}: {shown(first['input'])} found, {message}"


def shown(value: object) -> str:
    """A value as it is shown in a message."""
    try:
        text = repr(value)
    except ValueError:
        # Python writes no number of thousands of digits.
        return "a number of thousands of digits"
    return text if len(text) < 60 else text[:57] + "..."


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
