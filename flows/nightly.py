"""Replan every plan config whose question, or the code that answers it, changed since its last success.

The last success is what stands in ``runs/<name>/plan.json``, which is written last: a run that was killed, or whose
folder was deleted, is planned again.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger, runtime
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from flows.plan import STOPPED, leave, plan, versions
from flows.server import prefect_api, wait_until_recorded
from paraplan.foundation.documents import write_whole
from paraplan.foundation.errors import InputError, ParaplanError
from paraplan.plan.document import input_digests
from paraplan.plan.report import table
from paraplan.question.plan_config import load_plan
from tasks.artifacts import publish

SUFFIXES = (".yaml", ".yml", ".json")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the night brought for one plan config."""

    name: str
    changed: tuple[str, ...]
    """Parts of the question that changed; ``first plan`` where there was none; empty: nothing."""
    status: str
    """``unchanged``, ``planned``, ``partial`` or ``failed``."""
    before: str
    """The winner of the last success."""
    winner: str
    message: str

    @property
    def verdict(self) -> str:
        """Whether the winner moved, in words."""
        if self.status == "failed":
            return self.message
        if not self.changed:
            return "nothing to do"
        if not self.before:
            return f"first winner {self.winner}"
        return (
            f"winner unchanged: {self.winner}"
            if self.before == self.winner
            else f"winner moved: {self.before} → {self.winner}"
        )


@flow(name="nightly", flow_run_name=lambda: f"nightly {runtime.flow_run.scheduled_start_time:%Y-%m-%d}")
def nightly(folder: str = "configs/plans", output: str = "runs") -> State[Any]:
    """Plan what changed since its last success and report what moved.

    Args:
        folder: Where the plan configs are.
        output: Where the plans go, one folder each.
    """
    logger = get_run_logger()
    outcomes = []
    configs = plan_configs(Path(folder))
    if not configs:
        return Failed(name="Bad input", message=f"{folder}: no plan config found, at least one .yaml file is needed")
    for path in configs:
        outcome = _replan(path, Path(output) / path.stem)
        logger.info(
            "%s: %s%s", outcome.name, outcome.status, f" ({', '.join(outcome.changed)})" if outcome.changed else ""
        )
        outcomes.append(outcome)
    summary = _summary(outcomes)
    text = nightly_markdown(outcomes, summary)
    write_whole(Path(output) / "nightly.md", text)
    publish("nightly-report", summary, text)

    statuses = {outcome.status for outcome in outcomes}
    data = {outcome.name: outcome.status for outcome in outcomes}
    if statuses == {"failed"}:
        return Failed(message=summary)
    if statuses & {"failed", "partial"}:
        return Completed(name="Partial", message=summary, data=data)
    if statuses == {"unchanged"}:
        return Completed(name="Unchanged", message=summary, data=data)
    return Completed(message=summary, data=data)


def plan_configs(folder: Path) -> list[Path]:
    """The plan configs in a folder, by name."""
    return sorted(path for path in folder.glob("*") if path.suffix in SUFFIXES) if folder.is_dir() else []


def last_success(folder: Path) -> Mapping[str, Any] | None:
    """The plan that stands in ``folder``; None where there is none, or only half of one."""
    try:
        document = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
        return (
            document if document["inputs"] and document["plans"][0]["name"] and document["versions"]["code"] else None
        )
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return None


def what_changed(last: Mapping[str, Any] | None, inputs: Mapping[str, str], code: str) -> tuple[str, ...]:
    """The parts of the question that differ from the last success, and ``planner`` where its code does."""
    if last is None:
        return ("first plan",)
    changed = [part for part, value in inputs.items() if last["inputs"].get(part) != value]
    return (*changed, "planner") if last["versions"]["code"] != code else tuple(changed)


def nightly_markdown(outcomes: Sequence[Outcome], summary: str) -> str:
    """The report of one night."""
    rows = [
        (
            one.name,
            one.status,
            ", ".join(one.changed) or ("unknown" if one.status == "failed" else "nothing"),
            one.verdict,
        )
        for one in outcomes
    ]
    lines = table(("plan", "status", "what changed", "result"), rows, left=(0, 1, 2, 3))
    return "\n".join(["# Nightly replanning", "", summary, "", *lines, ""])


def _replan(path: Path, folder: Path) -> Outcome:
    last = last_success(folder)
    before = last["plans"][0]["name"] if last else ""
    try:
        config = load_plan(path)
    except ParaplanError as error:
        return Outcome(path.stem, (), "failed", before, "", str(error))
    changed = what_changed(last, input_digests(config), versions()["code"])
    if not changed:
        return Outcome(path.stem, (), "unchanged", before, before, "")
    try:
        state: State[Any] = plan(str(path), str(folder), return_state=True)
    except Exception as error:  # One plan that cannot even start must not end the night for the others.
        get_run_logger().exception("%s could not be planned", path.stem)
        return Outcome(path.stem, changed, "failed", before, "", f"{type(error).__name__}: {error}")
    if not state.is_completed():
        return Outcome(path.stem, changed, "failed", before, "", state.message or "failed")
    winner = state.result()["plans"][0]["name"]
    return Outcome(
        path.stem, changed, "partial" if state.name == "Partial" else "planned", before, winner, state.message or ""
    )


def _summary(outcomes: Sequence[Outcome]) -> str:
    planned = [one for one in outcomes if one.status in {"planned", "partial"}]
    failed = [one for one in outcomes if one.status == "failed"]
    moved = [one for one in planned if one.before and one.before != one.winner]
    words = [f"{len(planned)} of {len(outcomes)} planned" if planned else f"nothing changed in {len(outcomes)} plans"]
    if failed and not planned:
        words = [f"nothing planned of {len(outcomes)}"]
    if moved:
        words.append("winner moved: " + ", ".join(one.name for one in moved))
    if failed:
        words.append("failed: " + ", ".join(one.name for one in failed))
    return "; ".join(words)


def main() -> int:
    """Run one night now; gives the exit status."""
    try:
        with prefect_api():
            state = nightly(return_state=True)
            if state.state_details.flow_run_id:
                wait_until_recorded(state.state_details.flow_run_id)
    except InputError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_status
    except KeyboardInterrupt:
        sys.stderr.write("stopped; finished plans are kept\n")
        return STOPPED
    sys.stdout.write(f"{state.message}\n")
    return 0 if state.is_completed() else 1


if __name__ == "__main__":
    leave(main())
