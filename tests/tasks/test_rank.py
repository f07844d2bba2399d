"""The final order: one prediction, recalibrated once, whose parts of time and memory add up."""

import numpy as np
import pytest

from paraplan.balance import BalanceSpec
from paraplan.question.clusters import load_device, make_cluster
from paraplan.question.frameworks import load_framework
from paraplan.question.layouts import Layouts
from paraplan.question.models import load_model
from paraplan.question.problem import Problem
from paraplan.question.training import TrainingSpec
from paraplan.search import SearchSpec, enumerate_space, ranked_step_times
from tasks.balance import balance_pipeline
from tasks.rank import rank_plans
from tasks.report import candidates_csv
from tasks.select import select
from tasks.simulate import simulate_pipeline
from tasks.tables import pack, pack_layouts

PROBLEM = Problem(
    load_model("llama3-8b"), make_cluster(load_device("h100"), 8), TrainingSpec(4096, 16), load_framework("megatron")
)
ASKED = {"tp": (2,), "cp": (1,), "pp": (4,), "vpp": (1,), "mbs": (1,), "sp": (1,), "recompute": (0,)}


def chosen(layouts: Layouts, search: SearchSpec) -> dict:  # type: ignore[type-arg]
    seconds = pack({"step_time": ranked_step_times(PROBLEM, search, layouts)})
    return select.fn(PROBLEM, search, pack_layouts(layouts), seconds, 1)["selected"][0]


def test_plan_is_recalibrated_once_and_its_parts_add_up() -> None:
    layouts = enumerate_space(PROBLEM, SearchSpec(ASKED)).layouts.take(np.array([0]))
    scaled = SearchSpec(ASKED, recalibration={"COMPUTE": 2.0, "MP_COMM": 3.0, "BUBBLE": 0.5})
    plain = chosen(layouts, SearchSpec(ASKED))
    name, layout = plain["name"], plain["layout"]
    pipeline = balance_pipeline.fn(name, PROBLEM, layout, BalanceSpec(time_limit_s=5))["pipeline"]
    played = {"pipeline": pipeline, **simulate_pipeline.fn(name, PROBLEM, layout, pipeline)}
    before = rank_plans.fn(PROBLEM, SearchSpec(ASKED), [{**plain, **played}])["plans"][0]
    after = rank_plans.fn(PROBLEM, scaled, [{**chosen(layouts, scaled), **played}])["plans"][0]
    assert before["step_time_s"] == pytest.approx(played["makespan"] + played["outside"])
    factors = {"compute": 2.0, "tp_comm": 3.0, "bubble": 0.5, "imbalance": 0.5}
    expected = {part: seconds * factors.get(part, 1.0) for part, seconds in before["time_s"].items()}
    assert after["time_s"] == pytest.approx(expected)
    assert after["step_time_s"] == pytest.approx(sum(expected.values()))
    assert after["estimated_step_time_s"] == pytest.approx(float(ranked_step_times(PROBLEM, scaled, layouts)[0]))
    for plan in (before, after):
        assert sum(plan["memory_gib"].values()) == pytest.approx(plan["peak_memory_gib"])


def test_candidates_are_written_in_words() -> None:
    layouts = enumerate_space(PROBLEM, SearchSpec(ASKED)).layouts.take(np.array([0]))
    table, count = candidates_csv(
        PROBLEM, pack_layouts(layouts), pack({"peak": np.ones(1)}), pack({"step_time": np.ones(1)})
    )
    header, row = (line.split(",") for line in table.splitlines())
    found = dict(zip(header, row, strict=True))
    assert (found["recompute"], found["schedule"], found["cp_kind"], count) == ("none", "1f1b", "ring", 1)
