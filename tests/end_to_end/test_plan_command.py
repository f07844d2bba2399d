"""``python -m flows.plan`` as a user runs it, in processes of its own."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flows.environment import PROJECT, defaults

pytestmark = [pytest.mark.flow, pytest.mark.slow, pytest.mark.xdist_group("prefect")]


def environment(state: Path) -> dict[str, str]:
    """The environment of a user who has set nothing; state in a folder of the test."""
    inherited = {key: value for key, value in os.environ.items() if key not in defaults() and key != "PREFECT_API_URL"}
    path = os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")]))
    return {**inherited, "PARAPLAN_STATE": str(state), "PYTHONPATH": path}


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "flows.plan", *map(str, arguments)]


def run(state: Path, *arguments: object, cwd: Path | None = None) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command(*arguments),
        cwd=cwd or state.parent,
        env=environment(state),
        capture_output=True,
        text=True,
        timeout=300,
    )


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def servers_of(state: Path) -> list[str]:
    """Server processes that were started for the state folder of a test."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            started_for_test = f"PARAPLAN_STATE={state}".encode() in (entry / "environ").read_bytes().split(b"\0")
            if started_for_test and b"flows.server_process" in (entry / "cmdline").read_bytes():
                found.append(entry.name)
        except OSError:
            continue
    return found


def test_plan_killed_at_any_point_leaves_nothing_that_changes_the_next_answer(
    small_plan: Path, tmp_path: Path, prefect_server: str
) -> None:
    undisturbed = run(tmp_path / "calm", small_plan, "-o", tmp_path / "undisturbed")
    assert undisturbed.returncode == 0, undisturbed.stderr
    expected = files(tmp_path / "undisturbed")
    assert "Traceback" not in undisturbed.stderr
    assert "rank | layout" in undisturbed.stdout
    assert str(tmp_path / "undisturbed" / "plan.json") in undisturbed.stdout

    # The killed runs share the session's server, which saves them starting one each.
    disturbed = {**environment(tmp_path / "disturbed"), "PREFECT_API_URL": prefect_server}
    for message in (
        "Beginning flow run",
        "fit in memory",
        "balance",
        "Task run 'report",
        "Finished in state Completed(",
    ):
        process = subprocess.Popen(
            command(small_plan, "-o", tmp_path / "out", "--no-cache"),
            cwd=tmp_path,
            env=disturbed,
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        assert process.stderr is not None
        for line in process.stderr:
            if message in line:
                break
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stderr.close()
    again = run(tmp_path / "disturbed", small_plan, "-o", tmp_path / "out")
    assert again.returncode == 0, again.stderr
    assert files(tmp_path / "out") == expected

    deadline = time.monotonic() + 20
    while servers_of(tmp_path / "disturbed") and time.monotonic() < deadline:
        time.sleep(0.2)
    assert servers_of(tmp_path / "disturbed") == []
    assert servers_of(tmp_path / "calm") == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, r"config\.yaml: no such file"),
        ("model: [\n", r"config\.yaml:2: YAML syntax: .*"),
        ("modell: llama3-8b\n", r"config\.yaml.*: modell: unknown key; did you mean 'model'\?"),
    ],
)
def test_plan_refuses_bad_input_with_one_line_and_status_2(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "config.yaml"
    if text is not None:
        path.write_text(text)
    done = run(tmp_path / "state", path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert re.fullmatch(rf".*{message}\n", done.stderr), done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--top", "0"], "argument --top: 0 found, at least 1 is needed; see .*"),
        (["--top", "x"], "argument --top: invalid positive value: 'x'; see .*"),
        (["--nope"], "unrecognized arguments: --nope; see .*"),
        (["-o", "/dev/null/plan"], "/dev/null/plan: a file stands in the way, a folder is needed"),
    ],
)
def test_plan_refuses_wrong_arguments_with_one_line(
    small_plan: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    done = run(tmp_path / "state", small_plan, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(rf"(python -m flows\.plan: )?{message}\n", done.stderr), done.stderr


def test_plan_refuses_a_state_folder_it_cannot_write(small_plan: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run(tmp_path / "file" / "state", small_plan, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == f"{tmp_path / 'file' / 'state'}: a file stands in the way, a folder is needed\n"


def test_plan_stopped_by_an_interrupt_ends_at_once_and_keeps_what_is_finished(tmp_path: Path) -> None:
    path = tmp_path / "hard.yaml"
    # The bounds of this one stay apart for minutes.
    path.write_text("""\
model: llama3-70b
cluster: {device: h100-80gb-sxm, devices: 64}
training: {sequence_length: 4096, global_batch: 128}
search: {tp: 4, pp: 8, vpp: 2, top: 2}
balance: {time_limit_s: 60, effort: 2}
""")
    process = subprocess.Popen(
        command(path), cwd=tmp_path, env=environment(tmp_path / "state"), stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "Task run 'select" in line and "Finished" in line:
            break
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    _, rest = process.communicate(timeout=20)
    assert process.returncode == 130
    assert rest.endswith("stopped; finished steps are kept and the next run goes on from there\n")
    assert "Error logging to API" not in rest
    assert "Traceback" not in rest
    kept = {entry.name for entry in (tmp_path / "state" / "cache").iterdir()}
    assert {"enumerate", "memory", "performance", "select"} <= kept
    assert "balance" not in kept
    assert servers_of(tmp_path / "state") == []
