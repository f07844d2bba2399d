"""MindFormers' recompute lists: counts per chunk of layers that recompute, from the chunk's first layer on.

``recompute`` counts fully recomputed layers; ``select_recompute`` those with selective recomputation *including* both
and full; ``select_comm_recompute`` those with communication recomputation *including* both and full.
"""

from collections.abc import Mapping, Sequence

from paraplan.foundation.errors import InputError
from paraplan.simulate.pipeline_plan import Table

Rows = Sequence[Sequence[int]]


def write_lists(recompute: Mapping[str, Table]) -> dict[str, list[list[int]]]:
    """The three lists of a plan's strategies, ``[vpp][pp]``.

    Raises:
        InputError: a chunk that the lists cannot express: select and comm together, or a strategy they lack.
    """
    for name, table in recompute.items():
        if name not in ("none", "select", "comm", "both", "full") and any(any(row) for row in table):
            raise InputError(f"strategy {name!r}: MindFormers' lists have none, select, comm, both and full")
    shape = next(iter(recompute.values()))

    def of(name: str, v: int, s: int) -> int:
        return recompute[name][v][s] if name in recompute else 0

    lists: dict[str, list[list[int]]] = {"recompute": [], "select_recompute": [], "select_comm_recompute": []}
    for v in range(len(shape)):
        for key in lists:
            lists[key].append([])
        for s in range(len(shape[v])):
            full, both, select, comm = (of(name, v, s) for name in ("full", "both", "select", "comm"))
            if select and comm:
                raise InputError(
                    f"chunk {v} of stage {s}: {select} select and {comm} comm layers;"
                    " MindFormers' lists cannot say both"
                )
            lists["recompute"][v].append(full)
            lists["select_recompute"][v].append(select + both + full)
            lists["select_comm_recompute"][v].append(comm + both + full)
    return lists


def read_lists(layers: Rows, full: Rows, select: Rows, comm: Rows, where: str = "lists") -> dict[str, Table]:
    """Strategies of every chunk as MindFormers reads them.

    Args:
        layers: Layers of every chunk, ``[vpp][pp]``.
        full: ``recompute``.
        select: ``select_recompute``.
        comm: ``select_comm_recompute``.
        where: File, for messages.

    Raises:
        InputError: shapes that differ, or more layers than a chunk has.
    """
    found: dict[str, list[list[int]]] = {name: [] for name in ("none", "select", "comm", "both", "full")}
    for name, table in (("recompute", full), ("select_recompute", select), ("select_comm_recompute", comm)):
        if [len(row) for row in table] != [len(row) for row in layers]:
            raise InputError(f"{where}: {name}: a table of {len(layers)} rows of {len(layers[0])} numbers is needed")
    for v, row in enumerate(layers):
        for name in found:
            found[name].append([])
        for s, held in enumerate(row):
            f, a, b = full[v][s], select[v][s], comm[v][s]
            for name, count in (("recompute", f), ("select_recompute", a), ("select_comm_recompute", b)):
                if not 0 <= count <= held:
                    raise InputError(
                        f"{where}: {name}: {count} found on chunk {v} of stage {s}, 0 to {held} (its layers) is needed"
                    )
            both = max(0, min(a, b) - f)
            kinds = {"full": f, "both": both, "select": max(0, a - f - both), "comm": max(0, b - f - both)}
            kinds["none"] = held - sum(kinds.values())
            for name, count in kinds.items():
                found[name][v].append(count)
    return {name: tuple(tuple(row) for row in rows) for name, rows in found.items()}
