import json
from pathlib import Path
from typing import Any

import pytest
from prefect.client.schemas.objects import State

from flows.nightly import last_success, nightly, what_changed

pytestmark = [pytest.mark.flow, pytest.mark.xdist_group("prefect")]


def run(tmp_path: Path) -> State[Any]:
    return nightly(str(tmp_path / "plans"), str(tmp_path / "runs"), return_state=True)


@pytest.mark.usefixtures("prefect_server", "fresh_cache")
def test_nightly_plans_only_what_changed_and_survives_a_broken_config(small_plan: Path, tmp_path: Path) -> None:
    (tmp_path / "plans").mkdir()
    for name in ("one", "two"):
        (tmp_path / "plans" / f"{name}.yaml").write_text(small_plan.read_text())
    first = run(tmp_path)
    assert first.result() == {"one": "planned", "two": "planned"}

    second = run(tmp_path)
    assert second.name == "Unchanged"
    assert second.message == "nothing changed in 2 plans"

    path = tmp_path / "plans" / "two.yaml"
    path.write_text("# only a comment\n" + path.read_text().replace("global_batch: 64", "global_batch: 128"))
    (tmp_path / "plans" / "broken.yaml").write_text("model: [\n")
    third = run(tmp_path)
    assert third.name == "Partial"
    assert third.result() == {"broken": "failed", "one": "unchanged", "two": "planned"}
    report = (tmp_path / "runs" / "nightly.md").read_text()
    assert "| two | planned | training | winner " in report
    assert "broken.yaml:2: YAML syntax" in report

    # A plan that was lost, or written only in half, is made again.
    (tmp_path / "plans" / "broken.yaml").unlink()
    (tmp_path / "runs" / "one" / "plan.json").write_text('{"plans": [')
    fourth = run(tmp_path)
    assert fourth.result() == {"one": "planned", "two": "unchanged"}
    assert last_success(tmp_path / "runs" / "one") is not None


def test_what_changed_names_the_parts_of_the_question() -> None:
    last = {"inputs": {"model": "a", "cluster": "b"}, "versions": {"code": "c"}}
    assert what_changed(None, {"model": "a"}, "c") == ("first plan",)
    assert what_changed(last, {"model": "a", "cluster": "b"}, "c") == ()
    assert what_changed(last, {"model": "x", "cluster": "b"}, "c") == ("model",)
    assert what_changed(last, {"model": "x", "cluster": "b"}, "d") == ("model", "planner")


@pytest.mark.parametrize("text", ["", "[]", "{}", json.dumps({"inputs": {"a": 1}, "plans": []}), "\x00"])
def test_last_success_is_none_when_the_file_is_no_plan(tmp_path: Path, text: str) -> None:
    (tmp_path / "plan.json").write_text(text)
    assert last_success(tmp_path) is None
