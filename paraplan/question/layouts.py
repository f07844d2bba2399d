"""The candidate table: one row a layout, one NumPy column a dimension. The one type every model takes and returns over.

Legend for array suffixes across the package: ``N`` layouts, ``P`` stages, ``V`` chunks, ``K`` layer kinds,
``R`` strategies, ``U`` unique combinations that a cost depends on.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from paraplan.foundation.arrays import IntArray

RECOMPUTE = ("none", "select", "comm", "both", "full")
"""Recompute levels; the column holds the index."""

SCHEDULES = (
    "1f1b",
    "interleaved",
    "interleaved-less-memory",
    "gpipe",
    "zb-h1",
    "zb-h2",
    "zb-v",
    "dualpipe-v",
    "seq1f1b",
)
"""Pipeline schedules; the column holds the index. A layout without pipeline has ``1f1b``."""

CONTEXT_KINDS = ("ring", "allgather", "ulysses")
"""How attention is split over cp; the column holds the index."""


@dataclass(frozen=True, slots=True)
class Layouts:
    """``N`` layouts of one model on one cluster; every column is an int64 array of shape (N,).

    Identities that hold for every row: ``dp·tp·cp·pp = devices``; ``dp·mbs·mb = global batch``;
    ``ep·etp`` divides ``dp·cp·tp``; 1 ≤ op ≤ dp·cp.
    """

    dp: IntArray
    tp: IntArray
    cp: IntArray
    ep: IntArray
    etp: IntArray
    """Tensor degree inside an expert."""
    pp: IntArray
    vpp: IntArray
    mbs: IntArray
    mb: IntArray
    sp: IntArray
    """1: Megatron sequence parallelism."""
    zero_stage: IntArray
    op: IntArray
    """Devices that share one copy of the optimizer state; 1 at zero_stage 0. Below dp·cp: hybrid sharding."""
    recompute: IntArray
    """Index into :data:`RECOMPUTE`."""
    recompute_layers: IntArray
    """Layers of each chunk that recompute, -1: all."""
    schedule: IntArray
    """Index into :data:`SCHEDULES`."""
    cp_kind: IntArray
    """Index into :data:`CONTEXT_KINDS`."""
    swap_act: IntArray
    """1: what layers keep for the backward lives in host memory."""
    swap_os: IntArray
    """1: optimizer states live in host memory."""

    def __len__(self) -> int:
        return len(self.dp)

    def take(self, index: npt.NDArray[Any] | slice) -> "Layouts":
        """The rows that ``index`` (positions, a mask or a slice) picks."""
        return Layouts(**{name: getattr(self, name)[index] for name in COLUMNS})

    def row(self, i: int) -> dict[str, int]:
        """One layout as plain integers."""
        return {name: int(getattr(self, name)[i]) for name in COLUMNS}

    @staticmethod
    def of(rows: Iterable[Mapping[str, int]]) -> "Layouts":
        """A table from plain mappings; dimensions left out take :data:`DEFAULTS`."""
        rows = list(rows)
        return Layouts(
            **{name: np.array([row.get(name, DEFAULTS[name]) for row in rows], dtype=np.int64) for name in COLUMNS}
        )


COLUMNS = tuple(column.name for column in fields(Layouts))

DEFAULTS: Mapping[str, int] = {
    **dict.fromkeys(COLUMNS, 1),
    "sp": 0,
    "zero_stage": 0,
    "recompute": 0,
    "recompute_layers": -1,
    "schedule": 0,
    "cp_kind": 0,
    "swap_act": 0,
    "swap_os": 0,
}
