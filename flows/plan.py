"""From a plan config to ranked plans: ``python -m flows.plan CONFIG [-o DIR] [--top T] [--no-cache]``."""

import base64
import importlib.metadata
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NoReturn
from uuid import UUID

from prefect import flow, get_run_logger, runtime
from prefect.client.schemas.objects import State
from prefect.futures import PrefectFuture
from prefect.settings import PREFECT_TASKS_REFRESH_CACHE, temporary_settings
from prefect.states import Completed, Failed
from prefect.task_runners import ThreadPoolTaskRunner
from pydantic import Field

from flows.output import require_writable, write_files
from flows.server import prefect_api, wait_until_recorded
from paraplan.cli.arguments import Parser, positive
from paraplan.foundation.errors import InputError, ParaplanError
from paraplan.plan.document import RankedPlan
from paraplan.plan.report import ranking_table, table, time_table
from paraplan.question.plan_config import PlanConfig, load_plan
from tasks import code_version
from tasks.artifacts import picture, publish
from tasks.balance import balance_pipeline
from tasks.caching import Result, refused
from tasks.enumerate import enumerate_layouts
from tasks.load import load
from tasks.memory import filter_by_memory
from tasks.performance import estimate_time
from tasks.rank import rank_plans
from tasks.report import write_report
from tasks.select import select
from tasks.simulate import simulate_pipeline

DEFAULT_CONFIG = "configs/plans/llama3-70b-1024xh100.yaml"

COMPUTING_MODULES = ("paraplan.search", "paraplan.memory", "paraplan.time", "paraplan.balance", "paraplan.simulate")
"""The code whose change can move a plan; its digest is in ``plan.json``."""

BAD_INPUT, NO_ANSWER = "Bad input", "No answer"
EXIT_STATUS = {BAD_INPUT: InputError.exit_status, NO_ANSWER: 1}
STOPPED = 130
"""Exit status after Ctrl-C."""


class _Steps(ThreadPoolTaskRunner[Any]):
    """Threads for the steps, that an interrupt does not wait for: a solver would go on to its limit of time."""

    def __exit__(self, exc_type: Any, exc_value: Any, traceback: Any) -> None:
        if exc_type is KeyboardInterrupt and self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._executor = None
        super().__exit__(exc_type, exc_value, traceback)


class _Stopped(Exception):
    """A step found that there is no answer."""

    def __init__(self, result: Result) -> None:
        super().__init__(result["error"])
        self.name = BAD_INPUT if result["exit_status"] == InputError.exit_status else NO_ANSWER


def _run_name() -> str:
    return f"plan {Path(runtime.flow_run.parameters['config']).stem}"


@flow(
    name="plan",
    flow_run_name=_run_name,
    task_runner=_Steps(max_workers=os.cpu_count() or 1),  # type: ignore[arg-type] # invariant future type
    persist_result=False,
)
def plan(
    config: str = DEFAULT_CONFIG,
    output: str | None = None,
    top: Annotated[int, Field(ge=1)] | None = None,
    use_cache: bool = True,
) -> State[Any]:
    """Plan one model on one cluster.

    Args:
        config: Path of the plan config, from the folder of the project.
        output: Folder for the files; runs/<name of the config> if empty.
        top: How many layouts to balance and simulate; the config's own number if empty.
        use_cache: Whether steps whose inputs and code did not change may give their earlier result.
    """
    try:
        asked = load_plan(Path(config))
        # Where the file lies is not part of the question: two copies of it share every cached step.
        asked = replace(asked, path=Path(asked.path.name))
        folder = _folder(output, asked)
        require_writable(folder)
        with temporary_settings({PREFECT_TASKS_REFRESH_CACHE: not use_cache}):
            return _plan(asked, folder, top or asked.search.top)
    except ParaplanError as error:
        return Failed(name=BAD_INPUT, message=str(error))
    except _Stopped as stopped:
        publish(f"{asked.name}-report", f"no plan: {stopped}", f"# {asked.name}\n\n{stopped}\n")
        return Failed(name=stopped.name, message=f"{config}: {stopped}")


def _folder(output: str | None, config: PlanConfig) -> Path:
    return Path(output or f"runs/{config.name}")


def _plan(config: PlanConfig, folder: Path, top: int) -> State[Any]:
    problem, name = config.problem, config.name
    # How many layouts are balanced is no property of the space: a larger T finds the search in the cache.
    search = replace(config.search, top=1)

    described = load.submit(config)
    space = enumerate_layouts.submit(problem, search)
    removed = _answer(space)["removed"]
    publish(f"{name}-question", "what is asked and assumed", _assumptions(_answer(described)), described.task_run_id)
    counted = f"{_answer(space)['candidates']:,} layouts satisfy every rule"
    rules = table(("rule", "layouts removed"), [(rule, f"{count:,}") for rule, count in removed.items()])
    publish(f"{name}-candidates", counted, _page(counted, rules), space.task_run_id)

    memory = filter_by_memory.submit(problem, search, _answer(space)["layouts"])
    counted = f"{_answer(memory)['fitting']:,} of {_answer(space)['candidates']:,} layouts fit in memory"
    publish(f"{name}-memory", counted, _page(counted, []), memory.task_run_id)

    fitting, peak = _answer(memory)["layouts"], _answer(memory)["peak"]
    timed = estimate_time.submit(problem, search, fitting)
    step_time = _answer(timed)["step_time"]
    chosen = select.submit(problem, search, fitting, step_time, top)
    selected = _answer(chosen)["selected"]
    best = f"best estimate {selected[0]['step_time']:.4g} s a step, {selected[0]['name']}"
    publish(f"{name}-estimates", best, _page(best, _estimates(selected)), chosen.task_run_id)

    played, failed = _balance_and_simulate(config, selected)
    if not played:
        reasons = "; ".join(f"{layout['name']}: {layout['reason']}" for layout in failed)
        raise _Stopped({"error": f"no selected layout could be balanced: {reasons}", "exit_status": 1})

    ranked = rank_plans.submit(problem, search, played)
    plans, timelines = _answer(ranked)["plans"], _answer(ranked)["timelines"]
    report = write_report.submit(
        config=config,
        assumptions=_answer(described)["assumptions"],
        removed=removed,
        candidates=_answer(space)["candidates"],
        layouts=fitting,
        peak=peak,
        step_time=step_time,
        plans=plans,
        timelines=timelines,
        failed=failed,
        versions=versions(),
    )
    files, images = _answer(report)["files"], _answer(report)["images"]
    paths = write_files(folder, files, images)
    _publish_plans(name, [RankedPlan(**one) for one in plans], timelines, images, ranked.task_run_id)
    ranking = picture("Top layouts", base64.b64decode(images["ranking.png"]), "png")
    text = files["report.md"].replace("![Top layouts](ranking.png)", ranking)
    publish(f"{name}-report", _headline(plans[0]), text, report.task_run_id)

    answer = {"plans": plans, "failed": failed, "folder": str(folder), "files": [str(path) for path in paths]}
    if failed:
        message = f"{len(plans)} of {len(selected)} layouts planned; not planned: " + ", ".join(
            layout["name"] for layout in failed
        )
        return Completed(name="Partial", message=message, data=answer)
    return Completed(message=_headline(plans[0]), data=answer)


def _balance_and_simulate(
    config: PlanConfig, selected: Sequence[dict[str, Any]]
) -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    """Balance and simulate every selected layout in parallel; one that fails is reported and stops no other."""
    problem, logger = config.problem, get_run_logger()
    balancing = [balance_pipeline.submit(one["name"], problem, one["layout"], config.balance) for one in selected]
    simulating: list[PrefectFuture[Result] | None] = []
    reasons: list[str | None] = []
    for one, balanced in zip(selected, balancing, strict=True):
        reasons.append(_reason(balanced))
        if reasons[-1]:
            simulating.append(None)
            continue
        simulating.append(
            simulate_pipeline.submit(
                one["name"],
                problem,
                one["layout"],
                balanced.result()["pipeline"],
                return_state=False,
                wait_for=[balanced],  # Draws the dependency; the pipeline alone is passed by value.
            )
        )
    played, failed = [], []
    for one, balanced, simulated, reason in zip(selected, balancing, simulating, reasons, strict=True):
        reason = reason or (_reason(simulated) if simulated else None)
        if reason or simulated is None:
            logger.error("%s is not planned: %s", one["name"], reason)
            failed.append({"name": one["name"], "reason": str(reason)})
        else:
            played.append({**one, **balanced.result(), **simulated.result()})
    return played, failed


def _reason(future: PrefectFuture[Result]) -> str | None:
    """Why a layout has no plan, None if it has one."""
    future.wait()
    if not future.state.is_completed():
        return future.state.message or future.state.name
    result = future.result()
    if refused(result):
        return str(result["error"])
    pipeline = result.get("pipeline", {})
    if pipeline.get("status") == "infeasible":
        return str(pipeline["message"])
    return None


def _answer(future: PrefectFuture[Result]) -> Result:
    """A step's result; a refusal ends the plan."""
    result = future.result()
    if refused(result):
        raise _Stopped(result)
    return result


def _publish_plans(
    name: str, plans: Sequence[RankedPlan], timelines: Sequence[str], images: dict[str, str], task_run_id: UUID
) -> None:
    text = [
        *ranking_table(plans, [""] * len(plans)),
        "",
        picture("Top layouts", base64.b64decode(images["ranking.png"]), "png"),
        "",
        *time_table(plans),
    ]
    publish(
        f"{name}-ranking",
        _headline({"name": plans[0].name, "step_time_s": plans[0].step_time_s}),
        "\n".join(text),
        task_run_id,
    )
    for one, timeline in zip(plans, timelines, strict=True):
        title = f"{one.rank}. {one.name}: {one.step_time_s:.4g} s a step"
        drawn = picture(f"Pipeline of {one.name}", timeline.encode(), "svg+xml")
        publish(f"{name}-timeline-{one.rank}", title, _page(title, [drawn]), task_run_id)


def _headline(best: dict[str, Any]) -> str:
    return f"best plan {best['name']}: {best['step_time_s']:.4g} s a step"


def _page(title: str, lines: Sequence[str]) -> str:
    return "\n".join([f"# {title}", "", *lines, ""])


def _assumptions(described: Result) -> str:
    return _page(
        "What is asked and assumed", table(("what", "value", "from"), described["assumptions"], left=(0, 1, 2))
    )


def _estimates(selected: Sequence[dict[str, Any]]) -> list[str]:
    parts = [part for part in selected[0]["time"] if any(one["time"][part] for one in selected)]
    header = ("layout", "step, s", *(part.replace("_", " ") for part in parts))
    rows = [
        (one["name"], f"{one['step_time']:.4g}", *(f"{one['time'][part]:.3g}" for part in parts)) for one in selected
    ]
    return table(header, rows)


def versions() -> dict[str, str]:
    """What computed a plan."""
    libraries = {name: importlib.metadata.version(name) for name in ("highspy", "numpy", "pulp")}
    code = code_version.digest(COMPUTING_MODULES)
    return {
        "paraplan": importlib.metadata.version("paraplan"),
        "code": code,
        "python": platform.python_version(),
        **libraries,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the flow and print the ranked plans; gives the exit status."""
    parser = Parser(prog="python -m flows.plan", description="Plan one model on one cluster.", allow_abbrev=False)
    parser.add_argument("config", metavar="CONFIG", help=f"plan config, e.g. {DEFAULT_CONFIG}")
    parser.add_argument("-o", "--output", metavar="DIR", help="folder for the files (runs/<config name>)")
    parser.add_argument(
        "--top", type=positive, metavar="T", help="layouts to balance and simulate (the config's number)"
    )
    parser.add_argument("--no-cache", action="store_true", help="compute every step again")
    try:
        given = parser.parse_args(arguments)
        # What can be told before a server is started.
        require_writable(_folder(given.output, load_plan(Path(given.config))))
        with prefect_api():
            state = plan(given.config, given.output, given.top, not given.no_cache, return_state=True)
            if state.state_details.flow_run_id and not wait_until_recorded(state.state_details.flow_run_id):
                sys.stderr.write("the Prefect server has not recorded every task state\n")
            return _tell(state)
    except ParaplanError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_status
    except KeyboardInterrupt:
        sys.stderr.write("stopped; finished steps are kept and the next run goes on from there\n")
        return STOPPED


def _tell(state: State[Any]) -> int:
    if not state.is_completed():
        sys.stderr.write(f"{state.message}\n")
        return EXIT_STATUS.get(state.name or "", 1)
    answer = state.result()
    plans = [RankedPlan(**one) for one in answer["plans"]]
    lines = ["", *ranking_table(plans, [""] * len(plans)), ""]
    lines += [f"not planned: {layout['name']}: {layout['reason']}" for layout in answer["failed"]]
    lines += [*answer["files"], ""]
    sys.stdout.write("\n".join(lines))
    return 0


def leave(status: int) -> NoReturn:
    """End the process, after an interrupt without the threads that still compute or talk to a server that is gone."""
    if status == STOPPED:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


if __name__ == "__main__":
    leave(main())
