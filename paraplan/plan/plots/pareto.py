"""Step time against memory: the Pareto front and the budget."""

import io

from paraplan.question.problem import Problem
from paraplan.search.ranking import FOLDED, Ranked

GIB = 2.0**30


def pareto_png(problem: Problem, front: Ranked) -> bytes:
    """Draw the front, with the layouts named where there is room."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    peaks, seconds = front.peak_N / GIB, front.step_time_N
    budget = problem.cluster.memory_budget / GIB
    fits = peaks <= budget
    axes.step(peaks, seconds, where="post", color="#bbbbbb", zorder=1)
    axes.scatter(peaks[fits], seconds[fits], color="#2171b5", label="fits", zorder=2)
    axes.scatter(peaks[~fits], seconds[~fits], color="#d94801", label="needs more memory", zorder=2)
    axes.axvline(budget, color="#444444", linestyle="--", linewidth=1)
    axes.annotate(f"budget {budget:.0f} GiB", (budget, 0.98), xycoords=("data", "axes fraction"), ha="right", va="top",
                  rotation=90, fontsize=9, xytext=(-3, 0), textcoords="offset points")  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:.4g}")
        axis.set_minor_formatter("{x:.3g}")
    shown = 0
    last = None
    for i in range(len(front)):
        place = axes.transData.transform((peaks[i], seconds[i]))
        if last is not None and abs(place[0] - last[0]) + abs(place[1] - last[1]) < 70:
            continue
        last = place
        row = front.layouts.row(i)
        name = " ".join(f"{key}{row[key]}" for key in FOLDED if row[key] > 1) or "one device"
        axes.annotate(
            name, (peaks[i], seconds[i]), xytext=(5, 4), textcoords="offset points", fontsize=7, color="#333333"
        )
        shown += 1
        if shown == 12:
            break
    axes.set_xlabel("peak memory, GiB a device")
    axes.set_ylabel("step time, s")
    cluster = problem.cluster
    axes.set_title(
        f"{problem.model.name} on {cluster.devices} × {cluster.device.name}: step time and memory", fontsize=11
    )
    axes.legend(loc="upper right", fontsize=9)
    axes.grid(alpha=0.25, which="major")
    stream = io.BytesIO()
    figure.savefig(stream, format="png", metadata={"Software": None})
    return stream.getvalue()
