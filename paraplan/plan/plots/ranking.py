"""The figure that shows why one layout wins: time by what it is spent on, memory against the limit, side by side."""

import io
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from paraplan.plan.document import RankedPlan

TIME_STYLES: Mapping[str, tuple[str, str]] = {
    "compute": ("compute", "#1f5fa8"),
    "tp_comm": ("tensor-parallel comm", "#f0a202"),
    "cp_comm": ("context-parallel comm", "#f7cb6b"),
    "ep_comm": ("expert-parallel comm", "#d95d0e"),
    "recompute": ("recompute", "#7fb3e0"),
    "swap": ("activation swap", "#b6d4ee"),
    "pp_comm": ("pipeline comm", "#8c2d5a"),
    "bubble": ("pipeline fill and drain", "#d9d9d9"),
    "imbalance": ("imbalance", "#a3a3a3"),
    "dp_comm": ("data-parallel comm", "#2a9d6f"),
    "optimizer": ("optimizer", "#8fd3b6"),
    "overhead": ("overhead", "#5a5a5a"),
}
"""Label and colour: blues work, oranges communication inside layers, greys waiting, greens once a step."""

MEMORY_STYLES: Mapping[str, tuple[str, str]] = {
    "parameters": ("parameters", "#1f5fa8"),
    "gradients": ("gradients", "#7fb3e0"),
    "optimizer": ("optimizer states", "#2a9d6f"),
    "activations": ("activations", "#f0a202"),
    "transient": ("transient", "#f7cb6b"),
    "loss": ("logits and loss", "#d95d0e"),
    "buffers": ("buffers", "#8c2d5a"),
    "overhead": ("driver, fragmentation", "#8a8a8a"),
}

SMALLEST_SHARE = 0.004
"""Parts below this share of the longest bar would be invisible; they are left out of the legend."""

MOST_BARS = 12

WHITE = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}
"""Behind a text, so that no grid line crosses it."""

BELOW, ABOVE = 1.6, 0.85
"""Inches for the axis and the legend, and for the titles."""


def ranking_figure(plans: Sequence[RankedPlan], memory_limit_gib: float, title: str) -> Figure:
    """Two panels over the same layouts, best on top.

    Args:
        plans: In order of rank; the first :data:`MOST_BARS` are drawn.
        memory_limit_gib: What a device may use.
        title: Model and cluster in words.
    """
    shown = list(plans[:MOST_BARS])
    bars = 0.35 + 0.5 * len(shown)
    # Inches: what is below and above the bars keeps its size however many there are.
    width, height = 13.5, BELOW + bars + ABOVE
    figure = Figure(figsize=(width, height))
    time_axes = figure.add_axes((2.6 / width, BELOW / height, 6.4 / width, bars / height))
    memory_axes = figure.add_axes((9.35 / width, BELOW / height, 3.95 / width, bars / height), sharey=time_axes)
    figure.text(0.2 / width, 1 - 0.32 / height, title, fontsize=13, fontweight="bold", va="center")

    longest = max(plan.step_time_s for plan in shown)
    _bars(figure, time_axes, [plan.time_s for plan in shown], TIME_STYLES, longest)
    for y, plan in enumerate(shown):
        slower = plan.step_time_s / shown[0].step_time_s - 1
        note = f"{plan.step_time_s:.4g} s" + (f"  +{slower:.1%}" if y else "  best") + f"  ·  {plan.mfu:.1%} MFU"
        time_axes.text(plan.step_time_s + longest * 0.01, y, note, va="center", fontsize=9, bbox=WHITE)
    time_axes.set_xlim(0, longest * 1.42)
    time_axes.set_xlabel("seconds a step, simulated")
    time_axes.set_title("Where the time goes", fontsize=11, loc="left")
    time_axes.set_yticks(range(len(shown)), [f"{plan.rank}.  {plan.name}" for plan in shown], fontsize=9)
    time_axes.invert_yaxis()

    heaviest = max(
        max(sum(plan.memory_gib.get(name, 0.0) for name in MEMORY_STYLES), plan.peak_memory_gib) for plan in shown
    )
    _bars(figure, memory_axes, [plan.memory_gib for plan in shown], MEMORY_STYLES, heaviest)
    for y, plan in enumerate(shown):
        memory_axes.plot([plan.peak_memory_gib] * 2, [y - 0.36, y + 0.36], color="black", linewidth=2)
    memory_axes.axvline(memory_limit_gib, color="#c0392b", linewidth=1.8, linestyle="--")
    memory_axes.annotate(
        f"limit {memory_limit_gib:.4g} GiB",
        (memory_limit_gib, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(-4, 3),
        textcoords="offset points",
        ha="right",
        color="#c0392b",
        fontsize=9,
    )
    memory_axes.set_xlim(0, max(heaviest, memory_limit_gib) * 1.06)
    memory_axes.set_xlabel("GiB on the heaviest stage, even split; black: after balancing")
    memory_axes.set_title("Memory", fontsize=11, loc="left")
    memory_axes.tick_params(left=False, labelleft=False)
    for axes in (time_axes, memory_axes):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="x", color="#e6e6e6", linewidth=0.7)
        axes.set_axisbelow(True)
    return figure


def ranking_png(plans: Sequence[RankedPlan], memory_limit_gib: float, title: str) -> bytes:
    """The figure as a PNG, the same bytes for the same plans."""
    stream = io.BytesIO()
    # Without the metadata the file would name the version of the plotting library.
    ranking_figure(plans, memory_limit_gib, title).savefig(stream, format="png", dpi=110, metadata={"Software": None})
    return stream.getvalue()


def _bars(
    figure: Figure,
    axes: Axes,
    rows: Sequence[Mapping[str, float]],
    styles: Mapping[str, tuple[str, str]],
    longest: float,
) -> None:
    """Stacked horizontal bars, one a row, with a legend of the parts that can be seen."""
    legend = []
    left = [0.0] * len(rows)
    for name, (label, colour) in styles.items():
        # An uneven split can beat the even one a little, which shows as a negative imbalance: nothing to draw.
        widths = [max(row.get(name, 0.0), 0.0) for row in rows]
        axes.barh(range(len(rows)), widths, left=left, color=colour, height=0.62, edgecolor="white", linewidth=0.4)
        left = [start + width for start, width in zip(left, widths, strict=True)]
        if max(widths) >= SMALLEST_SHARE * longest:
            legend.append(Patch(color=colour, label=label))
    axes.legend(
        handles=legend,
        loc="lower left",
        bbox_to_anchor=(axes.get_position().x0, 0.0),
        bbox_transform=figure.transFigure,
        ncols=3,
        columnspacing=1.2,
        handlelength=1.6,
        frameon=False,
        fontsize=8.5,
    )
