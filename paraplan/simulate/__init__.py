"""Pipeline schedules and the engine that times them."""

from paraplan.schedules.orders import order
from paraplan.simulate.engine import Timeline, bubble, peak_memory, simulate
from paraplan.simulate.graph import PipelineGraph, build_graph
from paraplan.simulate.in_flight import InFlight, in_flight

__all__ = [
    "InFlight",
    "PipelineGraph",
    "Timeline",
    "bubble",
    "build_graph",
    "in_flight",
    "order",
    "peak_memory",
    "simulate",
]
