"""What `paraplan simulate` and the hand-written plans of `paraplan ppb` accept, and how they refuse the rest."""

import json
from pathlib import Path

import pytest

from paraplan.cli import main

LAYERS = {
    "layers_description": [
        {"name": "emb", "type": "HEAD", "time": 1, "memory_parameter": 10},
        {"name": "body", "type": "BODY", "nb_layer": 8, "time": 10, "memory_activation": 4, "memory_recompute": 1},
        {"name": "tail", "type": "TAIL", "time": 5, "memory_parameter": 7},
    ]
}
PLAN = "layers: base.json\nstages: 4\nmicro_batches: 8\n"
PPB = ("ppb", "-m", "base.json", "-s", "4", "-mb", "8", "-O", "0", "-t", "2")


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("base.json").write_text(json.dumps(LAYERS))


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("p2p: .nan", "p2p: nan found"),
        ("p2p: .inf", "p2p: inf found"),
        ("p2p: '3'", "p2p: '3' found"),
        (f"p2p: {10**400}", "p2p: inf found"),
        ("slownes: 3", "slownes: unknown key; did you mean 'slowness'?"),
        ("offst: 3", "offst: unknown key; did you mean 'offset'?"),
        ("slowness: .inf", "slowness: inf found, a finite number above 0 is needed"),
        ("slowness: 0", "slowness: 0 found, a finite number above 0 is needed"),
        ("slowness: [1, 1, 1, .nan]", "slowness: nan found"),
        ("constant_mib: .inf", "constant_mib: inf found, a finite number is needed"),
        (f"constant_mib: {10**400}", "constant_mib: inf found"),
        ("memory_limit_mib: .nan", "memory_limit_mib: nan found"),
        ("batched: 'no'", "batched: 'no' found"),
        ("batched: [1]", "batched: [1] found"),
        ("batched: true\nschedule: gpipe", "batched: schedule 'gpipe' found, exchanges in batches need 1f1b or inter"),
        ("interleave: 100000000000000000000", "interleave: 1e+20 found"),
        ("schedule: ''", "schedule: '' found, one of 1f1b"),
        ("problem: 3", "problem: 3 found, a mapping is needed"),
        ("assignment: 3", "assignment: 3 found, a mapping"),
        ("movable: [x]", "movable: 'x' found, one of emb, tail is needed"),
    ],
)
def test_wrong_field_of_a_hand_written_plan_is_named(
    capsys: pytest.CaptureFixture[str], line: str, message: str
) -> None:
    Path("x.yaml").write_text(f"{PLAN}{line}\n")
    assert refused(capsys, "simulate", "x.yaml", "--json").startswith(f"x.yaml: {message}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--rank", "5"), "x.yaml: plans: missing, a plan of rank 5"),
        (("--schedule", "zb-v"), "x.yaml: schedule zb-v: 1 chunks a stage found, 2 are needed"),
        (("--schedule", "zb-w"), "--schedule: 'zb-w' found, one of 1f1b"),
    ],
)
def test_option_that_does_not_suit_the_plan_is_refused(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    Path("x.yaml").write_text(PLAN)
    assert refused(capsys, "simulate", "x.yaml", *arguments).startswith(message)


def test_wrong_field_of_a_plan_of_ours_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    Path("x.yaml").write_text(PLAN)
    assert main(["simulate", "x.yaml", "-o", "out"]) == 0
    plan = json.loads(Path("out/pipeline.json").read_text())
    assert plan["problem"]["memory_limit_mib"] == [None] * 4
    assert main(["simulate", "out/pipeline.json"]) == 0
    capsys.readouterr()
    Path("p.json").write_text(json.dumps({**plan, "problem": {**plan["problem"], "p2q": 3}}))
    assert "p.json: problem: p2q: unknown key; did you mean 'p2p'?" in refused(capsys, "simulate", "p.json")
    Path("p.json").write_text(json.dumps({**plan, "assignmnt": 3}))
    assert "p.json: assignmnt: unknown key; did you mean 'assignment'?" in refused(capsys, "simulate", "p.json")


def test_stages_over_the_limit_are_told_with_what_they_miss(capsys: pytest.CaptureFixture[str]) -> None:
    # Stage s holds 2 layers · (4 - s) micro-batches · 4 MiB, the ends 10 and 7 MiB: 42, 24, 16, 15.
    Path("x.yaml").write_text(PLAN + "memory_limit_mib: 20\n")
    assert main(["simulate", "x.yaml"]) == 0
    assert "over the memory limit: stage 0 by 22.0 MiB, stage 1 by 4.0 MiB\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: {offst: [0, 0, 0, 0]}", "x.yaml: a: offst: unknown key; did you mean 'offset'?"),
        ("{offset: [0, 0, 0, 0], b: 3}", "x.yaml: b: unknown key"),
        ("a: null", "x.yaml: a: None found, a mapping"),
        ("a: {offset: [0, 0, 0, 0], memory_limit_mib: 5}", "x.yaml: a: memory_limit_mib: unknown key"),
        ("a: {offset: [1, 0, 0, 0]}", "x.yaml: a: offset: sums to 1"),
        ("3", "x.yaml: 3 found, a mapping of plans is needed"),
    ],
)
def test_wrong_manual_plan_is_refused_before_balancing(
    capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    Path("x.yaml").write_text(text)
    # The program is written before it is solved.
    dumped = ("-dump", "-o", "out")
    assert refused(capsys, *PPB, *dumped, "-manual", "x.yaml").startswith(message)
    assert refused(capsys, *PPB, *dumped, "-manual", "none.yaml") == "none.yaml: no such file\n"
    assert not Path("out").exists()


def test_lists_of_a_training_file_are_checked_before_balancing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("t.yaml").write_text("model: {model_config: {num_layers: 8, offset: [1, 1, 1, 1]}}\n")
    assert "t.yaml: offset: sums to 4, 0 is needed" in refused(capsys, *PPB, "-dump", "-o", "out", "-train", "t.yaml")
    assert not Path("out").exists()


def test_one_assignment_alone_is_a_manual_plan(capsys: pytest.CaptureFixture[str]) -> None:
    Path("x.yaml").write_text("assignment: {body: {none: [[2, 2, 2, 2]]}}")
    assert main([*PPB, "-manual", "x.yaml"]) == 0
    assert "manual: makespan" in capsys.readouterr().out


def test_batched_exchanges_are_balanced_and_played_alike_or_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for schedule in ("zb-h1", "zb-h2", "gpipe", "zb-v", "dualpipe-v"):
        message = f"batched: schedule '{schedule}' found"
        assert message in refused(capsys, *PPB, "--batched", "--p2p", "3", "--schedule", schedule)
    assert main([*PPB, "--batched", "--p2p", "3", "--schedule", "auto", "-o", "out", "--json"]) == 0
    balanced = json.loads(capsys.readouterr().out)
    assert balanced["schedule"] == "1f1b"
    assert main(["simulate", "out/pipeline.json", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["makespan"] == balanced["makespan"]


def test_layers_that_take_no_time_are_compared_with_even_chunks(capsys: pytest.CaptureFixture[str]) -> None:
    body = {"name": "body", "type": "BODY", "nb_layer": 8, "time": 0}
    Path("base.json").write_text(json.dumps({"layers_description": [body]}))
    assert main([*PPB, "-naive"]) == 0
    assert "even, strategies that keep least: makespan 0\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{\n,", "folder/bad.json:2: JSON syntax"),
        ('{"name": "a", "name": "b"}', "folder/bad.json: JSON: key 'name' is given twice"),
        ('{"name": ' + 5000 * "1" + "}", "folder/bad.json: layers_description: missing"),
    ],
)
def test_layer_file_that_is_no_json_is_named_with_its_folder(
    capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    Path("folder").mkdir()
    Path("folder/bad.json").write_text(text)
    assert refused(capsys, "ppb", "-m", "folder/bad.json", *PPB[3:]).startswith(message)


@pytest.mark.parametrize("name", ["", "/", 300 * "x"])
def test_name_that_no_layer_file_can_have_is_refused(capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert refused(capsys, "ppb", "-m", name, *PPB[3:]).startswith(f"layers: {name!r} found, a layer file or one of")
    Path("x.yaml").write_text(PLAN.replace("base.json", f"'{name}'"))
    assert refused(capsys, "simulate", "x.yaml").startswith(f"x.yaml: layers: {name!r} found, a layer file or one of")


def test_infeasible_plan_is_not_played(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*PPB, "-mem", "1", "--json"]) == 1
    Path("p.json").write_text(capsys.readouterr().out)
    assert refused(capsys, "simulate", "p.json").startswith("p.json: status: 'infeasible' found")
