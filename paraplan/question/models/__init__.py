"""What is trained: shapes, parameter counts, readers of published configs."""

from paraplan.question.models.catalogue import load_model, model_names
from paraplan.question.models.spec import Experts, LatentAttention, LayerGroup, ModelSpec

__all__ = ["Experts", "LatentAttention", "LayerGroup", "ModelSpec", "load_model", "model_names"]
