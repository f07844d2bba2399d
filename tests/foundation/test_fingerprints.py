from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
import pytest

from paraplan.foundation.fingerprints import digest


@dataclass(frozen=True)
class Device:
    name: str
    flops: object = field(default_factory=dict)


@dataclass(frozen=True)
class Card:
    name: str
    flops: object = field(default_factory=dict)


def test_digest_does_not_depend_on_the_order_of_keys_or_the_kind_of_sequence() -> None:
    assert digest({"a": (1, 2), "b": 2.5}) == digest(MappingProxyType({"b": 2.5, "a": [1, 2]}))
    assert digest({"x", "y", "z"}) == digest({"z", "x", "y"})


@pytest.mark.parametrize("other", [{"a": 2}, {"b": 1}, {"a": "1"}, {"a": None}, {"a": [1]}, {}])
def test_digest_differs_when_the_content_does(other: object) -> None:
    assert digest({"a": 1}) != digest(other)


def test_digest_sees_into_records_and_their_type() -> None:
    assert digest(Device("h100", {"bf16": 1e15})) == digest(Device("h100", {"bf16": 1e15}))
    assert digest(Device("h100", {"bf16": 1e15})) != digest(Device("h100", {"bf16": 2e15}))
    assert digest(Device("h100")) != digest(Card("h100"))


def test_digest_sees_values_type_and_shape_of_arrays() -> None:
    array = np.arange(6)
    assert digest(array) == digest(np.arange(6))
    assert len({digest(array), digest(array.reshape(2, 3)), digest(array.astype(float)), digest(array + 1)}) == 4


def test_digest_refuses_what_it_cannot_see_into() -> None:
    with pytest.raises(TypeError, match="no fingerprint for a object"):
        digest({"a": object()})
