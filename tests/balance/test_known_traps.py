"""Small inputs on which balancers have been wrong, with the right answers."""

import json
from pathlib import Path

import numpy as np
import pytest

from paraplan.balance import BalanceProblem, BalanceSpec, balance, load_layers
from paraplan.balance.layer_set import LayerSet, LayerType, Strategy, read_layers
from paraplan.balance.play import counts_of, given_of, play
from paraplan.cli import main
from paraplan.foundation.errors import InputError

NONE = {"none": Strategy(0.0)}


def problem_of(
    layers: LayerSet, stages: int, micro_batches: int, chunks: int = 1, limit: float = 1e9, schedule: str = ""
) -> BalanceProblem:
    name = schedule or ("interleaved" if chunks > 1 else "1f1b")
    spec = BalanceSpec(time_limit_s=20, schedule=name, format="any")  # type: ignore[arg-type]
    return BalanceProblem(layers, stages, micro_batches, chunks, name, (limit,) * stages, spec=spec)


def test_stage_that_is_slower_than_the_others_decides() -> None:
    # Stages of 8, 8, 8 and 8.8, backward twice that, 16 micro-batches: 16 · 26.4 + 3 · 24 = 494.4.
    layers = LayerSet(
        "four",
        (LayerType("body", "BODY", 4, 8.0, 16.0, 0.0, NONE), LayerType("tail", "TAIL", 1, 0.8, 1.6, 0.0, NONE)),
    )
    problem = problem_of(layers, 4, 16)
    assert problem.makespan(np.ones((1, 1, 4), dtype=np.int64)) == pytest.approx(494.4)


def test_backward_time_of_the_file_is_the_one_that_is_played() -> None:
    layers = read_layers(
        {
            "layers_description": [
                {"name": "body", "type": "BODY", "nb_layer": 8, "forward_time": 100, "backward_time": 150}
            ]
        },
        "file",
    )
    # Two layers a stage: (200 + 300) · (8 + 3).
    assert balance(problem_of(layers, 4, 8)).makespan == pytest.approx(5500)


def test_less_memory_order_refuses_micro_batches_it_cannot_deal() -> None:
    layers = LayerSet("eight", (LayerType("body", "BODY", 8, 1.0, 2.0, 0.0, NONE),))
    with pytest.raises(InputError, match="9 micro-batches"):
        balance(problem_of(layers, 4, 9, 2, schedule="interleaved-less-memory"))


def test_fewer_layers_than_chunks_leave_some_chunks_empty() -> None:
    layers = LayerSet("five", (LayerType("body", "BODY", 5, 1.0, 2.0, 1.0, {"none": Strategy(1.0)}),))
    plan = balance(problem_of(layers, 4, 8, 2))
    assert sum(map(sum, plan.layers)) == 5
    assert min(min(row) for row in plan.layers) == 0


def test_recompute_of_the_second_type_counts_when_the_first_has_none() -> None:
    layers = LayerSet(
        "two",
        (
            LayerType("dense", "BODY", 2, 1.0, 2.0, 0.0, {"none": Strategy(0.0)}),
            LayerType("experts", "BODY", 4, 1.0, 2.0, 0.0, {"none": Strategy(4.0), "full": Strategy(1.0, 1.0)}),
        ),
    )
    plan = balance(problem_of(layers, 2, 4, limit=8.0))
    assert plan.status != "infeasible"
    assert sum(plan.recompute["full"][0]) > 0
    assert set(plan.assignment["dense"]) == {"none"}


def test_lists_split_types_by_position() -> None:
    strategies = {"none": Strategy(2.0), "full": Strategy(1.0, 1.0)}
    layers = LayerSet(
        "towers",
        (
            LayerType("dense", "BODY", 2, 1.0, 2.0, 0.0, strategies),
            LayerType("experts", "BODY", 6, 1.0, 2.0, 0.0, strategies),
        ),
    )
    problem = problem_of(layers, 4, 8)
    counts = counts_of({"offset": [0, 0, 0, 0], "recompute": [1, 0, 0, 1]}, problem, "hand.yaml")
    # (type, strategy, place): both dense layers on stage 0, its first recomputed; of the last two experts the first.
    assert counts[0].tolist() == [[1, 0, 0, 0], [1, 0, 0, 0]]
    assert counts[1].tolist() == [[0, 2, 2, 1], [0, 0, 0, 1]]


def test_sequence_slices_need_no_training_file(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["ppb", "-m", "sequence_pipe_16", "-s", "4", "-mb", "8", "-seq", "2", "-O", "0", "-t", "5", "--json"]
    assert main([*arguments, "-mem", "200000"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["schedule"] == "seq1f1b"
    # Played again from its own document it takes as long.
    again = play(given_of(plan, "plan.json"))
    assert again.makespan == pytest.approx(plan["makespan"])


def test_layers_are_found_by_a_relative_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.json").write_text(
        json.dumps({"layers_description": [{"name": "body", "type": "BODY", "nb_layer": 4, "time": 1}]})
    )
    monkeypatch.chdir(tmp_path)
    assert main(["ppb", "-m", "mine.json", "-s", "2", "-mb", "4", "-O", "0"]) == 0
    assert "makespan" in capsys.readouterr().out


def test_limit_in_time_is_told_with_its_gap(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["ppb", "-m", "llama2_70b", "-s", "16", "-mb", "32", "-i", "2", "-t", "2", "-O", "0", "--json"]
    assert main(arguments) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["status"] == "feasible"
    assert 0 < plan["gap"] == pytest.approx(plan["makespan"] / plan["lower_bound"] - 1)


def test_building_a_problem_twice_leaves_the_layers_alone() -> None:
    layers = load_layers("sequence_pipe_16")
    before = layers.of_role("BODY")[0]
    for _ in range(2):
        problem = BalanceProblem(layers, 4, 8, 1, "seq1f1b", (1e9,) * 4, splits=2)
        _ = problem.costs
    assert layers.of_role("BODY")[0] == before
