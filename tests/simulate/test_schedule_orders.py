"""Schedules against their closed forms, and the graph against a longest path by brute force."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paraplan.foundation.errors import InputError
from paraplan.question.layouts import SCHEDULES
from paraplan.schedules.orders import SPLIT_BACKWARD, V_SHAPED, B, Block, F, W, order
from paraplan.simulate import build_graph, in_flight, peak_memory, simulate
from paraplan.simulate.graph import PipelineGraph, graph_of


def even(graph: PipelineGraph, forward: float, inputs: float, weights: float) -> np.ndarray:
    """Durations of equal chunks: a whole stage's work on one micro-batch is forward + inputs + weights."""
    durations = np.zeros(graph.classes)
    split = graph.name in SPLIT_BACKWARD
    share = graph.chunks * graph.splits
    for s in range(graph.stages):
        for v in range(graph.chunks):
            durations[graph.class_of(F, v, s)] = forward / share
            durations[graph.class_of(B, v, s)] = (inputs if split else inputs + weights) / share
            durations[graph.class_of(W, v, s)] = weights / share
    return durations


def bubble_time(name: str, p: int, m: int, v: int, f: float, i: float, w: float, splits: int = 1) -> float:
    graph = build_graph(name, p, m, v, splits)
    return graph.makespan(even(graph, f, i, w)) - m * (f + i + w)


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (4, 12), (8, 16)])
def test_bubble_equals_its_closed_form_when_stages_are_equal(p: int, m: int) -> None:
    f, i, w = 1.0, 1.2, 0.8
    expected = {
        ("1f1b", 1): (p - 1) * (f + i + w),
        ("gpipe", 1): (p - 1) * (f + i + w),
        ("interleaved", 2): (p - 1) * (f + i + w) / 2,
        ("interleaved", 4): (p - 1) * (f + i + w) / 4,
        ("interleaved-less-memory", 2): (p - 1) * (f + i + w) / 2,
        ("zb-h1", 1): (p - 1) * (f + i - w),
    }
    for (name, v), bubble in expected.items():
        assert bubble_time(name, p, m, v, f, i, w) == pytest.approx(bubble, rel=1e-9), name
    # Two slices of the sequence halve 1F1B's bubble.
    assert bubble_time("seq1f1b", p, m, 1, f, i, w, splits=2) == pytest.approx((p - 1) * (f + i + w) / 2)


@pytest.mark.parametrize("p", [2, 4, 8])
def test_v_schedules_leave_only_the_skew_when_passes_are_equal(p: int) -> None:
    # ZB-V: no bubble inside a rank's span; the ends are (p - 1) half-chunks apart. Unfused DualPipe-V likewise.
    for name in ("zb-v", "dualpipe-v"):
        assert bubble_time(name, p, 3 * p, 2, 1.0, 1.0, 1.0) == pytest.approx((p - 1) / 2), name


def test_activations_in_flight_equal_the_published_counts() -> None:
    p, m = 4, 12
    most = {
        ("1f1b", 1): [p - s for s in range(p)],
        ("gpipe", 1): [m] * p,
        ("interleaved", 2): [3 * p - 2 * s - 1 for s in range(p)],
        ("interleaved-less-memory", 2): [2 * p - s for s in range(p)],
        ("zb-h1", 1): [p] * p,
        ("zb-h2", 1): [2 * p - 1] * p,
        ("zb-v", 2): [2 * p] * p,
        ("dualpipe-v", 2): [2 * p + 1] * p,
    }
    for (name, v), counts in most.items():
        found = [int(moment.counts_nV.sum(axis=1).max()) for moment in in_flight(build_graph(name, p, m, v))]
        assert found == counts, name


def test_extreme_in_flight_vectors_equal_those_of_the_prefix_walk() -> None:
    # p = 4, two chunks: rank 0 {(7,4), (8,3)}, rank 3 {(4,1), (5,0)}; fewer micro-batches than stages: all of them.
    moments = in_flight(build_graph("interleaved", 4, 8, 2))
    assert {tuple(x) for x in moments[0].counts_nV} == {(7, 4), (8, 3)}
    assert {tuple(x) for x in moments[3].counts_nV} == {(4, 1), (5, 0)}
    assert in_flight(build_graph("1f1b", 8, 3))[0].counts_nV.max() == 3


def test_public_example_takes_its_recorded_time_with_overlapped_sends() -> None:
    # 96 layers of 100 + 200 on 16 stages x 2 chunks, embedding 13, head 113, 32 micro-batches.
    graph = build_graph("interleaved", 16, 32, 2)
    durations = np.zeros(graph.classes)
    for s in range(16):
        for v in range(2):
            forward = 300 + (13 if (s, v) == (0, 0) else 0) + (113 if (s, v) == (15, 1) else 0)
            durations[graph.class_of(F, v, s)], durations[graph.class_of(B, v, s)] = forward, 2 * forward
    found = [graph.makespan(durations, p2p) for p2p in (0.0, 0.1, 3.0, 10.0)]
    assert found == pytest.approx([82572, 82575, 82662, 82872], abs=1e-6)
    batched = build_graph("interleaved", 16, 32, 2, batched=True)
    # Waiting alone costs: exchanges in lock step are never faster, and here dearer even at no communication time.
    assert batched.makespan(durations, 0.0) > graph.makespan(durations, 0.0)


@pytest.mark.parametrize("name", [name for name in SCHEDULES if name not in ("1f1b", "interleaved")])
def test_exchanges_in_batches_are_refused_where_megatron_has_none(name: str) -> None:
    with pytest.raises(InputError, match=f"batched: schedule '{name}' found, .* need 1f1b or interleaved"):
        build_graph(name, 4, 8, 2 if name in V_SHAPED else 1, batched=True)


def brute_force(graph: PipelineGraph, durations: np.ndarray, p2p: float) -> float:
    """Longest path by recursion over the blocks and their needs."""
    position = {(s, block): i for i, (s, block) in enumerate(graph.blocks)}
    lanes: dict[int, list[int]] = {}
    for i, (s, _) in enumerate(graph.blocks):
        lanes.setdefault(s, []).append(i)
    before = {lane[k]: lane[k - 1] for lane in lanes.values() for k in range(1, len(lane))}
    stages, chunks = graph.stages, graph.chunks

    @cache
    def end(i: int) -> float:
        s, (operation, chunk, micro_batch) = graph.blocks[i]
        ready = end(before[i]) if i in before else 0.0
        place = chunk * stages + s
        source = None
        if operation == F and place > 0:
            source = ((place - 1) % stages, Block(F, (place - 1) // stages, micro_batch))
        elif operation == B:
            if place == stages * chunks - 1:
                source = (s, Block(F, chunk, micro_batch))
            else:
                source = ((place + 1) % stages, Block(B, (place + 1) // stages, micro_batch))
        elif operation == W:
            source = (s, Block(B, chunk, micro_batch))
        if source is not None:
            ready = max(ready, end(position[source]) + (p2p if source[0] != s else 0.0))
        return ready + float(durations[graph.klass[i]])

    return max(end(i) for i in range(len(graph.blocks)))


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([("1f1b", 1), ("gpipe", 1), ("interleaved", 2), ("interleaved", 3), ("zb-h1", 1), ("zb-h2", 1)]),
    st.integers(1, 4),
    st.integers(1, 6),
    st.integers(0, 10_000),
    st.floats(0, 3),
)
def test_makespan_equals_the_longest_path_when_durations_are_random(
    schedule: tuple[str, int], stages: int, micro_batches: int, seed: int, p2p: float
) -> None:
    name, chunks = schedule
    if name == "interleaved":
        # Other numbers than groups of the stages may deadlock.
        micro_batches = stages * (1 + micro_batches // 3)
    graph = build_graph(name, stages, micro_batches, chunks)
    durations = np.random.default_rng(seed).uniform(0.1, 5.0, graph.classes)
    makespan = graph.makespan(durations, p2p)
    assert makespan == pytest.approx(brute_force(graph, durations, p2p), rel=1e-12)
    # The critical path is a linear row that gives the makespan back.
    counts, sends = graph.critical_path(durations, p2p)
    assert counts @ durations + sends * p2p == pytest.approx(makespan, rel=1e-12)
    # Played out: blocks of a stage never overlap and the busy time is the work.
    played = simulate(graph, durations, p2p)
    for s in range(stages):
        blocks = played.stage_blocks(s)
        assert all(blocks[k][2] <= blocks[k + 1][1] + 1e-9 for k in range(len(blocks) - 1))
        assert played.busy_P[s] == pytest.approx(sum(b - a for _, a, b in blocks))


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([("1f1b", 1), ("interleaved", 2), ("zb-h1", 1), ("zb-v", 2)]),
    st.integers(2, 4),
    st.integers(0, 999),
)
def test_peak_memory_equals_a_walk_over_the_blocks(schedule: tuple[str, int], stages: int, seed: int) -> None:
    name, chunks = schedule
    graph = build_graph(name, stages, 2 * stages, chunks)
    rng = np.random.default_rng(seed)
    activation, static = rng.uniform(0.1, 3, (chunks, stages)), rng.uniform(0, 5, stages)
    transient = rng.uniform(0, 4, (chunks, stages))
    expected = static.copy()
    for s in range(stages):
        held, peak = 0.0, 0.0
        for owner, block in graph.blocks:
            if owner != s:
                continue
            if block.operation == F:
                held += activation[block.chunk, s]
                peak = max(peak, held)
            if block.operation == B:
                peak = max(peak, held + transient[block.chunk, s])
            if block.operation == (W if name in SPLIT_BACKWARD else B):
                held -= activation[block.chunk, s]
        expected[s] += peak
    assert peak_memory(in_flight(graph), static, activation, transient) == pytest.approx(expected)


def test_circle_of_waiting_blocks_is_named() -> None:
    orders = order("1f1b", 2, 2)
    # The last stage wants the second micro-batch's forward before the first stage may run it.
    orders[0] = [Block(F, 0, 0), Block(B, 0, 0), Block(F, 0, 1), Block(B, 0, 1)]
    orders[1] = [Block(F, 0, 1), Block(F, 0, 0), Block(B, 0, 0), Block(B, 0, 1)]
    with pytest.raises(InputError, match=r"deadlock: .*F1 of chunk 0 on stage [01] waits for"):
        graph_of("1f1b", orders, 2, 1)


@pytest.mark.parametrize(
    ("name", "p", "m", "v", "message"),
    [
        ("zb-v", 4, 12, 1, "2 are needed"),
        ("dualpipe-v", 4, 7, 2, "at least twice the 4 stages"),
        ("1f1b", 4, 8, 2, "1 is needed"),
        ("interleaved-less-memory", 4, 9, 2, "in a circle"),
        ("nonsense", 4, 8, 1, "one of 1f1b"),
        ("1f1b", 0, 8, 1, "at least 1"),
    ],
)
def test_order_is_refused_when_the_schedule_cannot_run(name: str, p: int, m: int, v: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        order(name, p, m, v)
