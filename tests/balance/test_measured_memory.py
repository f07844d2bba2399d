"""Layer memories from measured stages, the runs that determine them, and the command that uses both."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from paraplan.balance import load_layers
from paraplan.balance.measured import decompose, proposed_runs, read_dry_runs, with_memories
from paraplan.cli import main
from paraplan.foundation.errors import InputError

CASES = json.loads((Path(__file__).parents[1] / "data" / "memory_cases.json").read_text())["cases"]
NAMES = {"activation": "none"}


def document_of(case: dict[str, Any]) -> dict[str, Any]:
    """The case as the file that -init reads."""
    if "init" in case:
        return dict(case["init"])
    stages = case["pipeline_num"]
    measured = {one["stage"]: one for one in case["stages"]}
    full = [measured.get(s, {}).get("full", 0) for s in range(stages)]
    comm = [measured.get(s, {}).get("comm_only", 0) + full[s] for s in range(stages)]
    inner = [s for s in measured if 0 < s < stages - 1]
    return {
        "pipeline_config": {"pipeline_num": stages, "num_layer": case["num_layer"], "offset": case["offset"]},
        "recompute_config": {"recompute": full, "select_recompute": full, "select_comm_recompute": comm},
        "memory_usage": {
            "head_memory": measured[0]["memory_mib"],
            "tail_memory": measured[stages - 1]["memory_mib"],
            "body_memories": {"stage_id": inner, "memories": [measured[s]["memory_mib"] for s in inner]},
        },
    }


def written(tmp_path: Path, document: object) -> Path:
    path = tmp_path / "init.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_recorded_decompositions_are_found(case: dict[str, Any], tmp_path: Path) -> None:
    found = decompose(read_dry_runs(written(tmp_path, document_of(case))), "init.yaml")
    # The record gives whole parts, cut off, and lets the ends hold the constant.
    ours = {"parameter": found.parameter, "head": found.head + found.constant, "tail": found.tail + found.constant}
    ours |= {"constant": found.constant, **found.kept}
    for name, expected in case["expected_mib"].items():
        assert ours[NAMES.get(name, name)] == pytest.approx(expected, abs=1.01), name


def test_measured_stages_come_out_of_the_layers_again(tmp_path: Path) -> None:
    # The predecessor adds the constant twice on the first and last stage (75,801 for 77,698 MiB measured).
    case = next(case for case in CASES if case["name"] == "with a constant per stage")
    runs = read_dry_runs(written(tmp_path, document_of(case)))
    found = decompose(runs, "init.yaml")
    held = runs.held[0][0] * found.parameter
    kept = sum(16 * runs.strategies[0][name][0] * found.kept[name] for name in found.kept)
    assert held + kept + found.head + found.constant == pytest.approx(77_698, abs=0.5)


def test_proposed_runs_determine_every_memory(tmp_path: Path) -> None:
    truth = {"parameter": 1500.0, "none": 900.0, "select": 700.0, "comm": 600.0, "both": 450.0, "full": 40.0}
    for stages, layers in ((16, 96), (8, 40), (4, 48)):
        proposed = proposed_runs(stages, layers, tuple(truth)[1:])
        document: dict[str, Any] = {
            "pipeline_config": {
                "pipeline_num": stages,
                "num_layer": layers,
                "offset": [run["offset"] for run in proposed],
            },
            "recompute_config": {
                name: [run[name] for run in proposed]
                for name in ("recompute", "select_recompute", "select_comm_recompute")
            },
            "memory_usage": {"head_memory": 0.0, "tail_memory": 0.0, "body_memories": {"stage_id": [], "memories": []}},
        }
        usage = document["memory_usage"]
        usage["body_memories"] = {
            "stage_id": [list(range(1, stages - 1)) for _ in proposed],
            "memories": [[1.0] * (stages - 2) for _ in proposed],
        }
        runs = read_dry_runs(written(tmp_path, document))

        def stage_mib(run: int, stage: int, runs: Any = runs, stages: int = stages) -> float:
            kept = sum((stages - stage) * runs.strategies[run][name][stage] * truth[name] for name in tuple(truth)[1:])
            return float(runs.held[run][stage] * truth["parameter"] + kept + 800.0)

        usage["body_memories"]["memories"] = [
            [stage_mib(run, stage) for stage in range(1, stages - 1)] for run in range(len(proposed))
        ]
        usage["head_memory"], usage["tail_memory"] = stage_mib(0, 0) + 5000, stage_mib(0, stages - 1) + 2000
        found = decompose(read_dry_runs(written(tmp_path, document)), "init.yaml")
        assert found.constant == pytest.approx(800.0, rel=1e-6)
        assert (found.head, found.tail) == (pytest.approx(5000.0), pytest.approx(2000.0))
        assert {"parameter": found.parameter, **found.kept} == pytest.approx(truth, rel=1e-6)


def test_layer_file_takes_measured_memories_and_keeps_its_times(tmp_path: Path) -> None:
    found = decompose(read_dry_runs(written(tmp_path, document_of(CASES[0]))), "init.yaml")
    layers = load_layers("llama2_70b")
    changed = with_memories(layers, found)
    before, after = layers.of_role("BODY")[0], changed.of_role("BODY")[0]
    assert (after.forward, after.backward) == (before.forward, before.backward)
    assert after.parameter == pytest.approx(1562.3, abs=0.1)
    assert set(after.strategies) == {"none", "comm", "full"}
    assert after.strategies["full"].extra == before.strategies["full"].extra
    assert changed.of_role("HEAD")[0].parameter == pytest.approx(found.head)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pipeline_config": {"pipeline_num": 2, "num_layer": 4}}, "pipeline_num: 2 found, at least 3"),
        (
            {"pipeline_config": {"pipeline_num": 16, "num_layer": 96, "offset": [1] * 16}},
            r"hold 112 layers \(least 7\), 96",
        ),
        ({"recompute_config": None}, "recompute_config: missing"),
        ({"memory_usage": {"body_memories": {"stage_id": [0], "memories": [1.0]}}}, "stage_id: 0 found, 1 to 14"),
        ({"memory_usage": {"body_memories": {"stage_id": [1, 2], "memories": [1.0]}}}, "lists of the same length"),
        (
            {"memory_usage": {"head_memory": 1, "tail_memory": 1, "body_memories": {"stage_id": [1], "memories": [1]}}},
            "1 body stages do not determine 4 memories",
        ),
    ],
)
def test_wrong_measurements_are_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    document = {**document_of(CASES[0]), **change}
    with pytest.raises(InputError, match=message):
        decompose(read_dry_runs(written(tmp_path, document)), "init.yaml")


TWO_RUNS = {
    "pipeline_config": {"pipeline_num": 4, "num_layer": 8, "offset": [[0, 0, 0, 0], [1, 0, 0, -1]]},
    "recompute_config": {"recompute": [[0, 0, 0, 0], [1, 1, 1, 0]]},
}


@pytest.mark.parametrize(
    ("head", "stage_id", "memories", "message"),
    [
        (5, [[1, 2], [1, 2]], [[1, 1], [2, 2]], r"memories: they contradict each other \(stage 1 of run 0: 1, .*none"),
        # Stage 1: 2 layers, 3 in flight; stage 2: 2 layers, 2 in flight. none 10 MiB, parameter 20: stage 0 holds 120.
        (5, [[1, 2], [1, 2]], [[100, 80], [70, 60]], "head_memory: 5 found, at least 120 is needed"),
        (500, [[1.5, 2], [1, 2]], [[100, 80], [70, 60]], "stage_id: 1.5 found, a whole number"),
        (500, [[1, 2], [1, 2]], [[100, 10**400], [70, 60]], "memories: inf found, a number from 0 to"),
        (10**400, [[1, 2], [1, 2]], [[100, 80], [70, 60]], "head_memory: inf found, a number from 0 to"),
    ],
)
def test_measurements_that_cannot_be_are_refused(
    head: float, stage_id: Any, memories: Any, message: str, tmp_path: Path
) -> None:
    body = {"stage_id": stage_id, "memories": memories}
    document = {**TWO_RUNS, "memory_usage": {"head_memory": head, "tail_memory": 300, "body_memories": body}}
    with pytest.raises(InputError, match=message):
        decompose(read_dry_runs(written(tmp_path, document)), "init.yaml")


def test_guide_needs_strategies_that_lists_can_say() -> None:
    with pytest.raises(InputError, match="layers with swap found, one of none, select"):
        proposed_runs(4, 16, ["swap"])


def test_command_balances_with_measured_memories(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, document_of(CASES[0]))
    arguments = ["ppb", "-m", "llama2_70b", "-init", str(path), "-mb", "32", "-O", "0", "-t", "10", "--json"]
    assert main(arguments) == 0
    told = capsys.readouterr()
    plan = json.loads(told.out)
    assert len(plan["layers"][0]) == 16
    assert "parameter 1,562 a layer" in told.err
    assert set(plan["recompute"]) == {"none", "comm", "full"}
    assert max(plan["peak_memory_mib"]) <= 56_000


def test_guide_proposes_a_file_that_init_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ppb", "-m", "llama2_70b", "-s", "8", "--guide", "-o", str(tmp_path)]) == 0
    path = tmp_path / "dry_runs.yaml"
    assert str(path) in capsys.readouterr().out
    document = yaml.safe_load(path.read_text())
    offsets = np.array(document["pipeline_config"]["offset"])
    assert (offsets.sum(axis=1) == 0).all()
    # Unmeasured, it says what is missing.
    assert main(["ppb", "-m", "llama2_70b", "-mb", "16", "-init", str(path)]) == 2
    assert "memories" in capsys.readouterr().err


def test_training_yaml_gives_the_pipeline_and_its_plan_beside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train.yaml"
    document = {
        "parallel_config": {"pipeline_stage": 4, "micro_batch_num": 8},
        "parallel": {"pipeline_config": {"pipeline_interleave": True}},
        "model": {"model_config": {"num_layers": 40, "pp_interleave_num": 2, "offset": [[0] * 4, [0] * 4]}},
        "recompute_config": {"recompute": [[3, 2, 1, 0], [0, 0, 0, 0]]},
    }
    path.write_text(yaml.safe_dump(document))
    assert main(["ppb", "-m", "llama2_70b", "-train", str(path), "-O", "0", "-t", "10", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert np.array(plan["layers"]).shape == (2, 4)
    assert sum(map(sum, plan["layers"])) == 40
    beside = plan["compared"]["training configuration"]
    assert beside["makespan"] >= plan["lower_bound"] or not beside["fits"]


@pytest.mark.parametrize(
    ("pipeline", "schedule"),
    [
        ({}, "interleaved"),
        ({"pipeline_scheduler": "1f1b"}, "interleaved"),
        ({"pipeline_scheduler": "zero_bubble_v"}, "zb-v"),
        ({"pipeline_scheduler": "1f1b", "pipeline_less_memory": True}, "interleaved-less-memory"),
    ],
)
def test_training_yaml_gives_its_schedule(
    pipeline: dict[str, Any], schedule: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train.yaml"
    document = {
        "parallel_config": {"pipeline_stage": 2, "micro_batch_num": 4},
        "parallel": {"pipeline_config": {"pipeline_interleave": True, **pipeline}},
        "model": {"model_config": {"num_layers": 8, "pp_interleave_num": 2}},
    }
    path.write_text(yaml.safe_dump(document))
    arguments = ["ppb", "-m", "llama2_70b", "-train", str(path), "-O", "0", "-mem", "1e9", "-t", "5", "--json"]
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out)["schedule"] == schedule
    # Flags win.
    assert main([*arguments, "--schedule", "interleaved"]) == 0
    assert json.loads(capsys.readouterr().out)["schedule"] == "interleaved"


@pytest.mark.parametrize(
    ("section", "values", "message"),
    [
        ("parallel_config", {}, "parallel_config.pipeline_stage: missing"),
        ("parallel_config", {"pipeline_stage": 2}, "parallel_config.micro_batch_num: missing"),
        ("model", {"model_config": {"num_layers": 0}}, "num_layers: 0 found, a whole number of at least 1"),
        ("parallel", {"pipeline_config": {"pipeline_scheduler": "x"}}, "pipeline_scheduler: 'x' found, one of gpipe"),
        ("parallel", {"pipeline_config": {"pipeline_scheduler": "zero_bubble_v"}}, "with 1 chunks a stage, 2"),
        ("parallel", {"pipeline_config": {"pipeline_less_memory": True}}, "interleaved 1f1b is needed with it"),
    ],
)
def test_training_yaml_that_does_not_say_is_refused(
    section: str, values: dict[str, Any], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train.yaml"
    path.write_text(yaml.safe_dump({"parallel_config": {"pipeline_stage": 2, "micro_batch_num": 4}, section: values}))
    assert main(["ppb", "-m", "llama2_70b", "-train", str(path)]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"{path}: ") and message in told


def test_fix_file_and_lists_for_every_stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fixed = tmp_path / "fix.yaml"
    fixed.write_text(
        "offset: [1, 0, 0, -1]\nforbidden: [{strategy: full, stage: 3}]\nslowness: [1, 1, 1, 1.1]\n"
        "memory_limit_mib: [60000, 56000, 56000, 50000]\n"
    )
    arguments = ["ppb", "-m", "llama2_70b", "-s", "4", "-mb", "8", "-O", "0", "-t", "10", "--json"]
    assert main([*arguments, "--fix", str(fixed), "--movable-nothing"]) == 2
    capsys.readouterr()
    assert main([*arguments, "--fix", str(fixed)]) in (0, 1)
    plan = json.loads(capsys.readouterr().out)
    if plan["status"] != "infeasible":
        assert plan["offset"] == [[1, 0, 0, -1]]
        assert plan["recompute"]["full"][0][3] == 0
    assert plan["problem"]["memory_limit_mib"] == [60000.0, 56000.0, 56000.0, 50000.0]
    fixed.write_text("ofset: [1, 0, 0, -1]\n")
    assert main([*arguments, "--fix", str(fixed)]) == 2
    assert "ofset: unknown key; did you mean 'offset'?" in capsys.readouterr().err
    assert main([*arguments, "-mem", "58GB,1"]) == 2
    assert "2 numbers found, one for each of the 4 stages" in capsys.readouterr().err
    assert main([*arguments, "-mem", "much"]) == 2
    assert "a size with its unit" in capsys.readouterr().err
