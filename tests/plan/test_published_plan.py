"""A ``plan.json`` is checked once, where it is read: one line with the field, whatever is wrong."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from paraplan.cli import main

NONE = {"none": [[4, 4]]}


def plan_json() -> dict[str, Any]:
    layers = [
        {"name": name, "type": role, "nb_layer": count, "time": 1.0, "memory_parameter": 1.0}
        for name, role, count in (("embedding", "HEAD", 1), ("dense", "BODY", 8), ("head", "TAIL", 1))
    ]
    degrees = {"dp": 4, "tp": 2, "cp": 1, "ep": 1, "etp": 2, "pp": 2, "vpp": 1, "mbs": 1, "mb": 8}
    return {
        "training": {"global_batch": 32, "sequence_length": 4096, "precision": "bf16"},
        "plans": [
            {
                "parallel": {**degrees, "sp": 1, "zero_stage": 1, "op": 4},
                "pipeline": {
                    "schedule": "1f1b",
                    "layers": [[4, 4]],
                    "recompute": NONE,
                    "assignment": {"dense": NONE},
                    "problem": {
                        "layers": {"name": "x", "layers_description": layers},
                        "stages": 2,
                        "micro_batches": 8,
                        "interleave": 1,
                        "schedule": "1f1b",
                    },
                },
            }
        ],
    }


def changed(place: str, value: Any) -> dict[str, Any]:
    """A good document with one value replaced."""
    document = inner = plan_json()
    *path, last = (int(key) if key.isdigit() else key for key in place.split("."))
    for key in path:
        inner = inner[key]  # type: ignore[index]
    inner[last] = value  # type: ignore[index]
    return document


def refusal(capsys: pytest.CaptureFixture[str], path: Path, *arguments: str) -> str:
    assert main([*arguments[:1], str(path), *arguments[1:]]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith(f"{path}")
    return captured.err.removeprefix(f"{path}")


COMMANDS = (("export", "--to", "megatron"), ("simulate",))
LAYOUT, PIPELINE = "plans.0.parallel", "plans.0.pipeline"
DEGREES = ("dp", "tp", "cp", "ep", "etp", "pp", "vpp", "mbs", "mb", "op")
NO_NUMBERS: Sequence[Any] = ("4", None, [1], {}, True, -1, 0, 1.5, float("nan"), 10**19, 10**400)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_good_plan_is_taken(capsys: pytest.CaptureFixture[str], tmp_path: Path, command: tuple[str, ...]) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan_json()))
    assert main([command[0], str(path), *command[1:]]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("place", "value", "field"),
    [
        *[(f"{LAYOUT}.{name}", value, f"{LAYOUT}.{name}") for name in DEGREES for value in NO_NUMBERS],
        *[(f"{LAYOUT}.{name}", value, f"{LAYOUT}.{name}") for name in ("zero_stage", "sp") for value in ("1", 1.5, 4)],
        *[(f"training.{name}", value, name) for name in ("global_batch", "sequence_length") for value in NO_NUMBERS],
        *[("training.precision", value, "training.precision: ") for value in ([], None, "bf17")],
        *[(f"{PIPELINE}.layers", value, f"{PIPELINE}.layers") for value in (
            [], [[]], None, 8, "44", [[float("inf"), 1]], [[1.5, 2.5]], [[9, -1]], [["4", 4]], [[4, 4], [4, 4]], [[8]],
            [[4, 4, 0]], [[10**400, 4]], [[10**7, 4]],
        )],
        *[(f"{PIPELINE}.recompute", value, f"{PIPELINE}.recompute") for value in (
            {}, [], None, {"none": []}, {"none": [[4, 3]]}, {"none": [[4, 4]], "full": [[0, 1]]}, {"none": [[4], [4]]},
        )],
        *[(f"{PIPELINE}.assignment", value, f"{PIPELINE}.assignment.") for value in (
            {"embedding": {}}, {"head": {"none": []}}, {"head": {"none": [[0, 0]]}}, {"head": {"none": [[1, 1]]}},
            {"mtp": {"none": [[0, 1]]}}, {"dense": {"none": [[8]]}}, {"dense": 8},
        )],
        (f"{PIPELINE}.problem", [], f"{PIPELINE}.problem"),
        (f"{PIPELINE}.problem.layers.layers_description.0.nb_layer", 10**400, "layers_description.0.nb_layer"),
        (f"{PIPELINE}.schedule", "zb-v", f"{PIPELINE}.schedule zb-v: 1 chunks a stage found"),
        (f"{PIPELINE}.schedule", "fast", f"{PIPELINE}.schedule: 'fast' found"),
        (PIPELINE, [1], f"{PIPELINE}: [1] found, a mapping is needed"),
        ("plans.0", None, "plans.0: None found, a mapping is needed"),
        ("plans.0", {}, f"{LAYOUT}: missing"),
        ("plans", None, "plans: None found"),
        ("plans", [], "plans: [] found"),
        ("plans", 3, "plans: 3 found"),
        ("training", [], "training: [] found, a mapping is needed"),
    ],
)  # fmt: skip
def test_wrong_value_is_refused_by_name(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, place: str, value: Any, field: str
) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(changed(place, value)))
    for command in COMMANDS:
        assert field in refusal(capsys, path, *command)


def test_what_a_framework_cannot_run_is_refused_with_the_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(changed(f"{PIPELINE}.assignment", {"dense": NONE, "head": {"none": [[1, 0]]}})))
    assert "movable head: Megatron-LM keeps the loss" in refusal(capsys, path, "export", "--to", "megatron")
    assert "--to: 'keras' found" in refusal(capsys, path, "export", "--to", "keras")


def test_rank_beyond_the_last_plan_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan_json()))
    assert "--rank: 2 found, 1 to 1 is allowed" in refusal(capsys, path, "export", "--to", "megatron", "--rank", "2")


def test_what_is_no_plan_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    for text, message in (("{}", "plans: missing"), ("null", "nothing found"), ("[1]", "list found")):
        path.write_text(text)
        assert message in refusal(capsys, path, "export", "--to", "megatron")
