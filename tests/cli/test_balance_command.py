"""What ``paraplan ppb`` refuses, what it writes and when it ends."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paraplan.cli import main

LAYERS = {
    "layers_description": [
        {"name": "emb", "type": "HEAD", "time": 1, "memory_parameter": 10},
        {
            "name": "body", "type": "BODY", "nb_layer": 8, "time": 10, "memory_parameter": 5, "memory_activation": 4,
            "memory_recompute": 1,
        },
        {"name": "tail", "type": "TAIL", "time": 5, "memory_parameter": 7},
    ]
}  # fmt: skip
COMMAND = [sys.executable, "-m", "paraplan.cli"]


@pytest.fixture
def small(tmp_path: Path) -> list[str]:
    """A small balancing; later flags win."""
    path = tmp_path / "base.json"
    path.write_text(json.dumps(LAYERS))
    return ["ppb", "-m", str(path), "-s", "4", "-mb", "8", "-mem", "60", "-t", "5"]


def told(capsys: pytest.CaptureFixture[str], arguments: list[str], status: int = 2) -> str:
    assert main(arguments) == status
    captured = capsys.readouterr()
    if status == 2:
        assert captured.out == ""
        assert captured.err.count("\n") == 1
    return captured.out + captured.err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("-dual -i 4", "-i: 4 found, dualpipe-v has 2 chunks"),
        ("--schedule zb-v -i 4", "-i: 4 found, zb-v has 2 chunks"),
        ("-dual --schedule 1f1b", "-dual: found with --schedule 1f1b"),
        ("-dual --schedule auto", "-dual: found with --schedule auto"),
        ("-lm 1", "-lm 1: found with one chunk"),
        ("-lm 1 -dual", "-lm 1: found with -dual"),
        ("-lm 1 -i 2 --schedule auto", "-lm 1: found with --schedule auto"),
        ("-auto -init x", "-auto: found with -init"),
        ("-exec false", "-exec false: found without -dump"),
        ("--p2p 1e300", "--p2p: 1e+300 found"),
        ("--slowness 1e300", "--slowness: 1e+300 found"),
        ("--slowness 1e-300", "at least 1e-15 and"),
        ("--slowness 1,1,1,1e-15", "1e-15 to 20 found"),
        ("-mc 1e300", "-mc: 1e+300 found"),
        ("-lf /nowhere", "-lf: '/nowhere' found, an existing folder"),
        ("-dump -exec false -o /proc/x", "/proc/x: cannot be made"),
    ],
)
def test_flags_that_cannot_be_followed_are_refused(
    flags: str, message: str, small: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in told(capsys, [*small, *flags.split()])


@pytest.mark.parametrize(
    ("fixed", "message"),
    [
        ("offset: [0, 0, 0, 0]\npins: [{layer: body, index: 0, stage: 3}]", "offset and pins: they contradict"),
        ("recompute: [9, 0, 0, 0]", "recompute: 9 found, 8 layers are there"),
        ("slowness: [1, 1, 1, " + "9" * 400 + "]", "slowness: inf"),
        ("memory_limit_mib: " + "9" * 400, "memory_limit_mib: inf"),
    ],
)
def test_file_of_what_is_fixed_is_named_with_its_field(
    fixed: str, message: str, small: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "fix.yaml"
    path.write_text(fixed)
    assert told(capsys, [*small, "--fix", str(path)]).startswith(f"{path}: {message}")


def test_equal_chunks_and_an_offset_are_refused(
    small: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "fix.yaml"
    path.write_text("offset: [1, 0, 0, -1]")
    assert "--equal-chunks: found with" in told(capsys, [*small, "--fix", str(path), "--equal-chunks"])


def test_output_that_is_a_file_is_refused(small: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert "a file stands in the way, a folder is needed" in told(capsys, [*small, "-dump", "-o", small[2]])


def test_layer_folder_wins_over_the_current_one(
    small: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "base.json").write_text("{}")
    monkeypatch.chdir(tmp_path / "here")
    arguments = ["ppb", "-m", "base", *small[3:]]
    assert "makespan" in told(capsys, [*arguments, "-lf", ".."], 0)
    assert "a folder with other or other.json is needed" in told(
        capsys, ["ppb", "-m", "other", *small[3:], "-lf", ".."]
    )


def test_run_without_a_plan_leaves_no_plan_of_an_earlier_one(
    small: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "st"
    told(capsys, [*small, "-o", str(folder)], 0)
    assert len(list(folder.iterdir())) == 3
    told(capsys, [*small, "-o", str(folder), "-mem", "6"], 1)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("unit", [1e-12, 1e-6, 1e12])
def test_unit_of_time_does_not_matter(
    unit: float, small: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    layers = [{**one, "time": float(str(one["time"])) * unit} for one in LAYERS["layers_description"]]
    (tmp_path / "unit.json").write_text(json.dumps({"layers_description": layers}))
    plain = json.loads(told(capsys, [*small, "--json"], 0))
    plan = json.loads(told(capsys, ["ppb", "-m", str(tmp_path / "unit.json"), *small[3:], "--json"], 0))
    assert plan["status"] == plain["status"] == "optimal"
    assert plan["makespan"] == pytest.approx(plain["makespan"] * unit)
    assert plan["lower_bound"] == pytest.approx(plain["lower_bound"] * unit)


def test_full_disk_is_one_line(small: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*COMMAND, *small], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "standard output: No space left on device\n"


@pytest.mark.parametrize("after", [0.05, 4.0])
def test_interrupted_run_ends_at_once(after: float) -> None:
    arguments = ["ppb", "-m", "llama2_70b", "-s", "16", "-mb", "32", "-i", "2", "-t", "60", "-O", "2"]
    interrupted = (
        "import os, signal, sys, threading; from paraplan.cli import main;"
        f"threading.Timer({after}, os.kill, (os.getpid(), signal.SIGINT)).start(); sys.exit(main({arguments}))"
    )
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", interrupted], capture_output=True, text=True, check=False)
    assert done.returncode == 130
    assert done.stderr == "stopped\n"
    assert time.monotonic() - began < after + 5


def test_time_limit_holds_on_a_long_pipeline(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["ppb", "-m", "llama2_70b", "-s", "32", "-mb", "64", "-i", "3", "-O", "2", "--json"]
    main([*arguments, "-t", "1"])
    capsys.readouterr()
    # What is compiled once is compiled now.
    assert json.loads(told(capsys, [*arguments, "-t", "3"], 0))["seconds"] < 8
