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


def build(kind: type[Record], values: Mapping[str, Any], where: str = "", prefix: str = "") -> Record:
    """A dataclass of type ``kind`` from ``values``.

    Args:
        kind: The dataclass; nested dataclasses are built from nested mappings.
        values: Field name to value; unknown names are refused with a suggestion.
        where: File, for messages.
        prefix: Sections of the file around these values, each with its dot: ``training.``.

    Raises:
        InputError: unknown key, missing field, wrong type, out of the field's range.
    """
    refuse_unknown(values, [field.name for field in fields(kind)], where, prefix)  # type: ignore[arg-type]
    try:
        return cast(Record, _adapter(cast(Any, kind)).validate_python(dict(values)))
    except ValidationError as error:
        raise first_problem(error, where, prefix) from None


def refuse_unknown(values: Mapping[str, Any], known: Collection[str], where: str = "", prefix: str = "") -> None:
    """Raise :class:`InputError` for the first key that is not ``known``, with the nearest that is."""
    for key in values:
        if key not in known:
            near = did_you_mean(str(key), known)
            hint = near or f"allowed: {', '.join(sorted(known))}"
            raise InputError("unknown key", place=where, field=f"{prefix}{key}", hint=hint)


def did_you_mean(word: str, known: Collection[str]) -> str:
    """A hint at the nearest of the ``known`` words; empty where none is near."""
    close = difflib.get_close_matches(word, list(known), 1, 0.5)
    return f"did you mean {close[0]!r}?" if close else ""


def first_problem(error: ValidationError, where: str = "", prefix: str = "") -> InputError:
    """The first problem of a validation: field, value found, what is allowed."""
    first = error.errors(include_url=False)[0]
    name = ".".join(str(part) for part in first["loc"] if not str(part).startswith("function-"))
    field = f"{prefix}{name}" if name else prefix.removesuffix(".")
    if first["type"] == "missing":
        return InputError.missing("a value is needed", place=where, field=field)
    if first["type"] == "unexpected_keyword_argument":
        return InputError("unknown key", place=where, field=field)
    needed = _NEEDED.get(first["type"])
    if needed is None:
        needed = first["msg"][0].lower() + first["msg"][1:].replace("a valid tuple", "a list")
    else:
        needed = needed.format(**first.get("ctx", {}))
    return InputError(place=where, field=field, found=shown(first["input"]), needed=needed)


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
