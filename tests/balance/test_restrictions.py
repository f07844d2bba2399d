"""What options fix and forbid, against brute force over all assignments that keep to it."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from paraplan.balance import BalanceProblem, BalanceSpec, balance
from paraplan.balance.layer_set import LayerSet, LayerType, Strategy
from paraplan.balance.play import given_of
from paraplan.balance.restrictions import Counts
from paraplan.foundation.errors import InputError
from paraplan.question.balance_spec import Forbidden, Pin

FULL = {"none": Strategy(3.0), "full": Strategy(1.0, 1.0)}


def problem_of(
    *layers: LayerType, stages: int = 2, chunks: int = 1, limit: float = 16.0, **spec: Any
) -> BalanceProblem:
    schedule = "1f1b" if chunks == 1 else "interleaved"
    options = BalanceSpec(time_limit_s=20, effort=2, schedule=schedule, format="any", **spec)  # type: ignore[arg-type]
    return BalanceProblem(
        LayerSet("tiny", layers), stages, 2 * stages, chunks, schedule, (limit,) * stages, spec=options
    )


def body(count: int = 5, name: str = "body", strategies: dict[str, Strategy] | None = None) -> LayerType:
    return LayerType(name, "BODY", count, 1.0, 2.0, 0.5, strategies or FULL)


HEAD = LayerType("embedding", "HEAD", 1, 0.5, 1.0, 2.0, {"none": Strategy(1.0)})
TAIL = LayerType("loss", "TAIL", 1, 2.0, 4.0, 2.0, {"none": Strategy(1.0)})


def assignments(problem: BalanceProblem) -> Iterator[Counts]:
    """Every way to put the layers on the places in order, each under every strategy."""
    kinds = [t for t, layer in enumerate(problem.bodies) for _ in range(layer.count)]
    strategies = range(len(problem.strategies))
    shape = (len(problem.bodies), len(problem.strategies), problem.places)
    seen = set()
    for places in itertools.combinations_with_replacement(range(problem.places), len(kinds)):
        for chosen in itertools.product(strategies, repeat=len(kinds)):
            counts = np.zeros(shape, dtype=np.int64)
            for t, r, q in zip(kinds, chosen, places, strict=True):
                counts[t, r, q] += 1
            if counts.tobytes() not in seen:
                seen.add(counts.tobytes())
                if not counts[~np.repeat(problem.costs.usable_TR[:, :, None], problem.places, axis=2)].any():
                    yield counts


def best_of(problem: BalanceProblem, keeps: Callable[[Counts], bool]) -> float:
    found = [
        problem.makespan(counts)
        for counts in assignments(problem)
        if keeps(counts) and (problem.peak_memory(counts) <= problem.costs.limit_P * (1 + 1e-12)).all()
    ]
    return min(found, default=np.inf)


def test_pinned_layer_is_on_its_chunk_in_the_best_such_plan() -> None:
    # Layer 3 of 5 on the first of two stages: at least four layers there.
    problem = problem_of(HEAD, body(), TAIL, pins=(Pin("body", 3, stage=0),))
    plan = balance(problem)
    assert plan.layers[0][0] >= 4
    assert plan.status == "optimal"
    assert plan.makespan == pytest.approx(best_of(problem, lambda n: n[:, :, 0].sum() >= 4), rel=1e-9)
    free = balance(replace(problem, spec=replace(problem.spec, pins=())))
    assert free.makespan < plan.makespan


def test_forbidden_strategy_is_not_used_where_it_is_forbidden() -> None:
    problem = problem_of(HEAD, body(6), TAIL, limit=14.0)
    free = balance(problem)
    assert free.recompute["full"][0][0] > 0
    forbidden = replace(problem, spec=replace(problem.spec, forbidden=(Forbidden("full", stage=0),)))
    plan = balance(forbidden)
    assert plan.recompute["full"][0][0] == 0
    assert plan.makespan == pytest.approx(best_of(problem, lambda n: n[0, 1, 0] == 0), rel=1e-9)
    assert plan.makespan >= free.makespan


def test_fixed_recompute_leaves_only_the_layers_to_search() -> None:
    problem = problem_of(HEAD, body(6), TAIL, limit=18.0, recompute=((1, 2),))
    plan = balance(problem)
    assert plan.recompute["full"] == ((1, 2),)
    best = best_of(problem, lambda n: n[0, 1, 0] == 1 and n[0, 1, 1] == 2)
    assert plan.makespan == pytest.approx(best, rel=1e-9)
    assert plan.status == "optimal"


def test_fixed_offset_and_recompute_are_played_as_they_are() -> None:
    problem = problem_of(HEAD, body(6), TAIL, limit=30.0, offset=((1, -1),), recompute=((2, 0),))
    plan = balance(problem)
    assert plan.layers == ((4, 2),)
    assert plan.recompute["full"] == ((2, 0),)
    counts = np.array([[[2, 2], [2, 0]]])
    assert plan.makespan == pytest.approx(problem.makespan(counts), rel=1e-12)
    assert plan.lower_bound == pytest.approx(plan.makespan, rel=1e-6)


def test_lists_fix_every_strategy_as_mindformers_counts_them() -> None:
    strategies = {
        "none": Strategy(5.0),
        "select": Strategy(4.0, 0.1),
        "both": Strategy(2.0, 0.4),
        "full": Strategy(1.0, 1.0),
    }
    problem = problem_of(
        body(6, strategies=strategies), limit=60.0,
        recompute=((1, 0),), select_recompute=((3, 1),), select_comm_recompute=((2, 0),),
    )  # fmt: skip
    plan = balance(problem)
    # Stage 0: one full, min(3, 2) − 1 = one both, 3 − 1 − 1 = one select; stage 1: one select.
    assert plan.recompute["full"] == ((1, 0),)
    assert plan.recompute["both"] == ((1, 0),)
    assert plan.recompute["select"] == ((1, 1),)


@pytest.mark.parametrize("chunks", [1, 2])
def test_movable_end_goes_where_the_pipeline_is_shortest(chunks: int) -> None:
    loss = replace(TAIL, forward=3.0, backward=6.0)
    problem = problem_of(HEAD, body(4, strategies={"none": Strategy(1.0)}), loss, chunks=chunks, limit=40.0)
    fixed = balance(problem)
    moving = replace(problem, spec=replace(problem.spec, movable=("loss", "embedding")))
    assert [layer.name for layer in moving.bodies] == ["embedding", "body", "loss"]
    plan = balance(moving)
    assert plan.makespan <= fixed.makespan + 1e-9
    assert plan.makespan == pytest.approx(best_of(moving, lambda n: True), rel=1e-9)
    # Layers, offset and lists count the body alone; the assignment tells where the ends are.
    assert sum(map(sum, plan.layers)) == 4
    assert sum(map(sum, plan.assignment["loss"]["none"])) == 1
    again = given_of(plan.to_json(), "plan.json")
    assert again.problem.makespan(again.counts) == pytest.approx(plan.makespan, rel=1e-12)


def test_end_that_may_move_never_makes_a_pipeline_slower_with_fixed_layers() -> None:
    problem = problem_of(HEAD, body(4), TAIL, limit=30.0, offset=((0, 0),))
    moving = replace(problem, spec=replace(problem.spec, movable=("loss",)))
    assert balance(moving).makespan <= balance(problem).makespan + 1e-9
    assert balance(moving).layers == ((2, 2),)


def test_forbidden_without_a_layer_leaves_ends_that_may_move_alone() -> None:
    # The loss has only the strategy that is forbidden; it may still go to stage 1, even where "none" is forbidden.
    problem = problem_of(HEAD, body(4), TAIL, limit=30.0, movable=("loss",), forbidden=(Forbidden("none", stage=1),))
    plan = balance(problem)
    best = best_of(problem, lambda n: n[0, 0, 1] == 0)
    assert plan.makespan == pytest.approx(best, rel=1e-9)
    nowhere = replace(problem, spec=replace(problem.spec, forbidden=(Forbidden("none"),)))
    assert balance(nowhere).recompute["none"] == ((0, 0),)
    named = replace(problem, spec=replace(problem.spec, forbidden=(Forbidden("none", layer="loss", stage=1),)))
    assert balance(named).assignment["loss"]["none"] == ((1, 0),)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pins": (Pin("tower", 0, 0),)}, "pins: layer 'tower' found, one of body is needed"),
        ({"pins": (Pin("body", 9, 0),)}, "pins: body 9 found, 0 to 4 are there"),
        ({"pins": (Pin("body", 0, 7),)}, "chunk 0 of stage 7 found, chunks 0 to 0 and stages 0 to 1"),
        ({"pins": (Pin("body", 3, 0), Pin("body", 1, 1))}, "contradict each other"),
        ({"forbidden": (Forbidden("swap"),)}, "strategy 'swap' found, one of none, full is needed"),
        ({"forbidden": (Forbidden("none"), Forbidden("full"))}, "nothing is left for layer body"),
        ({"forbidden": (Forbidden("full", layer="tower"),)}, "layer 'tower' found"),
        ({"movable": ("body",)}, "movable: 'body' found, one of embedding, loss is needed"),
        ({"recompute": ((1, 2, 3),)}, "recompute: a table of 1 rows of 2 numbers is needed"),
        ({"offset": ((0, 1),), "recompute": ((4, 0),)}, "chunk 0 of stage 0 recomputes 4 of its 2 layers"),
        ({"select_recompute": ((1, 0),)}, "^select_recompute: 1 layers select, which no layer has"),
        (
            {"offset": ((0, 1),), "pins": (Pin("body", 2, 0),)},
            "^offset and pins: they contradict .* whatever the memory",
        ),
        (
            {"forbidden": (Forbidden("none", stage=0), Forbidden("full", stage=0)), "pins": (Pin("body", 0, 0),)},
            "^pins and forbidden: they contradict each other",
        ),
        ({"recompute": ((-1, 0),)}, "^recompute: -1 found, at least 0 is needed"),
        ({"recompute": ((4, 4),)}, "^recompute: 8 layers found, 5 are there"),
        ({"recompute": ((10**400, 0),)}, r"^recompute: 1000.*\.\.\. found, 5 layers are there"),
        ({"offset": ((10**30, -(10**30)),)}, "^offset: 1000.* found, 5 layers are there"),
    ],
)
def test_contradiction_is_refused_with_what_is_allowed(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        balance(problem_of(HEAD, body(), TAIL, **options))
