"""The ranking as text that fits the terminal."""

from typing import Any

HEADERS = (
    ("#", "rank", "{}"),
    ("dp", "dp", "{}"),
    ("tp", "tp", "{}"),
    ("cp", "cp", "{}"),
    ("ep", "ep", "{}"),
    ("etp", "etp", "{}"),
    ("pp", "pp", "{}"),
    ("vpp", "vpp", "{}"),
    ("mbs", "mbs", "{}"),
    ("mb", "mb", "{}"),
    ("sp", "sp", "{}"),
    ("zero", "zero_stage", "{}"),
    ("recompute", "recompute", "{}"),
    ("schedule", "schedule", "{}"),
    ("step s", "step_time_s", "{:#.4g}"),
    ("tok/s/dev", "tokens_per_s_per_device", "{:,.0f}"),
    ("MFU %", "mfu", "{:.1%}"),
    ("peak GiB", "peak_memory_gib", "{:.1f}"),
)
_DROPPED_FIRST = ("schedule", "etp", "sp", "cp", "ep", "vpp", "zero_stage", "mb")
"""Columns given up, in this order, where the terminal is too narrow."""


def ranking_table(ranked: list[dict[str, Any]], width: int) -> str:
    """Rows of the published ``ranked`` list as aligned text at most ``width`` wide."""
    columns = list(HEADERS)
    dropped: list[str] = []
    while True:
        cells = [[header for header, _, _ in columns]]
        cells += [[form.format(row[key]).rstrip("%.") for _, key, form in columns] for row in ranked]
        widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
        left = [name for name in _DROPPED_FIRST if any(key == name for _, key, _ in columns)]
        if sum(widths) + 2 * (len(widths) - 1) <= width or not left:
            break
        # A column with one value everywhere says nothing that a note cannot.
        same = [name for name in left if len({str(row[name]) for row in ranked}) == 1]
        name = (same or left)[0]
        columns = [column for column in columns if column[1] != name]
        values = {str(row[name]) for row in ranked}
        dropped.append(f"{name}={values.pop()}" if len(values) == 1 else f"{name} not shown")
    lines = ["  ".join(cell.rjust(widths[i]) for i, cell in enumerate(row)) for row in cells]
    if dropped:
        lines.append("(" + ", ".join(dropped) + ")")
    return "\n".join(lines)
