"""Parameter counts from a model's shape, by part, so that published totals check the shape.

All counts are elements of the whole model, unsharded.
"""

from dataclasses import dataclass

from paraplan.question.models.spec import LayerKind, ModelSpec


@dataclass(frozen=True, slots=True)
class LayerParameters:
    """Parameters of one layer, by how frameworks shard them."""

    attention: int
    """Projections split over tp."""
    attention_replicated: int
    """MLA's down projections, which every tensor-parallel rank holds whole."""
    feed_forward: int
    """Dense feed-forward and shared experts, split over tp."""
    router: int
    experts: int
    """All routed experts, split over ep and etp."""
    norms: int
    """Norm weights (and biases), replicated."""

    @property
    def total(self) -> int:
        return self.attention + self.attention_replicated + self.feed_forward + self.router + self.experts + self.norms


def layer(model: ModelSpec, kind: LayerKind) -> LayerParameters:
    """Parameters of one transformer layer of ``kind``."""
    sharded, replicated = _attention(model)
    experts = router = 0
    if kind == "moe":
        spec = model.experts
        assert spec is not None, "a moe layer needs experts"
        experts = spec.count * _feed_forward(model, spec.ffn_hidden)
        router = spec.count * model.hidden + (spec.count if spec.router_bias else 0)
        feed_forward = _feed_forward(model, spec.shared_ffn_hidden) if spec.shared_ffn_hidden else 0
        router += model.hidden if spec.shared_gate else 0
    else:
        feed_forward = _feed_forward(model, model.ffn_hidden)
    return LayerParameters(sharded, replicated, feed_forward, router, experts, _norms(model))


def embedding(model: ModelSpec) -> int:
    """The token table, learned positions and the norm after them."""
    table = model.vocab * model.hidden + model.learned_positions * model.hidden
    return table + (_norm(model, model.hidden) if model.embedding_norm else 0)


def head(model: ModelSpec) -> int:
    """The final norm and the output projection; the projection is the token table where they are tied."""
    return _norm(model, model.hidden) + (0 if model.tied_embeddings else model.vocab * model.hidden)


def mtp_layer(model: ModelSpec) -> int:
    """One multi-token-prediction layer: a transformer layer, the joining projection, two norms and the final one.

    DeepSeek-V3 (arXiv:2412.19437), section 2.2; embedding and head are shared with the model.
    """
    return layer(model, model.groups[-1].kind).total + 2 * model.hidden * model.hidden + 3 * _norm(model, model.hidden)


def total(model: ModelSpec, *, mtp: bool = False) -> int:
    """All parameters; multi-token-prediction layers only on request, since published totals leave them out."""
    layers = sum(group.count * layer(model, group.kind).total for group in model.groups)
    return embedding(model) + layers + head(model) + (model.mtp_layers * mtp_layer(model) if mtp else 0)


def active(model: ModelSpec) -> int:
    """Parameters that one token passes: of the routed experts only the top k."""
    if model.experts is None:
        return total(model)
    moe_layers = sum(group.count for group in model.groups if group.kind == "moe")
    idle = model.experts.count - model.experts.topk
    return total(model) - moe_layers * idle * _feed_forward(model, model.experts.ffn_hidden)


def _attention(model: ModelSpec) -> tuple[int, int]:
    hidden, heads = model.hidden, model.heads
    if model.latent is not None:
        latent = model.latent
        query_key = latent.nope_head_dim + latent.rope_head_dim
        if latent.query_rank:
            query = latent.query_rank * heads * query_key
            replicated = hidden * latent.query_rank + latent.query_rank
        else:
            query, replicated = hidden * heads * query_key, 0
        key_value = latent.key_value_rank * heads * (latent.nope_head_dim + latent.value_head_dim)
        replicated += hidden * (latent.key_value_rank + latent.rope_head_dim) + latent.key_value_rank
        return query + key_value + heads * latent.value_head_dim * hidden, replicated
    query_width, key_value_width = heads * model.head_dim, model.kv_heads * model.head_dim
    sharded = hidden * (query_width + 2 * key_value_width) + query_width * hidden
    if model.qkv_bias:
        sharded += query_width + 2 * key_value_width
    if model.attention_sinks:
        sharded += heads
    return sharded, hidden if model.attention_output_bias else 0


def _feed_forward(model: ModelSpec, width: int) -> int:
    matrices = 3 if model.gated else 2
    biases = (matrices - 1) * width + model.hidden if model.mlp_bias else 0
    return matrices * model.hidden * width + biases


def _norm(model: ModelSpec, width: int) -> int:
    return width * (2 if model.norm == "layernorm" and model.mlp_bias else 1)


def _norms(model: ModelSpec) -> int:
    return model.norms_per_layer * _norm(model, model.hidden) + (2 * model.head_dim if model.qk_norm else 0)
