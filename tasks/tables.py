"""Columns of numbers as JSON text: exact, small, and the same bytes for the same numbers."""

import base64
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from paraplan.question.layouts import COLUMNS, Layouts

WHOLE = (np.int8, np.int16, np.int32, np.int64)


def pack(columns: Mapping[str, npt.NDArray[Any]]) -> dict[str, list[str]]:
    """Each column as its type and its compressed bytes; whole numbers take the smallest type that holds them."""
    packed = {}
    for name, column in columns.items():
        data = np.ascontiguousarray(column)
        if data.dtype.kind == "i" and len(data):
            data = data.astype(next(kind for kind in WHOLE if _holds(kind, int(data.min()), int(data.max()))))
        text = base64.b64encode(zlib.compress(data.astype(data.dtype.newbyteorder("<")).tobytes(), 1)).decode()
        packed[name] = [data.dtype.newbyteorder("<").str, text]
    return packed


def unpack(packed: Mapping[str, list[str]]) -> dict[str, npt.NDArray[Any]]:
    """The columns again; whole numbers come back as int64."""
    columns = {}
    for name, (kind, text) in packed.items():
        data = np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype=np.dtype(kind))
        columns[name] = data.astype(np.int64 if data.dtype.kind == "i" else data.dtype.newbyteorder("="))
    return columns


def pack_layouts(layouts: Layouts) -> dict[str, list[str]]:
    """A candidate table as JSON text."""
    return pack({name: getattr(layouts, name) for name in COLUMNS})


def unpack_layouts(packed: Mapping[str, list[str]]) -> Layouts:
    """The candidate table again."""
    return Layouts(**unpack(packed))


def _holds(kind: type[np.signedinteger[Any]], smallest: int, largest: int) -> bool:
    return bool(np.iinfo(kind).min <= smallest and largest <= np.iinfo(kind).max)
