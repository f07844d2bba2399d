"""``report.md``: the answer in words and tables, with every assumption it rests on."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from paraplan.operators import parameters
from paraplan.plan.document import GIB, TIME_PARTS, FailedLayout, RankedPlan
from paraplan.question.plan_config import PlanConfig
from paraplan.search.search import ratios_text

Row = tuple[str, str, str]
"""What, its value, where it comes from."""

MOST_CANDIDATES = 100_000
"""Rows of ``candidates.csv``: the fastest fitting layouts."""


def assumptions(config: PlanConfig) -> list[Row]:
    """Everything an answer rests on, so that the number can be checked or repeated elsewhere."""
    problem = config.problem
    model, cluster, training, framework = problem.model, problem.cluster, problem.training, problem.framework
    device, efficiency = cluster.device, cluster.device.efficiency
    total, active = parameters.total(model), parameters.active(model)
    rows: list[Row] = [
        ("model", f"{model.name}, {model.layers} layers, hidden {model.hidden}", model.source or "plan config"),
        ("parameters", f"{total / 1e9:.2f} B, {active / 1e9:.2f} B active", "counted from the shape"),
        ("global batch", f"{training.global_batch} sequences of {training.sequence_length} tokens", "plan config"),
        ("precision, optimizer", f"{training.precision}, {training.optimizer}", "plan config"),
        (
            "attention",
            f"{training.attention_kernel}, fused norm {'yes' if training.fused_norm else 'no'}",
            "plan config",
        ),
        ("devices", f"{cluster.devices} × {device.name}, {device.devices_per_node} a node", "plan config"),
        ("memory budget", f"{cluster.memory_budget / GIB:.4g} of {device.memory_bytes / GIB:.4g} GiB", "plan config"),
    ]
    if config.search.recalibration:
        rows.append(("recalibration of times", ratios_text(config.search.recalibration), "plan config"))
    for precision, flops in sorted(device.peak_flops.items()):
        rows.append((f"peak {precision}", f"{flops / 1e12:.4g} TFLOP/s", _source(device.sources, "peak_flops")))
    bandwidth = f"{device.memory_bandwidth / 1e9:.4g} GB/s"
    rows.append(("memory bandwidth", bandwidth, _source(device.sources, "memory_bandwidth")))
    for level in cluster.levels:
        value = f"{level.bandwidth / 1e9:.4g} GB/s per direction per device, {level.latency * 1e6:.3g} µs"
        rows.append((f"link {level.name}, {level.span} devices", value, _source(device.sources, "levels")))
    for name, value in asdict(efficiency).items():
        rows.append((f"efficiency: {name}", _figure(name, value), _source(device.sources, "efficiency")))
    for name, value in asdict(framework).items():
        if name not in {"name", "source"}:
            shown = ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
            rows.append((f"{framework.name}: {name}", shown, framework.source or "framework defaults"))
    return rows


def report_markdown(
    config: PlanConfig,
    plans: Sequence[RankedPlan],
    failed: Sequence[FailedLayout],
    *,
    candidates: int,
    fitting: int,
    removed: Mapping[str, int],
    assumed: Sequence[Sequence[str]],
    timelines: Sequence[str],
) -> str:
    """The text of ``report.md``.

    Args:
        config: The question.
        plans: The answer, best first.
        failed: Selected layouts without a balanced pipeline.
        candidates: Layouts that satisfy every rule.
        fitting: Those that fit in memory.
        removed: Layouts each rule removed.
        assumed: What :func:`assumptions` gives.
        timelines: One path a plan, relative to the report.
    """
    problem = config.problem
    best = plans[0]
    lines = [
        f"# {problem.model.name} on {problem.cluster.devices:,} × {problem.cluster.device.name}",
        "",
        f"**{best.name}**: {best.step_time_s:.4g} s a step, {best.tokens_per_s_per_device:,.0f} tokens/s a device, "
        f"{best.mfu:.1%} MFU, {best.peak_memory_gib:.1f} of {problem.cluster.memory_budget / GIB:.4g} GiB.",
        "",
        f"{candidates:,} layouts satisfy every rule, {fitting:,} of them fit in memory; the {len(plans) + len(failed)} "
        "fastest were balanced, simulated and ranked by the simulated step.",
        "",
        *_recalibrated(config),
        "![Top layouts](ranking.png)",
        "",
        "## Ranking",
        "",
        *ranking_table(plans, timelines),
        "",
    ]
    if training_days := _training_days(config, best):
        lines += [f"{training_days}", ""]
    if failed:
        lines += ["## Selected, but not planned", "", *table(("layout", "reason"), map(_failure, failed)), ""]
    lines += ["## Where the time goes", "", *time_table(plans), ""]
    lines += ["## Pipelines", ""]
    for plan in plans:
        lines += [*pipeline_section(plan), ""]
    lines += ["## Layouts that a rule removed", "", *table(("rule", "layouts"), _counts(removed)), ""]
    lines += ["## Assumptions", "", *table(("what", "value", "from"), assumed), ""]
    lines += [
        "MFU counts the model's own FLOPs (causal attention halved, recomputation not counted) over the peak of the "
        "precision. Times of a plan are simulated block by block; the estimate before it assumes an even split.",
        "",
        "## Files",
        "",
        "- `plan.json`: the ranked plans for programs",
        f"- `candidates.csv`: the fitting layouts, fastest estimate first (at most {MOST_CANDIDATES:,})",
        "- `ranking.png`: the figure above",
        *(
            f"- `{path}`: plan {plan.rank}, every block of its pipeline"
            for plan, path in zip(plans, timelines, strict=True)
        ),
        "",
    ]
    return "\n".join(lines)


def ranking_table(plans: Sequence[RankedPlan], timelines: Sequence[str]) -> list[str]:
    """The top layouts in one Markdown table."""
    header = ("rank", "layout", "step, s", "even split, s", "tokens/s/device", "MFU", "peak, GiB", "bubble", "solver")
    rows = []
    for plan, path in zip(plans, timelines, strict=True):
        pipeline = plan.pipeline
        rows.append(
            (
                str(plan.rank),
                f"[{plan.name}]({path})" if path else plan.name,
                four_digits(plan.step_time_s),
                four_digits(plan.estimated_step_time_s),
                f"{plan.tokens_per_s_per_device:,.0f}",
                f"{plan.mfu:.1%}",
                f"{plan.peak_memory_gib:.1f}",
                f"{pipeline['bubble']['total']:.1%}",
                solver_text(pipeline),
            )
        )
    return table(header, rows, left=(1, 8))


def four_digits(value: float) -> str:
    """Four significant digits, trailing zeros kept, so that columns line up."""
    return f"{value:#.4g}".rstrip(".")


def solver_text(pipeline: Mapping[str, Any]) -> str:
    """How far from optimal a balanced pipeline can be at most."""
    if pipeline["status"] == "feasible" and pipeline["gap"] is not None:
        return f"within {pipeline['gap']:.2%} of optimal"
    return str(pipeline["status"])


def time_table(plans: Sequence[RankedPlan]) -> list[str]:
    """Seconds a step by part, a column a plan."""
    header = ("seconds a step", *(plan.name for plan in plans))
    rows = [
        (name.replace("_", " "), *(f"{plan.time_s[name]:.4g}" for plan in plans))
        for name in TIME_PARTS
        if any(plan.time_s[name] for plan in plans)
    ]
    return table(header, [*rows, ("**step**", *(f"**{plan.step_time_s:.4g}**" for plan in plans))])


def pipeline_section(plan: RankedPlan) -> list[str]:
    """One plan's layout and what lies on each stage."""
    pipeline = plan.pipeline
    values = {**plan.parallel, "schedule": pipeline["schedule"]}
    dimensions = ", ".join(f"{name} {value}" for name, value in values.items() if isinstance(value, (int, str)))
    lines = [f"### {plan.rank}. {plan.name}", "", f"{dimensions}.", ""]
    stages = len(pipeline["peak_memory_mib"])
    rows = [(f"layers, chunk {v}", *map(str, row)) for v, row in enumerate(pipeline["layers"])]
    used = {strategy: counts for strategy, counts in pipeline["recompute"].items() if any(any(row) for row in counts)}
    if len(used) > 1:  # One strategy for all layers repeats their counts.
        for strategy, counts in used.items():
            rows += [(f"{strategy}, chunk {v}", *map(str, row)) for v, row in enumerate(counts)]
    rows.append(("peak, GiB", *(f"{mib / 1024:.1f}" for mib in pipeline["peak_memory_mib"])))
    lines += table(("stage", *map(str, range(stages))), rows)
    lines += ["", f"Recomputation of every layer: {next(iter(used))}.", ""] if len(used) == 1 else [""]
    lines += [f"`offset: {[list(row) for row in pipeline['offset']]}`"]
    return lines


def table(header: Sequence[str], rows: "Sequence[Sequence[str]] | map[Any]", left: Sequence[int] = (0,)) -> list[str]:
    """A Markdown table; columns are right-aligned but those in ``left``."""
    marks = [":--" if column in left else "--:" for column in range(len(header))]
    cells = [[str(cell).replace("|", "\\|") for cell in row] for row in ([*header], marks, *rows)]
    return [f"| {' | '.join(row)} |" for row in cells]


def _recalibrated(config: PlanConfig) -> list[str]:
    """Says by what the times are multiplied, if they are."""
    ratios = config.search.recalibration
    if not ratios:
        return []
    text = f"Step times and their parts, estimated and simulated, are recalibrated: {ratios_text(ratios)}."
    return [f"{text} A pipeline's own makespan is as it was simulated.", ""]


def _training_days(config: PlanConfig, best: RankedPlan) -> str:
    tokens = config.problem.training.tokens
    if not tokens:
        return ""
    training = config.problem.training
    days = tokens / (training.global_batch * training.sequence_length) * best.step_time_s / 86400
    return f"Training on {tokens / 1e12:.4g} T tokens takes {days:.1f} days of uninterrupted steps."


def _failure(layout: FailedLayout) -> tuple[str, str]:
    return layout.name, layout.reason


def _counts(removed: Mapping[str, int]) -> list[tuple[str, str]]:
    return [(name, f"{count:,}") for name, count in removed.items() if count] or [("none", "0")]


def _source(sources: Mapping[str, str], field: str) -> str:
    return sources.get(field, "device catalogue")


def _figure(name: str, value: float) -> str:
    if name.endswith("_bytes"):
        return f"{value / GIB:.3g} GiB"
    if name.endswith("_seconds"):
        return f"{value * 1e6:.3g} µs"
    return f"{value:.3g}"
