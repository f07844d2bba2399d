"""What a plan is when it is done: the ranked plans, and ``plan.json``, the published form of the answer."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from paraplan.foundation.fingerprints import digest
from paraplan.question.layouts import CONTEXT_KINDS, RECOMPUTE, SCHEDULES
from paraplan.question.plan_config import PlanConfig

GIB = 2.0**30

TIME_PARTS = (
    "compute",
    "tp_comm",
    "cp_comm",
    "ep_comm",
    "recompute",
    "swap",
    "pp_comm",
    "bubble",
    "imbalance",
    "dp_comm",
    "optimizer",
    "overhead",
)
"""Where a simulated step goes; the parts add up to it."""


@dataclass(frozen=True, slots=True)
class RankedPlan:
    """One layout after balancing and simulation."""

    rank: int
    name: str
    """The degrees that are not 1, e.g. ``tp8-pp4-vpp5-dp32``."""
    parallel: Mapping[str, Any]
    """The layout as ``paraplan nd --json`` prints it."""
    pipeline: Mapping[str, Any]
    """The balanced pipeline as ``paraplan ppb --json`` prints it; ``seconds`` is null, see :func:`plan_json`."""
    step_time_s: float
    """Simulated makespan plus what a step does outside the pipeline, each part times its recalibration ratio."""
    estimated_step_time_s: float
    """What the ND search expected of an even split, recalibrated likewise."""
    tokens_per_s_per_device: float
    mfu: float
    peak_memory_gib: float
    time_s: Mapping[str, float]
    """Seconds a step by :data:`TIME_PARTS`."""
    memory_gib: Mapping[str, float]
    """The heaviest stage by component, as the memory model sees it under an even split, and ``balancing``: what the
    balanced plan's heaviest stage has more, or less. They add up to the peak."""


@dataclass(frozen=True, slots=True)
class FailedLayout:
    """A selected layout that got no balanced pipeline."""

    name: str
    reason: str


def layout_name(layout: Mapping[str, int]) -> str:
    """A short name that no two layouts of a ranking share, fit for a folder: what differs from the default."""
    dimensions = ("tp", "cp", "ep", "etp", "pp", "vpp", "dp")
    words = [f"{name}{layout[name]}" for name in dimensions if _told(name, layout)]
    words.append(f"mbs{layout['mbs']}")
    if layout["zero_stage"]:
        words.append(
            f"z{layout['zero_stage']}" + (f"o{layout['op']}" if layout["op"] < layout["dp"] * layout["cp"] else "")
        )
    if layout["tp"] > 1 and not layout["sp"]:
        words.append("nosp")
    if layout["recompute"]:
        layers = layout["recompute_layers"]
        words.append(RECOMPUTE[layout["recompute"]] + (str(layers) if layers >= 0 else ""))
    if SCHEDULES[layout["schedule"]] not in {"1f1b", "interleaved"}:
        words.append(SCHEDULES[layout["schedule"]])
    if layout["cp"] > 1 and layout["cp_kind"]:
        words.append(CONTEXT_KINDS[layout["cp_kind"]])
    if layout["swap_os"]:
        words.append("swap")
    if layout["swap_act"]:
        words.append("swapact")
    return "-".join(words)


def _told(name: str, layout: Mapping[str, int]) -> bool:
    """Whether a degree is worth naming: always tp, pp and dp, the others where they are not what one expects."""
    if name == "etp":
        return layout["etp"] != layout["tp"]
    return layout[name] > 1 or name in {"tp", "pp", "dp"}


def time_parts(
    estimated: Mapping[str, float], makespan: float, bubble: Mapping[str, float], outside: float
) -> dict[str, float]:
    """Where a simulated step goes, in seconds by :data:`TIME_PARTS`.

    The simulator says how much of the makespan is work and how much is waiting: ``makespan = work · (1 + ideal +
    imbalance + communication + recompute)`` with ``work`` the mean over the stages. The work is split over compute and
    the communication inside layers, and the time outside the pipeline over its own parts, as the analytic model does.

    Args:
        estimated: Seconds by component of the analytic step.
        makespan: Simulated, in seconds.
        bubble: Its parts as shares of the work.
        outside: Seconds of the step outside the pipeline.
    """
    work = makespan / (1 + bubble["total"])
    parts = _spread(work, estimated, ("compute", "tp_comm", "cp_comm", "ep_comm", "swap"))
    parts |= {
        "recompute": work * bubble["recompute"],
        "pp_comm": work * bubble["communication"],
        "bubble": work * bubble["ideal"],
        "imbalance": work * bubble["imbalance"],
    }
    parts |= _spread(outside, estimated, ("overhead", "dp_comm", "optimizer"))
    return {name: parts[name] for name in TIME_PARTS}


def _spread(seconds: float, weights: Mapping[str, float], names: Sequence[str]) -> dict[str, float]:
    """Split seconds by the weights of ``names``; the first takes all where they are all zero."""
    whole = sum(weights.get(name, 0.0) for name in names)
    if whole <= 0:
        return {name: seconds if name == names[0] else 0.0 for name in names}
    return {name: seconds * weights.get(name, 0.0) / whole for name in names}


def input_digests(config: PlanConfig) -> dict[str, str]:
    """A digest for each part of the question, so that a later run can say what changed."""
    return {
        "model": digest(config.problem.model),
        "cluster": digest(config.problem.cluster),
        "training": digest(config.problem.training),
        "framework": digest(config.problem.framework),
        "search": digest(config.search),
        "balance": digest(config.balance),
    }


def fingerprint(config: PlanConfig) -> str:
    """One digest for the whole question: equal for two files that ask the same, however they are written."""
    return digest(input_digests(config))


def plan_json(
    config: PlanConfig,
    plans: Sequence[RankedPlan],
    failed: Sequence[FailedLayout],
    versions: Mapping[str, str],
) -> str:
    """The text of ``plan.json``.

    It holds nothing that differs between two runs on the same question: a pipeline's ``seconds`` (how long the solver
    took) is null.
    """
    problem = config.problem
    document = {
        "name": config.name,
        "model": problem.model.name,
        "cluster": {
            "device": problem.cluster.device.name,
            "devices": problem.cluster.devices,
            "memory_budget_gib": problem.cluster.memory_budget / GIB,
        },
        "training": {**asdict(problem.training), "framework": problem.framework.name},
        "recalibration": dict(config.search.recalibration),
        "plans": [asdict(plan) for plan in plans],
        "failed": [asdict(layout) for layout in failed],
        "fingerprint": fingerprint(config),
        "inputs": input_digests(config),
        "versions": dict(versions),
    }
    return json.dumps(document, indent=2, allow_nan=False) + "\n"
