import pytest

from paraplan.plan.document import TIME_PARTS, layout_name, time_parts
from paraplan.question.layouts import RECOMPUTE, SCHEDULES, Layouts


def test_time_parts_add_up_to_makespan_plus_outside() -> None:
    estimated = {"compute": 6.0, "tp_comm": 2.0, "cp_comm": 0.0, "ep_comm": 0.0, "dp_comm": 3.0, "optimizer": 1.0}
    bubble = {"total": 0.25, "ideal": 0.1, "imbalance": 0.05, "communication": 0.04, "recompute": 0.06}
    parts = time_parts(estimated, 10.0, bubble, 0.8)
    # work = 10 / 1.25 = 8 s: compute 6/8 and tensor-parallel comm 2/8 of it; outside 0.8 s: 3/4 and 1/4 of it.
    assert parts["compute"] == pytest.approx(6.0)
    assert parts["tp_comm"] == pytest.approx(2.0)
    assert parts["bubble"] == pytest.approx(0.8)
    assert parts["imbalance"] == pytest.approx(0.4)
    assert parts["pp_comm"] == pytest.approx(0.32)
    assert parts["recompute"] == pytest.approx(0.48)
    assert parts["dp_comm"] == pytest.approx(0.6)
    assert parts["optimizer"] == pytest.approx(0.2)
    assert sum(parts.values()) == pytest.approx(10.8)
    assert tuple(parts) == TIME_PARTS


def test_layout_name_tells_apart_layouts_that_differ_in_one_dimension() -> None:
    base = {
        "dp": 8,
        "tp": 4,
        "cp": 2,
        "ep": 4,
        "etp": 1,
        "pp": 4,
        "vpp": 2,
        "mbs": 1,
        "mb": 8,
        "sp": 1,
        "zero_stage": 1,
    }
    base |= {"op": 16, "recompute": RECOMPUTE.index("full"), "recompute_layers": 2}
    changes = [
        {},
        {"dp": 16},
        {"ep": 1},
        {"etp": 4},
        {"vpp": 1},
        {"mbs": 2},
        {"sp": 0},
        {"zero_stage": 3},
        {"op": 8},
        {"recompute": RECOMPUTE.index("select")},
        {"recompute_layers": -1},
        {"schedule": SCHEDULES.index("zb-v")},
        {"cp_kind": 1},
        {"swap_os": 1},
    ]
    names = {layout_name(Layouts.of([{**base, **change}]).row(0)) for change in changes}
    assert len(names) == len(changes)


def test_layout_name_is_short_when_most_dimensions_are_one() -> None:
    layout = Layouts.of([{"tp": 8, "etp": 8, "pp": 4, "vpp": 5, "dp": 32, "sp": 1, "zero_stage": 1, "op": 32}]).row(0)
    assert layout_name(layout) == "tp8-pp4-vpp5-dp32-mbs1-z1"
