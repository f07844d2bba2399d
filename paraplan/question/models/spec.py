"""What is trained: the shape of a transformer, as far as its cost depends on it.

Filled from a published ``config.json`` by :mod:`paraplan.question.models.readers`. Every width is a count of
elements of the *whole* model; nothing here knows how it is split over devices.
"""

from dataclasses import dataclass
from typing import Literal

LayerKind = Literal["dense", "moe"]
"""Kinds of transformer layer. The full set a pipeline places adds ``embedding``, ``mtp`` and ``head``."""


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1)."""

    query_rank: int
    """Rank of the query's down projection; 0 where queries are projected directly."""
    key_value_rank: int
    nope_head_dim: int
    """Query/key dimensions a head without rotary embedding."""
    rope_head_dim: int
    value_head_dim: int


@dataclass(frozen=True, slots=True)
class Experts:
    """The routed and shared experts of one mixture-of-experts layer."""

    count: int
    topk: int
    ffn_hidden: int
    """Width of one routed expert."""
    shared_ffn_hidden: int = 0
    """Total width of the shared experts that every token passes; 0 where there are none."""
    shared_gate: bool = False
    """Whether the shared expert has a scalar gate (Qwen2-MoE)."""
    router_bias: bool = False
    capacity_factor: float | None = None
    """Tokens an expert accepts over the even share; None: dropless."""


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Consecutive layers of one kind."""

    kind: LayerKind
    count: int


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder-only transformer."""

    name: str
    model_type: str
    """The Hugging Face ``model_type``."""
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn_hidden: int
    """Width of a dense layer's feed-forward; 0 where every layer is a mixture of experts."""
    vocab: int
    groups: tuple[LayerGroup, ...]
    """The transformer layers in order, e.g. 3 dense then 58 moe."""
    gated: bool = True
    """Feed-forward with a gate (SwiGLU): three matrices instead of two."""
    norm: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    norms_per_layer: int = 2
    qk_norm: bool = False
    qkv_bias: bool = False
    attention_output_bias: bool = False
    mlp_bias: bool = False
    tied_embeddings: bool = False
    learned_positions: int = 0
    """Entries of a learned position table; 0 for rotary or ALiBi."""
    embedding_norm: bool = False
    attention_dropout: bool = False
    """Trained with attention and hidden dropout (GPT-3 era models): masks are kept for backward."""
    attention_sinks: bool = False
    latent: LatentAttention | None = None
    experts: Experts | None = None
    mtp_layers: int = 0
    """Multi-token-prediction layers after the last transformer layer (DeepSeek-V3)."""
    sliding_window: int = 0
    """Keys a windowed layer attends to; 0: none."""
    sliding_share: float = 0.0
    """Share of the layers that are windowed."""
    max_positions: int = 0
    """The longest sequence the published config allows; 0: not stated."""
    source: str = ""

    @property
    def layers(self) -> int:
        """Transformer layers, without multi-token-prediction layers."""
        return sum(group.count for group in self.groups)
