import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import State

from flows.output import FILES
from flows.plan import plan
from flows.server import wait_until_recorded

pytestmark = [
    pytest.mark.flow,
    pytest.mark.xdist_group("prefect"),
    pytest.mark.usefixtures("prefect_server", "fresh_cache"),
]

STEPS = ["load", "enumerate", "memory", "performance", "select", "balance", "balance", "simulate", "simulate"]
STEPS += ["rank", "report"]


def run(config: Path, output: Path, **more: Any) -> State[Any]:
    return plan(str(config), str(output), return_state=True, **more)


def states(state: State[Any]) -> Counter[tuple[str, str]]:
    """Step and final state of every task run, as the server recorded them."""
    flow_run_id = state.state_details.flow_run_id
    assert flow_run_id is not None
    assert wait_until_recorded(flow_run_id)
    with get_client(sync_client=True) as client:
        runs = client.read_task_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[flow_run_id])))
    return Counter((run.task_key.split("-")[0].rpartition(".")[2], run.state.name) for run in runs if run.state)


def artifacts(state: State[Any]) -> dict[str, str]:
    with get_client(sync_client=True) as client:
        filtered = FlowRunFilter(id=FlowRunFilterId(any_=[state.state_details.flow_run_id]))  # type: ignore[list-item]
        return {str(one.key): str(one.data) for one in client.read_artifacts(flow_run_filter=filtered)}


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_plan_computes_once_and_then_only_what_changed(small_plan: Path, tmp_path: Path) -> None:
    first = run(small_plan, tmp_path / "out")
    assert first.is_completed(), first.message
    assert {name for _, name in states(first)} == {"Completed"}
    assert sum(states(first).values()) == len(STEPS)
    written = files(tmp_path / "out")
    assert set(FILES) < set(written)
    assert sum(name.endswith("/timeline.svg") for name in written) == 2

    # Nothing changed, but for the layout of the file: nothing is computed, the files and artifacts are the same.
    small_plan.write_text("# a comment\n" + small_plan.read_text().replace("{device:", "{  device:"))
    second = run(small_plan, tmp_path / "out")
    assert {name for _, name in states(second)} == {"Cached"}
    assert files(tmp_path / "out") == written
    assert artifacts(second) == artifacts(first)
    # Markdown as such, with real line breaks.
    assert artifacts(second)["small-report"].startswith("# llama3-8b")
    assert "\n| rank | layout" in artifacts(second)["small-report"]
    assert "data:image/png;base64," in artifacts(second)["small-report"]
    assert "data:image/svg+xml;base64," in artifacts(second)["small-timeline-1"]

    # One layout more: what does not depend on it stays, and only the new layout is balanced and simulated.
    third = run(small_plan, tmp_path / "three", top=3)
    ran = {step: count for (step, name), count in states(third).items() if name == "Completed"}
    assert ran == {"select": 1, "balance_pipeline": 1, "simulate_pipeline": 1, "rank_plans": 1, "write_report": 1}

    again = run(small_plan, tmp_path / "again", use_cache=False)
    assert {name for _, name in states(again)} == {"Completed"}
    assert files(tmp_path / "again") == written


def test_plan_computes_again_what_a_broken_cache_file_held(small_plan: Path, tmp_path: Path, fresh_cache: Path) -> None:
    run(small_plan, tmp_path / "out")
    written = files(tmp_path / "out")
    cached = sorted(path for path in fresh_cache.rglob("*") if path.is_file())
    assert cached
    for number, path in enumerate(cached):
        content = path.read_bytes()
        # Cut short, emptied, or one byte of the content changed.
        middle = len(content) // 2
        flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        path.write_bytes([content[:middle], b"", flipped][number % 3])
    second = run(small_plan, tmp_path / "out")
    assert second.is_completed(), second.message
    assert {name for _, name in states(second)} == {"Completed"}
    assert files(tmp_path / "out") == written


def test_plan_reports_a_layout_that_fails_and_goes_on(
    small_plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tasks import balance as step

    balance, calls = step.balance, []

    def crash_once(problem: Any) -> Any:
        calls.append(problem)
        if len(calls) == 1:
            raise RuntimeError("solver crashed")
        return balance(problem)

    monkeypatch.setattr(step, "balance", crash_once)
    state = run(small_plan, tmp_path / "out", use_cache=False)
    assert state.name == "Partial"
    document = json.loads((tmp_path / "out" / "plan.json").read_text())
    assert len(document["plans"]) == 1
    assert document["failed"][0]["reason"] == "RuntimeError: solver crashed"
    assert "solver crashed" in (tmp_path / "out" / "report.md").read_text()
    assert states(state)["balance_pipeline", "Failed"] == 1


def test_plan_ends_with_one_line_when_nothing_fits(small_plan: Path, tmp_path: Path) -> None:
    text = small_plan.read_text().replace("llama3-8b", "llama3-405b").replace("devices: 16", "devices: 8")
    small_plan.write_text(text.replace("pp: [1, 2, 4]", "pp: 1"))
    state = run(small_plan, tmp_path / "out")
    assert state.name == "No answer"
    assert state.message
    assert "\n" not in state.message
    assert not (tmp_path / "out").exists()


def test_plan_refuses_an_output_it_cannot_write(small_plan: Path, tmp_path: Path) -> None:
    state = run(small_plan, small_plan / "out")
    assert state.name == "Bad input"
    assert state.message == f"{small_plan / 'out'}: a file stands in the way, a folder is needed"
    assert states(state) == Counter()


def test_plan_refuses_a_config_it_cannot_read(tmp_path: Path) -> None:
    state = run(tmp_path / "missing.yaml", tmp_path / "out")
    assert state.name == "Bad input"
    assert "missing.yaml: no such file" in str(state.message)
