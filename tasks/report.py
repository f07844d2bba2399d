"""Step 9: the files a plan consists of."""

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from paraplan import time as performance
from paraplan.plan.document import GIB, FailedLayout, RankedPlan, plan_json
from paraplan.plan.plots.ranking import ranking_png
from paraplan.plan.report import MOST_CANDIDATES, report_markdown
from paraplan.question.layouts import COLUMNS
from paraplan.question.plan_config import PlanConfig
from paraplan.question.problem import Problem
from paraplan.question.search_spec import NAMES
from tasks.caching import Result, step
from tasks.tables import unpack, unpack_layouts


@step(
    "report",
    run_name="report {config.name}",
    modules=("paraplan.plan.report", "paraplan.plan.plots.ranking", "paraplan.plan.document", "paraplan.time"),
)
def write_report(
    config: PlanConfig,
    assumptions: list[list[str]],
    removed: dict[str, int],
    candidates: int,
    layouts: dict[str, Any],
    peak: dict[str, Any],
    step_time: dict[str, Any],
    plans: list[dict[str, Any]],
    timelines: list[str],
    failed: list[dict[str, str]],
    versions: dict[str, str],
) -> Result:
    """Render every file; the flow puts them in their folder.

    Returns:
        ``files``: path in the folder to content, binary content in base64 under ``images``. ``plan.json`` comes last:
        where it is, everything else is.
    """
    ranked = [RankedPlan(**plan) for plan in plans]
    unplanned = [FailedLayout(**layout) for layout in failed]
    problem = config.problem
    paths = [f"{plan.rank}-{plan.name}/timeline.svg" for plan in ranked]
    title = f"{problem.model.name} on {problem.cluster.devices:,} × {problem.cluster.device.name}"
    csv, fitting = candidates_csv(problem, layouts, peak, step_time)
    report = report_markdown(
        config,
        ranked,
        unplanned,
        candidates=candidates,
        fitting=fitting,
        removed=removed,
        assumed=assumptions,
        timelines=paths,
    )
    picture = ranking_png(ranked, problem.cluster.memory_budget / GIB, title)
    files = {
        **dict(zip(paths, timelines, strict=True)),
        "candidates.csv": csv,
        "report.md": report,
        "plan.json": plan_json(config, ranked, unplanned, versions),
    }
    return {"images": {"ranking.png": base64.b64encode(picture).decode()}, "files": files}


def candidates_csv(
    problem: Problem, layouts: Mapping[str, Any], peak: Mapping[str, Any], step_time: Mapping[str, Any]
) -> tuple[str, int]:
    """The fitting layouts with their estimates, fastest first, and how many there are."""
    fitting = unpack_layouts(layouts)
    step_time_N, peak_N = unpack(step_time)["step_time"], unpack(peak)["peak"]
    order: Sequence[int] = np.lexsort((peak_N, step_time_N))[:MOST_CANDIDATES]  # type: ignore[assignment]
    frame = pd.DataFrame({name: getattr(fitting, name)[order] for name in COLUMNS})
    for name, words in NAMES.items():
        frame[name] = np.array(words)[frame[name]]
    frame.insert(0, "rank", np.arange(1, len(frame) + 1))
    frame["step_time_s"] = step_time_N[order]
    frame["tokens_per_s_per_device"] = performance.tokens_per_second_per_device(problem, step_time_N[order])
    frame["mfu"] = performance.mfu(problem, step_time_N[order])
    frame["peak_memory_gib"] = peak_N[order] / GIB
    return frame.to_csv(index=False, float_format="%.6g", lineterminator="\n"), len(fitting)
