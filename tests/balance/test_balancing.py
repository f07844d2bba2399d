"""Balancing against brute force, its invariants, and the wrong answers of others."""

import itertools
import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paraplan.balance import BalanceProblem, BalanceSpec, balance, load_layers
from paraplan.balance.balancer import alternatives, no_plan
from paraplan.balance.bounds import Relaxation
from paraplan.balance.layer_set import LayerSet, LayerType, Strategy, bundled_names, read_layers
from paraplan.balance.lists import read_lists, write_lists
from paraplan.balance.model import IntegerProgram, solver_names
from paraplan.balance.play import counts_of, given_of, play, problem_document
from paraplan.balance.shortfall import above
from paraplan.cli.ppb import plan_text
from paraplan.foundation.errors import InputError


def layer_set(
    count: int = 6, strategies: dict[str, Strategy] | None = None, head: float = 1.0, tail: float = 2.0
) -> LayerSet:
    own = strategies or {"none": Strategy(3.0), "full": Strategy(1.0, 1.0)}
    return LayerSet(
        "tiny",
        (
            LayerType("head", "HEAD", 1, head, 2 * head, 0.0, {"none": Strategy(0.0)}),
            LayerType("body", "BODY", count, 1.0, 2.0, 0.5, own),
            LayerType("tail", "TAIL", 1, tail, 2 * tail, 0.0, {"none": Strategy(0.0)}),
        ),
    )


def make(
    layers: LayerSet, stages: int, micro_batches: int, chunks: int, schedule: str, limit: float, **rest: object
) -> BalanceProblem:
    spec = BalanceSpec(time_limit_s=20, effort=2, schedule=schedule, format="any")  # type: ignore[arg-type]
    return BalanceProblem(layers, stages, micro_batches, chunks, schedule, (limit,) * stages, spec=spec, **rest)  # type: ignore[arg-type]


def brute_force(problem: BalanceProblem) -> float:
    """The best makespan over all assignments of one body type; infinite where none respects the limit."""
    layers = int(problem.costs.count_T[0])
    cells = problem.places * len(problem.strategies)
    best = np.inf
    for bars in itertools.combinations(range(layers + cells - 1), cells - 1):
        edges = (-1, *bars, layers + cells - 1)
        counts = np.diff(edges) - 1
        table = counts.reshape(1, len(problem.strategies), problem.places)
        if (problem.peak_memory(table) <= problem.costs.limit_P * (1 + 1e-12)).all():
            best = min(best, problem.makespan(table))
    return float(best)


@settings(max_examples=8, deadline=None, derandomize=True)
@given(
    st.sampled_from(
        [("1f1b", 2, 1), ("1f1b", 3, 1), ("interleaved", 2, 2), ("interleaved-less-memory", 2, 2), ("zb-h1", 2, 1)]
    ),
    st.integers(3, 5),
    st.floats(4, 24),
    st.floats(0, 0.5),
)
def test_balance_equals_brute_force_when_the_pipeline_is_small(
    shape: tuple[str, int, int], layers: int, limit: float, p2p: float
) -> None:
    name, stages, chunks = shape
    problem = make(layer_set(layers), stages, 2 * stages, chunks, name, limit, p2p=p2p)
    best = brute_force(problem)
    plan = balance(problem)
    if np.isinf(best):
        assert plan.status == "infeasible"
        assert "smallest limit" in plan.message
        return
    assert plan.makespan == pytest.approx(best, rel=1e-9)
    assert plan.status == "optimal"
    assert plan.lower_bound == pytest.approx(best, rel=1e-6)
    assert max(plan.peak_memory_mib) <= limit * (1 + 1e-9)


def test_known_wrong_answer_of_two_chunks_stays_within_the_limit() -> None:
    # 4 layers on 2 stages x 2 chunks, none keeps 3 and full 1 MiB, limit 8: an answer with a simulated peak of 9 was
    # once given, from the in-flight counts of one moment alone.
    layers = layer_set(4, {"none": Strategy(3.0), "full": Strategy(1.0, 1.0)}, head=0.0, tail=0.0)
    layers = replace(layers, layers=tuple(replace(layer, parameter=0.0) for layer in layers.layers))
    for schedule in ("interleaved", "interleaved-less-memory"):
        problem = make(layers, 2, 4, 2, schedule, 8.0)
        plan = balance(problem)
        assert max(plan.peak_memory_mib) <= 8.0
        assert plan.makespan == pytest.approx(brute_force(problem))


def least_limit(problem: BalanceProblem, raised: list[int]) -> float:
    """The smallest limit of the stages ``raised``, the others as given, over all assignments of one body type."""
    layers, cells = int(problem.costs.count_T[0]), problem.places * len(problem.strategies)
    found = [np.inf]
    for bars in itertools.combinations(range(layers + cells - 1), cells - 1):
        counts = np.diff((-1, *bars, layers + cells - 1)) - 1
        peaks = problem.peak_memory(counts.reshape(1, len(problem.strategies), problem.places))
        if all(peaks[s] <= limit for s, limit in enumerate(problem.memory_limit_mib) if s not in raised):
            found.append(float(peaks[raised].max()))
    return min(found)


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param((2.0, 2.0, 2.0), id="one limit"),
        pytest.param((2.0, 4.0, 4.0), id="one stage is enough"),
        pytest.param((1.0, 9.0, 2.0), id="both ends need more"),
    ],
)
def test_smallest_limit_that_does_is_the_smallest(limits: tuple[float, ...]) -> None:
    strategies = {"none": Strategy(3.0), "full": Strategy(1.3, 1.0, transient=0.4)}
    ends = [LayerType(role, role, 1, 1.0, 2.0, 2.5, {"none": Strategy(0.0)}) for role in ("HEAD", "TAIL")]  # type: ignore[arg-type]
    layers = LayerSet("tiny", (ends[0], LayerType("body", "BODY", 5, 1.0, 2.0, 0.5, strategies), ends[1]))
    problem = replace(make(layers, 3, 6, 1, "1f1b", 1.0), memory_limit_mib=limits)
    expected = f"{least_limit(problem, [0, 1, 2]):.10g} MiB on every stage"
    if len(set(limits)) > 1:
        alone = {s: least_limit(problem, [s]) for s in range(3)}
        s = min(alone, key=lambda s: alone[s] - limits[s])
        if np.isfinite(alone[s]):
            expected = f"{alone[s]:.10g} MiB on stage {s}, the others as given"
    assert f"the smallest limit that does is {expected}" in balance(problem).message


def test_needed_memory_is_rounded_up_and_more_than_the_limit() -> None:
    assert above(67.6, 67.59) == "67.6"
    assert above(68.0001, 68.0) == "68.01"
    assert above(28.000000000000004, 20.0) == "28"
    assert above(62299.2, 10.0) == "62,300"
    assert above(0.5, 0.1) == "0.5"


def test_nothing_found_in_the_time_is_not_called_infeasible() -> None:
    problem = make(layer_set(8), 2, 4, 1, "1f1b", 1.0)
    now = time.monotonic()
    unknown = no_plan([problem], 40.0, "highs", now, now)
    assert "nor was it shown that there is none (it would take at least 40)" in unknown.message
    assert "MiB on every stage" in unknown.message
    assert unknown.lower_bound == 40.0
    assert plan_text(unknown, []) == [unknown.message]
    assert plan_text(balance(problem), [])[0].startswith("infeasible: ")


def test_infeasible_limit_says_what_would_do() -> None:
    plan = balance(make(layer_set(8), 2, 4, 1, "1f1b", 1.0))
    assert plan.status == "infeasible"
    assert plan.layers == ()
    needed = float(plan.message.split("smallest limit that does is ")[1].split(" MiB")[0].replace(",", ""))
    assert balance(make(layer_set(8), 2, 4, 1, "1f1b", needed + 1)).status != "infeasible"


def test_fewer_micro_batches_than_stages_are_planned() -> None:
    plan = balance(make(layer_set(6), 4, 2, 1, "1f1b", 100.0))
    assert plan.status == "optimal"
    # At most both micro-batches are in flight, on the last stage one: parameters 0.5 and activations 3 MiB a layer.
    expected = [held * (0.5 + 3 * min(2, 4 - s)) for s, held in enumerate(plan.layers[0])]
    assert plan.peak_memory_mib == pytest.approx(expected)


def test_more_memory_and_more_strategies_never_slow_a_pipeline() -> None:
    spans = [balance(make(layer_set(8), 2, 6, 1, "1f1b", limit)).makespan for limit in (12.0, 16.0, 22.0, 60.0)]
    assert spans == sorted(spans, reverse=True)
    both = {"none": Strategy(3.0), "full": Strategy(1.0, 1.0)}
    third = {**both, "select": Strategy(2.0, 0.3)}
    assert balance(make(layer_set(8, third), 2, 6, 1, "1f1b", 16.0)).makespan <= spans[1] * (1 + 1e-9)


def test_scaling_times_scales_the_makespan() -> None:
    plain = layer_set(6)
    scaled = LayerSet(
        "scaled",
        tuple(
            replace(
                layer,
                forward=7 * layer.forward,
                backward=7 * layer.backward,
                strategies={name: replace(one, extra=7 * one.extra) for name, one in layer.strategies.items()},
            )
            for layer in plain.layers
        ),
    )
    one, seven = (balance(make(layers, 3, 6, 1, "1f1b", 14.0)) for layers in (plain, scaled))
    assert seven.makespan == pytest.approx(7 * one.makespan)
    assert seven.bubble.total == pytest.approx(one.bubble.total)


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from([("1f1b", 1), ("interleaved", 2), ("zb-h1", 1), ("zb-v", 2), ("seq1f1b", 1)]), st.integers(0, 999)
)
def test_program_value_equals_the_simulator(schedule: tuple[str, int], seed: int) -> None:
    name, chunks = schedule
    splits = 2 if name == "seq1f1b" else 1
    problem = make(layer_set(5), 2, 4, chunks, name, 1e9, p2p=0.1, splits=splits)
    rng = np.random.default_rng(seed)
    counts = np.zeros((1, len(problem.strategies), problem.places), dtype=np.int64)
    for _ in range(5):
        counts[0, rng.integers(len(problem.strategies)), rng.integers(problem.places)] += 1
    program = IntegerProgram(problem, [])
    row = program.rows.critical(counts.astype(float))
    assert row.coefficients @ counts.reshape(-1) - row.right == pytest.approx(problem.makespan(counts), rel=1e-9)


def test_bound_is_below_every_assignment() -> None:
    problem = make(layer_set(4), 2, 4, 2, "interleaved", 20.0)
    assert Relaxation(problem, float("inf")).solve().bound <= brute_force(problem) * (1 + 1e-9)


@pytest.mark.parametrize("solver", [name for name in ("highs", "cbc") if name in solver_names()])
def test_solvers_agree(solver: str) -> None:
    problem = make(layer_set(6), 2, 4, 1, "1f1b", 14.0)
    problem = replace(problem, spec=replace(problem.spec, solver=solver))
    assert balance(problem).makespan == pytest.approx(brute_force(problem))


def test_unknown_solver_names_those_that_are_installed() -> None:
    problem = make(layer_set(6), 2, 4, 1, "1f1b", 14.0)
    with pytest.raises(InputError, match=r"installed are .*highs"):
        balance(replace(problem, spec=replace(problem.spec, solver="magic")))


def test_two_body_types_keep_their_order() -> None:
    layers = LayerSet(
        "mixed",
        (
            LayerType("dense", "BODY", 2, 1.0, 2.0, 1.0, {"none": Strategy(2.0)}),
            LayerType("experts", "BODY", 6, 2.0, 4.0, 3.0, {"none": Strategy(3.0), "full": Strategy(0.5, 2.0)}),
        ),
    )
    plan = balance(make(layers, 4, 8, 1, "1f1b", 30.0))
    dense = np.array([sum(table[0][s] for table in plan.assignment["dense"].values()) for s in range(4)])
    experts = np.array([sum(table[0][s] for table in plan.assignment["experts"].values()) for s in range(4)])
    assert dense.sum() == 2
    assert experts.sum() == 6
    assert np.flatnonzero(dense).max() <= np.flatnonzero(experts).min()
    # Every type counts in the time: the work is 2·3 + 6·6 = 42 a micro-batch.
    assert plan.makespan >= 42 / 4 * 8


def test_fixed_offset_moves_no_layer_and_equal_chunks_need_a_multiple() -> None:
    problem = make(layer_set(8), 2, 4, 1, "1f1b", 18.0)
    fixed = balance(replace(problem, spec=replace(problem.spec, offset=((1, -1),))))
    assert fixed.layers == ((5, 3),)
    even = balance(replace(problem, spec=replace(problem.spec, equal_chunks=True)))
    assert even.layers == ((4, 4),)
    with pytest.raises(InputError, match="a multiple of the 2 chunks"):
        odd = make(layer_set(7), 2, 4, 1, "1f1b", 18.0)
        balance(replace(odd, spec=replace(odd.spec, equal_chunks=True)))


def test_mindformers_answers_never_mix_select_and_comm_on_a_chunk() -> None:
    strategies = {"none": Strategy(5.0), "select": Strategy(3.0, 0.2), "comm": Strategy(2.5, 0.3)}
    problem = make(layer_set(8, strategies), 2, 6, 1, "1f1b", 30.0)
    plan = balance(replace(problem, spec=replace(problem.spec, format="mindformers")))
    for select, comm in zip(plan.recompute["select"][0], plan.recompute["comm"][0], strict=True):
        assert not (select and comm)
    lists = write_lists(plan.recompute)
    back = read_lists(plan.layers, lists["recompute"], lists["select_recompute"], lists["select_comm_recompute"])
    assert all(back[name] == plan.recompute[name] for name in plan.recompute)


def test_lists_follow_the_published_semantics() -> None:
    table = {"none": ((3,),), "select": ((2,),), "comm": ((0,),), "both": ((1,),), "full": ((1,),)}
    lists = write_lists(table)
    assert lists == {"recompute": [[1]], "select_recompute": [[4]], "select_comm_recompute": [[2]]}
    # select 1 and comm 1 together are read as one layer of kind both.
    assert read_lists([[2]], [[0]], [[1]], [[1]])["both"] == ((1,),)
    with pytest.raises(InputError, match="cannot say both"):
        write_lists({"select": ((1,),), "comm": ((1,),)})


def test_plan_is_played_again_from_its_document() -> None:
    plan = balance(make(layer_set(8), 2, 4, 2, "interleaved", 30.0))
    document = json.loads(json.dumps(plan.to_json()))
    given_again = given_of(document, "plan.json")
    assert play(given_again).makespan == pytest.approx(plan.makespan)
    assert problem_document(given_again.problem) == document["problem"]


def test_one_row_of_offsets_is_refused_when_there_are_two_chunks() -> None:
    problem = make(layer_set(18), 4, 8, 2, "interleaved", 1e9)
    with pytest.raises(InputError, match="one row found, 2 rows are needed"):
        counts_of({"offset": [1, 0, 0, 1]}, problem, "hand.yaml")
    with pytest.raises(InputError, match="offset: sums to 1, 2 is needed"):
        counts_of({"offset": [[1, 0, 0, 0], [0, 0, 0, 0]]}, problem, "hand.yaml")


@pytest.mark.parametrize(
    ("given_lists", "message"),
    [
        ({"offset": [9, -9, 0, 0]}, "offset: -9 found on chunk 0 of stage 1, at least -2 is needed"),
        ({"recompute": [0, 3, 0, 0]}, "recompute: 3 found on chunk 0 of stage 1, 0 to 2"),
        ({"recompute": [-1, 0, 0, 0]}, "recompute: -1 found on chunk 0 of stage 0, 0 to 2"),
        ({"assignment": {"body": {"none": [[-2, 6, 2, 2]]}}}, r"body\.none: -2 found on chunk 0 of stage 0, 0 to 8"),
        ({"assignment": {"body": {"none": [[2] * 4], "full": [[-1, 1, 0, 0]]}}}, r"body\.full: -1 found"),
        ({"assignment": {"body": {"none": [[10**400, 0, 0, 0]]}}}, r"body\.none: 1000"),
        ({"assignment": {"body": 3}}, r"assignment\.body: 3 found, a mapping of strategy to counts"),
        ({"assignment": {"bdy": {}}}, r"assignment\.bdy: unknown key; did you mean 'body'"),
        ({"assignment": 3}, "assignment: 3 found, a mapping of layer"),
        ({"assignment": {}}, "assignment: {} found, a mapping of layer"),
        ({"assignment": {"body": {"none": [[2] * 4]}}, "offset": 0}, "offset: found beside assignment"),
    ],
)
def test_wrong_assignment_names_the_chunk_and_what_it_may_hold(given_lists: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=f"^hand.yaml: .*{message}"):
        counts_of(given_lists, make(layer_set(8), 4, 8, 1, "1f1b", 1e9), "hand.yaml")


def test_types_in_another_order_than_the_model_are_refused() -> None:
    none = {"none": Strategy(1.0)}
    dense, moe = (LayerType(name, "BODY", 4, 1.0, 2.0, 0.0, none) for name in ("dense", "moe"))
    problem = make(LayerSet("two", (dense, moe)), 4, 8, 1, "1f1b", 1e9)
    first, last = {"none": [[3, 1, 0, 0]]}, {"none": [[0, 1, 1, 2]]}
    assert counts_of({"assignment": {"moe": last, "dense": first}}, problem, "x")[0, 0].tolist() == [3, 1, 0, 0]
    with pytest.raises(InputError, match=r"moe: found on chunk 0 of stage 0, .* last dense \(chunk 0 of stage 3\)"):
        counts_of({"assignment": {"moe": first, "dense": last}}, problem, "x")


def test_balancing_twice_gives_the_same_plan_and_leaves_the_layers_alone() -> None:
    layers = load_layers("sequence_pipe_16")
    before = json.dumps(problem_document(make(layers, 4, 4, 1, "seq1f1b", 1e6, splits=2)))
    one, two = (balance(make(layers, 4, 4, 1, "seq1f1b", 1e6, splits=2)) for _ in range(2))
    assert replace(one, seconds=0.0) == replace(two, seconds=0.0)
    assert json.dumps(problem_document(make(layers, 4, 4, 1, "seq1f1b", 1e6, splits=2))) == before


def test_every_bundled_layer_file_is_read() -> None:
    assert {"llama2_70b", "demo_96", "full_only_96", "five_kinds_192", "sequence_pipe_16"} <= set(bundled_names())
    body = load_layers("llama2_70b").of_role("BODY")[0]
    # No comm memory in the file: that strategy is not considered; select costs 4 % of the backward.
    assert set(body.strategies) == {"none", "select", "both", "full"}
    assert body.backward == 200
    assert body.strategies["select"].extra == pytest.approx(8)
    assert body.strategies["full"].extra == pytest.approx(100)


def described(**changes: object) -> dict[str, object]:
    body: dict[str, object] = {
        "name": "L",
        "type": "BODY",
        "nb_layer": 4,
        "time": 10,
        "memory_activation": 5,
        **changes,
    }
    return {"layers_description": [{key: value for key, value in body.items() if value is not None}]}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (described(time=None), r"L\.time: missing"),
        (described(memory_activation=-1), r"L\.memory_activation: -1 found"),
        (described(memory_activation=float("nan")), r"L\.memory_activation: nan found"),
        (described(nb_layer=0), r"L\.nb_layer: 0 found"),
        (described(timme=3), r"L\.timme: unknown key; did you mean 'time'"),
        (described(time=10**400), r"L\.time: 1000.* found, a number from 0 to 1e\+15"),
        (described(nb_layer=10**400), r"L\.nb_layer: 1000.* found, a whole number from 1 to 1,000,000"),
        (described(strategies=[]), r"L\.strategies: \[\] found, a mapping"),
        (described(strategies=0), r"L\.strategies: 0 found, a mapping"),
        (described() | {"nam": "x"}, "layers.json: nam: unknown key; did you mean 'name'"),
        (described(nb_layer=None) | {"auto_partition_layer": []}, r"auto_partition_layer: \[\] found, a mapping"),
        (described(nb_layer=None) | {"auto_partition_layer": 3}, "auto_partition_layer: 3 found, a mapping"),
        (described(nb_layer=None) | {"auto_partition_layer": {"M": 3}}, r"auto_partition_layer\.M: unknown key"),
        (described(type="FOOT"), r"L\.type: 'FOOT' found"),
        ([1, 2], "list found"),
        ({"layers_description": {}}, "a list of layers is needed"),
        ({}, "layers_description: missing"),
    ],
)
def test_wrong_layer_description_names_the_field(document: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_layers(document, "layers.json")


def test_explicit_times_win_over_coefficients() -> None:
    layers = read_layers(described(backward_time=15, memory_recompute=1, recompute_time=21), "x.json")
    body = layers.layers[0]
    assert body.backward == 15
    assert body.strategies["full"].extra == pytest.approx(6)


def test_layers_without_memory_are_balanced_by_time_alone(tmp_path: Path) -> None:
    layers = read_layers(described(memory_activation=None), "x.json")
    plan = balance(make(layers, 2, 4, 1, "1f1b", 1.0))
    assert plan.status == "optimal"
    assert plan.layers == ((2, 2),)


def test_auto_tries_every_schedule_of_as_many_chunks() -> None:
    problem = make(layer_set(8, {"none": Strategy(0.1)}), 4, 12, 1, "1f1b", 100.0)
    auto = replace(problem, spec=replace(problem.spec, schedule="auto"))
    assert [one.schedule for one in alternatives(auto)] == ["1f1b", "zb-h1", "zb-h2"]
    plan, own = balance(auto), balance(problem)
    # With memory to spare the zero-bubble orders win.
    assert plan.schedule in ("zb-h1", "zb-h2")
    assert plan.makespan < own.makespan
    assert plan.lower_bound <= plan.makespan
    for name in ("1f1b", "zb-h1", "zb-h2"):
        one = replace(problem, schedule=name, spec=replace(problem.spec, schedule=name))  # type: ignore[arg-type]
        assert plan.makespan <= balance(one).makespan + 1e-9
    runtime = replace(auto, spec=replace(auto.spec, runtime=("1f1b", "interleaved")))
    assert [one.schedule for one in alternatives(runtime)] == ["1f1b"]
    two = make(layer_set(8), 2, 4, 2, "interleaved", 100.0)
    two = replace(two, spec=replace(two.spec, schedule="auto"))
    assert [one.schedule for one in alternatives(two)] == ["interleaved", "interleaved-less-memory", "zb-v"]
    assert alternatives(replace(two, batched=True)) == [replace(two, batched=True)]


def test_order_of_strategies_and_units_do_not_matter() -> None:
    strategies = {"none": Strategy(4.0), "select": Strategy(2.5, 0.3), "full": Strategy(1.0, 1.0)}
    problem = make(layer_set(7, strategies), 3, 6, 1, "1f1b", 18.0)
    plan = balance(problem)
    turned = make(layer_set(7, dict(reversed(strategies.items()))), 3, 6, 1, "1f1b", 18.0)
    assert balance(turned).makespan == pytest.approx(plan.makespan, rel=1e-9)
    # Memory counted in another unit: limit, parameters and activations times 1,024.
    scaled = LayerSet(
        "scaled",
        tuple(
            replace(
                layer,
                parameter=layer.parameter * 1024,
                strategies={
                    name: replace(one, activation=one.activation * 1024) for name, one in layer.strategies.items()
                },
            )
            for layer in problem.layers.layers
        ),
    )
    assert balance(make(scaled, 3, 6, 1, "1f1b", 18.0 * 1024)).makespan == pytest.approx(plan.makespan, rel=1e-9)
