import math

import pytest

from paraplan.documents import parse
from paraplan.errors import InputError


@pytest.mark.parametrize("where", ["x.json", "x.yaml"])
def test_whole_number_beyond_64_bits_is_read_as_a_float(where: str) -> None:
    # NumPy's columns hold 64 bits, float() stops at 1e308 and int() at 4300 digits; fields refuse such floats by name.
    assert parse(f"[{2**63 - 1}, {-(2**63)}]", where) == [2**63 - 1, -(2**63)]
    beyond = parse(f"[{2**63}, {10**400}, {-(10**400)}, {'9' * 5000}]", where)
    assert [type(value) for value in beyond] == [float] * 4
    assert beyond == [2.0**63, math.inf, -math.inf, math.inf]


def test_yaml_numbers_of_other_bases_are_read_as_before() -> None:
    assert parse("[0x10, 010, 1_000, 1:30]", "x.yaml") == [16, 8, 1000, 90]
    assert parse("0x" + "f" * 300, "x.yaml") == math.inf
    with pytest.raises(InputError, match=r"x\.yaml: YAML syntax"):
        parse("!!int x", "x.yaml")
