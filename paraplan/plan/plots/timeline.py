"""The pipeline drawn block by block, as SVG text."""

from xml.sax.saxutils import escape

import numpy as np

from paraplan.schedules.orders import B, F, W
from paraplan.simulate import Timeline

FORWARD = ("#9ecae1", "#6baed6", "#4292c6", "#2171b5", "#08519c")
BACKWARD = ("#fdd0a2", "#fdae6b", "#fd8d3c", "#e6550d", "#a63603")
WEIGHT = ("#c7e9c0", "#a1d99b", "#74c476", "#41ab5d", "#238b45")
NAMES = {F: "forward", B: "backward", W: "weight gradient"}
COLOURS = {F: FORWARD, B: BACKWARD, W: WEIGHT}

WIDTH = 1280
LEFT, RIGHT, TOP = 78, 64, 64


def timeline_svg(
    timeline: Timeline,
    title: str,
    unit: str = "s",
    peak_mib: tuple[float, ...] = (),
    limit_mib: float | None = None,
) -> str:
    """Draw every block of every stage.

    Args:
        timeline: A played pipeline.
        title: First line.
        unit: Of the times, for the axis.
        peak_mib: Peak memory of each stage, printed beside it.
        limit_mib: Marks stages above it.
    """
    graph = timeline.graph
    stages = graph.stages
    lane = 26 if stages <= 16 else 18 if stages <= 32 else 12
    height = TOP + stages * lane + 52
    scale = (WIDTH - LEFT - RIGHT) / timeline.makespan if timeline.makespan > 0 else 1.0
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
        ' font-family="Helvetica, Arial, sans-serif">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="22" font-size="15" font-weight="bold" fill="#222">{escape(title)}</text>',
        *_legend(timeline),
    ]
    idle = 1 - timeline.busy_P / timeline.makespan if timeline.makespan > 0 else np.zeros(stages)
    for s in range(stages):
        y = TOP + s * lane
        parts.append(f'<rect x="{LEFT}" y="{y}" width="{WIDTH - LEFT - RIGHT}" height="{lane - 2}" fill="#f2f2f2"/>')
        parts.append(
            f'<text x="{LEFT - 6}" y="{y + lane / 2 + 3}" font-size="{min(11, lane - 1)}" text-anchor="end"'
            f' fill="#333">stage {s}</text>'
        )
        note = f"{idle[s]:.0%} idle"
        colour = "#555"
        if peak_mib:
            note = f"{peak_mib[s] / 1024:.1f} GiB"
            if limit_mib is not None and peak_mib[s] > limit_mib * (1 + 1e-9):
                colour = "#c00"
        parts.append(
            f'<text x="{WIDTH - RIGHT + 5}" y="{y + lane / 2 + 3}" font-size="{min(11, lane - 1)}"'
            f' fill="{colour}">{note}</text>'
        )
    for i, (s, block) in enumerate(graph.blocks):
        x, width = LEFT + timeline.start_n[i] * scale, (timeline.end_n[i] - timeline.start_n[i]) * scale
        if width <= 0:
            continue
        y = TOP + s * lane
        shades = COLOURS[block.operation]
        fill = shades[min(block.chunk, len(shades) - 1)]
        gap = 0.4 if width > 3 else 0.0
        parts.append(f'<rect x="{x:.2f}" y="{y}" width="{width - gap:.2f}" height="{lane - 2}" fill="{fill}"/>')
        label = str(block.micro_batch)
        if width > 6.2 * len(label) + 2 and lane >= 18:
            ink = "#ffffff" if block.chunk >= 3 else "#222"
            parts.append(
                f'<text x="{x + width / 2:.2f}" y="{y + lane / 2 + 3:.1f}" font-size="10" text-anchor="middle"'
                f' fill="{ink}">{label}</text>'
            )
    parts += _axis(timeline.makespan, scale, TOP + stages * lane, unit)
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def _legend(timeline: Timeline) -> list[str]:
    parts, x = [], LEFT
    used = sorted({block.operation for _, block in timeline.graph.blocks})
    for operation in used:
        for chunk in range(min(timeline.graph.chunks, len(FORWARD))):
            parts.append(f'<rect x="{x}" y="36" width="12" height="12" fill="{COLOURS[operation][chunk]}"/>')
            x += 13
        name = NAMES[operation]
        chunks = timeline.graph.chunks
        if chunks > 1:
            name += f", chunks 0 to {chunks - 1}"
        parts.append(f'<text x="{x + 3}" y="46" font-size="11" fill="#333">{name}</text>')
        x += 20 + 6 * len(name)
    parts.append(f'<text x="{x + 3}" y="46" font-size="11" fill="#333">numbers: micro-batch</text>')
    return parts


def _axis(makespan: float, scale: float, y: int, unit: str) -> list[str]:
    parts = []
    step = _nice(makespan / 8) if makespan > 0 else 1.0
    ticks = int(makespan / step + 1e-9)
    for i in range(ticks + 1):
        x = LEFT + i * step * scale
        parts.append(f'<line x1="{x:.1f}" y1="{y}" x2="{x:.1f}" y2="{y + 5}" stroke="#666"/>')
        parts.append(
            f'<text x="{x:.1f}" y="{y + 18}" font-size="11" text-anchor="middle" fill="#333">{i * step:.6g}</text>'
        )
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(
        f'<text x="{middle}" y="{y + 36}" font-size="12" text-anchor="middle" fill="#333">time, {escape(unit)}'
        f" (step pipeline ends at {makespan:.6g})</text>"
    )
    return parts


def _nice(value: float) -> float:
    power = 10.0 ** np.floor(np.log10(value))
    return float(next(m for m in (1, 2, 5, 10) if m * power >= value) * power)
