import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from paraplan.question.layouts import COLUMNS, Layouts
from tasks.tables import pack, pack_layouts, unpack, unpack_layouts


@given(st.lists(st.integers(-(2**40), 2**40), max_size=20), st.lists(st.floats(allow_nan=False), max_size=20))
def test_packed_columns_come_back_exactly_through_json(whole: list[int], real: list[float]) -> None:
    columns = {"whole": np.array(whole, dtype=np.int64), "real": np.array(real, dtype=np.float64)}
    again = unpack(json.loads(json.dumps(pack(columns))))
    for name, column in columns.items():
        assert again[name].dtype == column.dtype
        np.testing.assert_array_equal(again[name], column)


def test_packed_layouts_come_back() -> None:
    layouts = Layouts.of([{"tp": 8, "dp": 128, "recompute_layers": -1}, {"tp": 4, "dp": 100_000}])
    again = unpack_layouts(pack_layouts(layouts))
    assert [again.row(i) for i in range(2)] == [layouts.row(i) for i in range(2)]
    assert all(getattr(again, name).dtype == np.int64 for name in COLUMNS)
