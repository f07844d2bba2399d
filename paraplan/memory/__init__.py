"""The analytic memory model."""

from paraplan.memory.model import (
    COMPONENTS,
    LayerMemory,
    MemoryTable,
    StageMemory,
    estimate,
    layer_memory,
    peaks,
    per_stage,
)

__all__ = ["COMPONENTS", "LayerMemory", "MemoryTable", "StageMemory", "estimate", "layer_memory", "peaks", "per_stage"]
