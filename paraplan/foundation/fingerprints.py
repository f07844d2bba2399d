"""Whether two questions are the same: a digest of what records contain, not of how their files are written."""

import hashlib
import json
from collections.abc import Mapping, Set
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np


def digest(value: object) -> str:
    """Twenty hex digits that change exactly when the content of ``value`` changes.

    Records, mappings (in any order), sequences, sets, NumPy arrays and plain values, nested. Names of fields and
    types count, so that a renamed field is a change.
    """
    text = json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def _plain(value: object) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        content = {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
        return {"": type(value).__name__, **content}
    if isinstance(value, np.ndarray):
        data = np.ascontiguousarray(value)
        return ["array", str(data.dtype), list(data.shape), hashlib.sha256(data.tobytes()).hexdigest()]
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Set):
        return ["set", *sorted(json.dumps(_plain(item), sort_keys=True) for item in value)]
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Path):
        return str(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"no fingerprint for a {type(value).__name__}")
