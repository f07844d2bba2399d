"""The kinds of layer a pipeline places, and how layers are dealt over stages before balancing."""

from dataclasses import dataclass

import numpy as np

from paraplan.foundation.arrays import IntArray
from paraplan.question.layouts import Layouts
from paraplan.question.models.spec import ModelSpec

KINDS = ("embedding", "dense", "moe", "mtp", "head")


@dataclass(frozen=True, slots=True)
class StageLayers:
    """Layers of some stages, arrays of shape (N,)."""

    dense: IntArray
    moe: IntArray

    @property
    def total(self) -> IntArray:
        return self.dense + self.moe


def front_dense(model: ModelSpec) -> int:
    """Dense layers; published expert models put them in front."""
    return sum(group.count for group in model.groups if group.kind == "dense")


def on_stage(model: ModelSpec, layouts: Layouts, stage: IntArray) -> StageLayers:
    """Layers of one stage a layout, dealt evenly over the chunks.

    Chunk ``c = v·pp + s`` is chunk ``v`` of stage ``s``. Each gets ``layers // (pp·vpp)``; the remainder goes, one
    each, to the last chunks but one, away from the embedding's stage (most micro-batches in flight) and from the
    head's (loss over the vocabulary).
    """
    chunks = layouts.pp * layouts.vpp
    share, rest = np.divmod(model.layers, chunks)
    # The extra layers sit on chunks chunks-1-rest … chunks-2; of those, the ones on this stage:
    extra = (chunks - 2 - stage) // layouts.pp - (chunks - 2 - rest - stage) // layouts.pp
    total = share * layouts.vpp + extra
    dense_layers = front_dense(model)
    if dense_layers == 0:
        return StageLayers(np.zeros_like(total), total)
    if dense_layers == model.layers:
        return StageLayers(total, np.zeros_like(total))
    dense = np.zeros_like(total)
    # Extras sit at the back, so the chunks that hold the front layers have the plain share unless it is zero.
    chunk = stage.copy()
    while True:
        first = chunk * share + np.maximum(0, chunk - (chunks - 1 - rest))
        size = share + ((chunk >= chunks - 1 - rest) & (chunk <= chunks - 2))
        held = np.where(chunk < chunks, np.clip(dense_layers - first, 0, size), 0)
        if not held.any():
            return StageLayers(dense, total - dense)
        dense += held
        chunk = chunk + layouts.pp
