"""The question every model answers: this model, trained this way, by this framework, on this cluster."""

from dataclasses import dataclass

from paraplan.question.clusters.spec import ClusterSpec
from paraplan.question.frameworks.spec import FrameworkSpec
from paraplan.question.models.spec import ModelSpec
from paraplan.question.training import TrainingSpec


@dataclass(frozen=True, slots=True)
class Problem:
    """Everything about a step except the layout."""

    model: ModelSpec
    cluster: ClusterSpec
    training: TrainingSpec
    framework: FrameworkSpec

    @property
    def expert_load(self) -> float:
        """Tokens that the busiest rank's experts compute, over the even share: a capacity is filled up to."""
        experts = self.model.experts
        if experts is not None and experts.capacity_factor is not None:
            return experts.capacity_factor
        return self.training.expert_imbalance
