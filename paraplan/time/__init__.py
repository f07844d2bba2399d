"""The analytic time model."""

from paraplan.time.metrics import mfu, tokens_per_second_per_device
from paraplan.time.model import COMPONENTS, LayerTimes, TimeTable, estimate, layer_times, step_times

__all__ = [
    "COMPONENTS",
    "LayerTimes",
    "TimeTable",
    "estimate",
    "layer_times",
    "mfu",
    "step_times",
    "tokens_per_second_per_device",
]
