"""Pipeline schedules and the engine that times them."""

from paraplan.simulator.engine import Timeline, bubble, peak_memory, simulate
from paraplan.simulator.graph import PipelineGraph, build_graph
from paraplan.simulator.in_flight import InFlight, in_flight
from paraplan.simulator.schedules import order

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
