"""The space equals exhaustive filtering; rules, expressions, ranking and explanation."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paraplan import time as performance
from paraplan.foundation.errors import InputError, NoAnswerError
from paraplan.question.clusters import load_device, make_cluster
from paraplan.question.constraints import parse_expression
from paraplan.question.frameworks import load_framework
from paraplan.question.layouts import COLUMNS, Layouts
from paraplan.question.models import load_model
from paraplan.question.problem import Problem
from paraplan.question.training import TrainingSpec
from paraplan.search import SearchSpec, enumerate_space, filter_memory, rank, search
from paraplan.search.explain import complete, explain
from paraplan.search.pareto import front
from paraplan.search.ranking import FOLDED
from paraplan.search.rules import rules


def problem_of(
    model: str = "llama3-8b",
    devices: int = 8,
    batch: int = 8,
    sequence: int = 4096,
    device: str = "h100",
    **rest: float,
) -> Problem:
    budget = rest.get("budget")
    return Problem(
        load_model(model),
        make_cluster(load_device(device), devices, None, budget * 2**30 if budget else None),
        TrainingSpec(sequence, batch),
        load_framework("megatron"),
    )


GRID: dict[str, tuple[int, ...]] = {
    "tp": (1, 2, 3, 4),
    "cp": (1, 2),
    "pp": (1, 2, 4, 8),
    "vpp": (1, 2),
    "mbs": (1, 2, 3),
    "ep": (1, 2),
    "etp": (1, 2),
    "sp": (0, 1),
    "zero_stage": (0, 1, 3),
    "recompute": (0, 4),
    "schedule": (0, 1),
}


@pytest.mark.parametrize(
    ("model", "devices", "batch"), [("llama3-8b", 8, 8), ("mixtral-8x7b", 8, 12), ("llama3-8b", 6, 9)]
)
def test_space_equals_exhaustive_filtering(model: str, devices: int, batch: int) -> None:
    problem = problem_of(model, devices, batch)
    spec = SearchSpec(dict(GRID))
    found = {
        tuple(row)
        for row in np.stack([getattr(enumerate_space(problem, spec).layouts, c) for c in COLUMNS], 1).tolist()
    }
    names = list(GRID)
    rows = []
    for values in itertools.product(*GRID.values()):
        row = dict(zip(names, values, strict=True))
        used = row["tp"] * row["cp"] * row["pp"]
        if used > devices:
            continue
        row["dp"] = devices // used
        row["mb"] = max(1, batch // (row["dp"] * row["mbs"]))
        copies = row["dp"] * row["cp"]
        local = np.gcd(copies, max(1, 8 // row["tp"]))
        sharded = {copies} | ({int(local)} if row["zero_stage"] == 3 and local > 1 else set())
        for op in {1} if row["zero_stage"] == 0 else sharded:
            rows.append({**row, "op": op})
    table = Layouts.of(rows)
    columns = {name: getattr(table, name) for name in COLUMNS}
    keep = np.logical_and.reduce([rule.holds(columns) for rule in rules(problem, spec)])
    expected = {tuple(row) for row in np.stack([getattr(table, c)[keep] for c in COLUMNS], 1).tolist()}
    assert found == expected
    assert found


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["llama3-8b", "mixtral-8x7b", "gpt3-175b", "deepseek-v2-lite"]),
    st.sampled_from([1, 2, 6, 8, 24, 48, 768]),
    st.sampled_from([1, 7, 13, 48, 96, 768]),
)
def test_identities_hold_for_every_listed_layout(model: str, devices: int, batch: int) -> None:
    problem = problem_of(model, devices, batch, 2048)
    space = enumerate_space(problem, SearchSpec())
    found = space.layouts
    assert (found.dp * found.tp * found.cp * found.pp == devices).all()
    assert (found.dp * found.mbs * found.mb == batch).all()
    columns = {name: getattr(found, name) for name in COLUMNS}
    for rule in rules(problem, SearchSpec()):
        assert rule.holds(columns).all(), rule.name
    rows = np.stack([getattr(found, name) for name in COLUMNS], axis=1)
    assert len(np.unique(rows, axis=0)) == len(rows)
    if not len(found):
        # Only a batch that the replicas cannot share leaves nothing, and the counts say so.
        assert space.removed["batch over dp and mbs"] > 0


def test_degrees_need_not_be_powers_of_two() -> None:
    found = enumerate_space(problem_of("gpt3-175b", 768, 1536, 2048), SearchSpec()).layouts
    assert {3, 6, 12, 24} <= set(found.pp.tolist())
    assert {3, 6, 12} <= set(found.tp.tolist())


def test_sequence_that_cp_does_not_divide_gives_a_reason() -> None:
    problem = problem_of(sequence=4095)
    explained = explain(problem, SearchSpec(), {"cp": 2}, None)
    assert [rule.name for rule in explained.broken] == ["sequence over cp"]


def without_host(problem: Problem) -> Problem:
    device = replace(problem.cluster.device, host_bandwidth=0.0)
    return replace(problem, cluster=replace(problem.cluster, device=device))


def test_every_rule_can_be_the_reason() -> None:
    dense, sparse = problem_of("llama3-8b", 64, 64), problem_of("mixtral-8x7b", 64, 64)
    # Each layout breaks at least the rule it stands for.
    breaking = [
        (dense, {"dp": 3}, "devices"),
        (dense, {"tp": 3}, "heads over tp"),
        (dense, {"tp": 3}, "kv heads over tp"),
        (dense, {"tp": 3}, "feed-forward over tp"),
        (dense, {"pp": 64, "dp": 1}, "layers over pp"),
        (problem_of(sequence=4095), {"cp": 2}, "sequence over cp"),
        (dense, {"cp": 64, "tp": 1, "cp_kind": 2}, "heads over cp"),
        (dense, {"cp": 1, "cp_kind": 1}, "one kind without cp"),
        (dense, {"ep": 2}, "ep needs experts"),
        (sparse, {"ep": 3}, "experts over ep"),
        (sparse, {"ep": 8, "etp": 3}, "experts over devices"),
        (sparse, {"etp": 3}, "expert width over etp"),
        (dense, {"mb": 3}, "batch over dp and mbs"),
        (dense, {"pp": 32, "vpp": 2}, "layers over chunks"),
        (dense, {"vpp": 2}, "interleaving needs a pipeline"),
        (dense, {"pp": 2, "vpp": 2, "schedule": 0}, "schedule fits vpp"),
        (dense, {"schedule": 3}, "one schedule without pipeline"),
        (dense, {"pp": 4, "vpp": 2, "mbs": 2, "dp": 16, "mb": 2}, "interleaving in groups"),
        (dense, {"pp": 2, "vpp": 2, "schedule": 6, "mb": 2, "dp": 32}, "V schedules fill both ways"),
        (dense, {"pp": 2, "vpp": 2, "schedule": 6}, "schedule of the framework"),
        (dense, {"tp": 1, "sp": 1}, "sp needs tp"),
        (problem_of(sequence=4094, devices=64, batch=64), {"tp": 4, "sp": 1}, "sequence over sp"),
        (sparse, {"tp": 2, "ep": 2, "sp": 0}, "experts need sp"),
        (dense, {"zero_stage": 0, "op": 8}, "optimizer sharding"),
        (problem_of(devices=1), {"zero_stage": 1}, "sharding needs replicas"),
        (dense, {"pp": 2, "zero_stage": 3}, "ZeRO and pipeline"),
        (dense, {"recompute": 0, "recompute_layers": 2}, "recomputed layers"),
        (dense, {"zero_stage": 0, "swap_os": 1}, "swap needs states"),
        (dense, {"swap_act": 1, "recompute": 4}, "activation swap"),
        (without_host(dense), {"swap_act": 1}, "swap needs a host link"),
    ]
    for problem, given_dimensions, name in breaking:
        broken = [rule.name for rule in explain(problem, SearchSpec(), given_dimensions, None).broken]
        assert name in broken, (name, broken)
    covered = {name for _, _, name in breaking}
    for problem in (dense, sparse):
        assert {rule.name for rule in rules(problem, SearchSpec())} - {"even stages"} <= covered


def test_explanation_of_a_legal_layout_names_memory_and_time() -> None:
    problem = problem_of(devices=8, batch=16)
    winner = search(problem, SearchSpec()).ranked
    fitting = explain(problem, SearchSpec(), {"tp": 8}, winner)
    assert any("against the winner" in line for line in fitting.lines)
    assert any(line.startswith("fits: stage") for line in fitting.lines)
    tight = explain(problem_of(devices=8, batch=16, budget=20), SearchSpec(), {"tp": 1}, None)
    assert any("too much; most of it" in line for line in tight.lines)


def test_explanation_and_ranking_are_recalibrated_alike() -> None:
    problem = problem_of(devices=8, batch=16)
    spec = SearchSpec(recalibration={"COMPUTE": 2.0, "DP_COMM": 3.0})
    found = search(problem, spec)
    plain = performance.estimate(problem, found.ranked.layouts)
    expected = plain.step_time_N + plain.components["compute"] + 2 * plain.components["dp_comm"]
    assert found.ranked.step_time_N == pytest.approx(expected)
    assert sum(found.times.components.values()) == pytest.approx(expected)
    own = dict(found.ranked.layouts.row(0))
    lines = explain(problem, spec, own, found.ranked).lines
    assert f"step {expected[0]:.4g} s, recalibrated: COMPUTE × 2, DP_COMM × 3" in lines
    assert any(line.startswith(f"+0.0% against the winner, {expected[0]:.4g} s") for line in lines)
    assert front(problem, spec).step_time_N[0] <= expected[0]
    assert front(problem, spec).step_time_N[0] > plain.step_time_N.max()


def test_nothing_fits_says_by_how_much_and_what_would_help() -> None:
    problem = problem_of("llama3-8b", 8, 16, budget=30)
    spec = SearchSpec({"recompute": (0,), "mbs": (4,), "tp": (1,)})
    told = r"none of [\d,]+ layouts fits 30.00 GiB .* GiB too much.*help: other values of recompute than none, or .*tp"
    with pytest.raises(NoAnswerError, match=told):
        search(problem, spec)
    with pytest.raises(InputError, match="no layout satisfies every rule: 'batch over dp and mbs'"):
        search(problem_of(devices=8, batch=7), SearchSpec({"dp": (8,)}))


@pytest.mark.parametrize(
    ("text", "names", "rows"),
    [
        ("tp * cp <= 8", {"tp", "cp"}, [True, False]),
        ("dp % 16 == 0 and not pp > 4", {"dp", "pp"}, [True, False]),
        ("1 <= mbs < 3 or tp == 1", {"mbs", "tp"}, [True, False]),
        ("recompute == 'full'", {"recompute"}, [False, True]),
        ("MP*2 != devices", {"tp", "devices"}, [True, False]),
        ("rec != 'none' and 'both' < recompute", {"recompute"}, [False, True]),
        ("999999999999 * 999999999999 * tp > 0", {"tp"}, [True, True]),
        # A quotient by zero makes no comparison true, nor its negation; the other side of an "or" still may be.
        ("tp % 0 != 1", {"tp"}, [False, False]),
        ("not (tp / 0 > 1)", {"tp"}, [False, False]),
        ("tp == 4 or tp // (tp - 4) == 2", {"tp"}, [True, True]),
    ],
)
def test_expression_holds_row_by_row(text: str, names: set[str], rows: list[bool]) -> None:
    columns = {name: np.array(values) for name, values in {
        "tp": [4, 8], "cp": [2, 2], "dp": [16, 3], "pp": [4, 8], "mbs": [2, 4], "recompute": [0, 4], "devices": [16, 16],  # noqa: E501
    }.items()}  # fmt: skip
    expression = parse_expression(text)
    assert expression.names == names
    assert expression.holds(columns).tolist() == rows


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "tp.real",
        "tp",
        "tp +",
        "(lambda: 1)() == 1",
        "tp ** 9 == 1",
        "[tp] == 1",
        "x == 1",
        "tp == 'ful'",
        "tp == 'full'",
        "recompute == 'ring'",
        "recompute + 'full' == 4",
        "'full' == 'full'",
        "recompute == schedule == 'full'",
        "tp * 1000000000001 > 0",
        "open('x') == 1",
        "",
    ],
)
def test_expression_is_refused_when_it_is_not_a_plain_comparison(text: str) -> None:
    with pytest.raises(InputError):
        parse_expression(text)


def test_division_by_zero_in_a_constraint_removes_the_row() -> None:
    expression = parse_expression("tp % (dp - 1) == 0")
    assert not expression.holds({"tp": np.array([4]), "dp": np.array([1])}).any()


def test_ranking_does_not_depend_on_the_order_of_the_input() -> None:
    problem = problem_of(devices=16, batch=32)
    layouts, peaks = filter_memory(problem, enumerate_space(problem, SearchSpec()).layouts, SearchSpec())
    seconds = performance.step_times(problem, layouts)
    first = [layouts.row(i) for i in rank(layouts, seconds, 10)]
    shuffled = np.random.default_rng(0).permutation(len(layouts))
    again = layouts.take(shuffled)
    assert first == [again.row(i) for i in rank(again, seconds[shuffled], 10)]
    assert len({tuple(row[name] for name in FOLDED) for row in first}) == len(first)
    # The streaming search finds the same.
    streamed = search(problem, SearchSpec(), None, 10).ranked
    assert [streamed.layouts.row(i) for i in range(len(streamed))] == first
    assert (peaks <= problem.cluster.memory_budget).all()


def test_more_memory_never_removes_a_layout_and_the_winner_never_slows() -> None:
    results = [search(problem_of(devices=16, batch=32, budget=budget), SearchSpec()) for budget in (40.0, 60.0, 80.0)]
    assert [one.fitting for one in results] == sorted(one.fitting for one in results)
    best = [float(one.ranked.step_time_N[0]) for one in results]
    assert best == sorted(best, reverse=True)


def test_front_holds_what_nothing_beats_in_both() -> None:
    problem = problem_of(devices=8, batch=16)
    found = front(problem, SearchSpec())
    assert (np.diff(found.step_time_N) > 0).all()
    assert (np.diff(found.peak_N) < 0).all()
    assert found.step_time_N[0] <= search(problem, SearchSpec()).ranked.step_time_N[0]


def test_completed_layout_satisfies_the_identities() -> None:
    problem = problem_of(devices=64, batch=128)
    row = complete(problem, {"tp": 4, "pp": 4, "mbs": 2})
    assert row["dp"] * row["tp"] * row["cp"] * row["pp"] == 64
    assert row["dp"] * row["mbs"] * row["mb"] == 128
    with pytest.raises(InputError, match="tq: unknown dimension"):
        complete(problem, {"tq": 4})


def test_tight_deadline_of_an_interrupt_keeps_the_best_so_far() -> None:
    problem = problem_of("gpt3-175b", 4096, 1536, 2048, "a100")
    calls = 0

    def interrupt(seen: int, fitting: int, best: float) -> None:
        nonlocal calls
        calls += 1
        if fitting and calls >= 2:
            raise KeyboardInterrupt

    found = search(problem, SearchSpec(), interrupt)
    assert found.stopped
    assert len(found.ranked) > 0
