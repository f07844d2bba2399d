"""The question every model answers: this model, trained this way, by this framework, on this cluster."""

from dataclasses import dataclass

from paraplan.clusters.spec import ClusterSpec
from paraplan.frameworks.spec import FrameworkSpec
from paraplan.models.spec import ModelSpec
from paraplan.training import TrainingSpec


@dataclass(frozen=True, slots=True)
class Problem:
    """Everything about a step except the layout."""

    model: ModelSpec
    cluster: ClusterSpec
    training: TrainingSpec
    framework: FrameworkSpec
