"""From a published ``config.json`` to a :class:`ModelSpec`: one reader per family of Hugging Face ``model_type``."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeGuard

from paraplan.foundation.errors import InputError
from paraplan.foundation.records import shown
from paraplan.question.models.spec import Experts, LatentAttention, LayerGroup, ModelSpec


@dataclass(frozen=True, slots=True)
class _Fields:
    """Typed access to a config's fields, with errors that name the file and the field."""

    where: str
    values: Mapping[str, Any]

    def count(self, *names: str, default: int | None = None, least: int = 1, most: int = 10**7) -> int:
        """The first of ``names`` that is there, as a whole number from ``least`` to ``most``."""
        for name in names:
            value = self.values.get(name)
            if value is None:
                continue
            if not _is_number(value) or not least <= value <= most or value != int(value):
                raise InputError(
                    f"{self.where}: {name}: {shown(value)} found, a whole number of at least {least} and at most"
                    f" {most:,} is needed"
                )
            return int(value)
        if default is None:
            raise InputError(f"{self.where}: {' or '.join(names)}: missing, a whole number is needed")
        return default

    def flag(self, *names: str, default: bool = False) -> bool:
        for name in names:
            value = self.values.get(name)
            if value is None:
                continue
            if not isinstance(value, bool):
                raise InputError(f"{self.where}: {name}: {shown(value)} found, true or false is needed")
            return value
        return default

    def capacity(self, experts: int) -> float | None:
        """The experts' capacity factor; one expert cannot get more than all tokens."""
        value = self.values.get("capacity_factor")
        if value is None:
            return None
        if not _is_number(value) or not 0 < value <= experts:
            raise InputError(
                f"{self.where}: capacity_factor: {shown(value)} found, more than 0 and at most the {experts} experts"
                " is needed"
            )
        return float(value)

    def dropout(self, name: str) -> bool:
        """Whether a probability of dropout is given and not zero."""
        value = self.values.get(name)
        if value is None:
            return False
        if not _is_number(value) or not 0 <= value <= 1:
            raise InputError(f"{self.where}: {name}: {shown(value)} found, a number from 0 to 1 is needed")
        return bool(value)

    def items(self, name: str, kind: type, needed: str) -> list[Any]:
        """A list of which every item is a ``kind``; empty where it is not given."""
        value = self.values.get(name)
        if value is None:
            return []
        if not isinstance(value, list) or not all(type(item) is kind for item in value):
            raise InputError(f"{self.where}: {name}: {shown(value)} found, a list of {needed} is needed")
        return value

    def word(self, name: str, default: str) -> str:
        value = self.values.get(name)
        return default if value is None else str(value)


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def read(config: Mapping[str, Any], name: str, where: str) -> ModelSpec:
    """Read a published config.

    Args:
        config: The fields of a Hugging Face ``config.json``.
        name: What to call the model.
        where: The file, for error messages.

    Raises:
        InputError: a field is missing or wrong, or the ``model_type`` is not supported.
    """
    fields = _Fields(where, config)
    model_type = config.get("model_type")
    if model_type is None:
        raise InputError(f"{where}: model_type: missing, one of {', '.join(supported_types())} is needed")
    reader = _READERS.get(str(model_type))
    if reader is None:
        raise InputError(
            f"{where}: model_type: {shown(model_type)} is not supported; supported are {', '.join(supported_types())}"
        )
    spec = reader(fields, name)
    _check(spec, where)
    return spec


def supported_types() -> list[str]:
    """Every ``model_type`` that :func:`read` understands."""
    return sorted(_READERS)


def _check(spec: ModelSpec, where: str) -> None:
    if spec.latent is None and spec.heads % spec.kv_heads:
        raise InputError(
            f"{where}: num_key_value_heads: {spec.kv_heads} found, a divisor of the {spec.heads} heads is needed"
        )
    if spec.experts and spec.experts.topk > spec.experts.count:
        raise InputError(
            f"{where}: num_experts_per_tok: {spec.experts.topk} found, at most {spec.experts.count} is allowed"
        )


def _base(fields: _Fields, name: str, wide: bool = False) -> ModelSpec:
    """What every family has; ``wide``: the feed-forward is four times as wide as the model unless told otherwise."""
    hidden = fields.count("hidden_size", "n_embd", "d_model")
    heads = fields.count("num_attention_heads", "n_head", "n_heads")
    layers = fields.count("num_hidden_layers", "n_layer", "n_layers", most=10**5)
    return ModelSpec(
        name=name,
        model_type=str(fields.values["model_type"]),
        hidden=hidden,
        heads=heads,
        kv_heads=fields.count("num_key_value_heads", default=heads),
        head_dim=fields.count("head_dim", default=max(1, hidden // heads)),
        ffn_hidden=fields.count(
            "intermediate_size", "ffn_hidden_size", "n_inner", default=4 * hidden if wide else None
        ),
        vocab=fields.count("vocab_size"),
        groups=(LayerGroup("dense", layers),),
        tied_embeddings=fields.flag("tie_word_embeddings"),
        max_positions=fields.count(
            "max_position_embeddings", "n_positions", "seq_length", default=0, least=0, most=10**9
        ),
        source=fields.word("source", ""),
    )


def _llama(fields: _Fields, name: str) -> ModelSpec:
    attention_bias = fields.flag("attention_bias")
    return replace(
        _base(fields, name),
        qkv_bias=attention_bias,
        attention_output_bias=attention_bias,
        mlp_bias=fields.flag("mlp_bias"),
        sliding_window=fields.count("sliding_window", default=0, least=0, most=10**9)
        if fields.values["model_type"] == "mistral"
        else 0,
        sliding_share=1.0 if fields.values["model_type"] == "mistral" and fields.values.get("sliding_window") else 0.0,
    )


def _qwen2(fields: _Fields, name: str) -> ModelSpec:
    return replace(_base(fields, name), qkv_bias=True)


def _qwen3(fields: _Fields, name: str) -> ModelSpec:
    bias = fields.flag("attention_bias")
    return replace(_base(fields, name), qk_norm=True, qkv_bias=bias, attention_output_bias=bias)


def _gpt2(fields: _Fields, name: str) -> ModelSpec:
    """GPT-2 and GPT-3: LayerNorm, learned positions, biases everywhere, dropout."""
    base = _base(fields, name, wide=True)
    return replace(
        base,
        gated=False,
        norm="layernorm",
        qkv_bias=True,
        attention_output_bias=True,
        mlp_bias=True,
        tied_embeddings=fields.flag("tie_word_embeddings", default=True),
        learned_positions=base.max_positions,
        attention_dropout=fields.dropout("attn_pdrop"),
    )


def _bloom(fields: _Fields, name: str) -> ModelSpec:
    return replace(
        _gpt2(fields, name),
        learned_positions=0,
        embedding_norm=True,
        attention_dropout=fields.dropout("attention_dropout"),
    )


def _mpt(fields: _Fields, name: str) -> ModelSpec:
    """MosaicML's MPT: no biases, ALiBi or learned positions, tied embeddings."""
    base = _base(fields, name, wide=True)
    attention = fields.values.get("attn_config") or {}
    alibi = bool(attention.get("alibi", False)) if isinstance(attention, Mapping) else False
    positions = fields.count("max_seq_len", default=2048, most=10**9)
    return replace(
        base,
        ffn_hidden=fields.count("expansion_ratio", default=4) * base.hidden,
        gated=False,
        norm="layernorm",
        tied_embeddings=fields.flag("tie_word_embeddings", default=True),
        learned_positions=0 if alibi else positions,
        max_positions=positions,
    )


def _gemma(fields: _Fields, name: str) -> ModelSpec:
    return replace(_base(fields, name), tied_embeddings=fields.flag("tie_word_embeddings", default=True))


def _mixtral(fields: _Fields, name: str) -> ModelSpec:
    base = _base(fields, name)
    experts = fields.count("num_local_experts")
    return replace(
        base,
        ffn_hidden=0,
        groups=(LayerGroup("moe", base.layers),),
        experts=Experts(
            count=experts,
            topk=fields.count("num_experts_per_tok"),
            ffn_hidden=base.ffn_hidden,
            capacity_factor=fields.capacity(experts),
        ),
    )


def _qwen_moe(fields: _Fields, name: str) -> ModelSpec:
    """Qwen2-MoE (shared expert with a gate) and Qwen3-MoE (none)."""
    third = fields.values["model_type"] == "qwen3_moe"
    base = _qwen3(fields, name) if third else _qwen2(fields, name)
    step = fields.count("decoder_sparse_step", default=1)
    dense_only = set(fields.items("mlp_only_layers", int, "layer numbers"))
    kinds: list[Literal["dense", "moe"]] = [
        "moe" if i not in dense_only and (i + 1) % step == 0 else "dense" for i in range(base.layers)
    ]
    return replace(
        base,
        ffn_hidden=base.ffn_hidden if "dense" in kinds else 0,
        groups=_runs(kinds),
        experts=Experts(
            count=fields.count("num_experts"),
            topk=fields.count("num_experts_per_tok"),
            ffn_hidden=fields.count("moe_intermediate_size"),
            shared_ffn_hidden=fields.count("shared_expert_intermediate_size", default=0, least=0),
            shared_gate=not third and bool(fields.values.get("shared_expert_intermediate_size")),
        ),
    )


def _deepseek(fields: _Fields, name: str) -> ModelSpec:
    """DeepSeek-V2 and V3, and Kimi-K2 which shares the architecture."""
    base = _base(fields, name)
    first_dense = min(fields.count("first_k_dense_replace", default=0, least=0), base.layers)
    frequency = fields.count("moe_layer_freq", default=1)
    kinds: list[Literal["dense", "moe"]] = [
        "moe" if i >= first_dense and i % frequency == 0 else "dense" for i in range(base.layers)
    ]
    width = fields.count("moe_intermediate_size")
    nope, rope = fields.count("qk_nope_head_dim"), fields.count("qk_rope_head_dim")
    return replace(
        base,
        head_dim=nope + rope,
        kv_heads=base.heads,
        ffn_hidden=base.ffn_hidden if "dense" in kinds else 0,
        groups=_runs(kinds),
        latent=LatentAttention(
            query_rank=fields.count("q_lora_rank", default=0, least=0),
            key_value_rank=fields.count("kv_lora_rank"),
            nope_head_dim=nope,
            rope_head_dim=rope,
            value_head_dim=fields.count("v_head_dim"),
        ),
        experts=Experts(
            count=fields.count("n_routed_experts"),
            topk=fields.count("num_experts_per_tok"),
            ffn_hidden=width,
            shared_ffn_hidden=width * fields.count("n_shared_experts", default=0, least=0),
            router_bias=fields.word("topk_method", "") == "noaux_tc",
        ),
        mtp_layers=fields.count("num_nextn_predict_layers", default=0, least=0),
    )


def _gpt_oss(fields: _Fields, name: str) -> ModelSpec:
    base = _base(fields, name)
    kinds = fields.items("layer_types", str, "kinds of attention")
    windowed = sum(kind == "sliding_attention" for kind in kinds) / len(kinds) if kinds else 0.5
    return replace(
        base,
        ffn_hidden=0,
        groups=(LayerGroup("moe", base.layers),),
        qkv_bias=True,
        attention_output_bias=True,
        mlp_bias=True,
        attention_sinks=True,
        experts=Experts(
            count=fields.count("num_local_experts", "num_experts"),
            topk=fields.count("num_experts_per_tok", "experts_per_token"),
            ffn_hidden=base.ffn_hidden,
            router_bias=True,
        ),
        sliding_window=fields.count("sliding_window", default=0, least=0, most=10**9),
        sliding_share=windowed,
    )


def _runs(kinds: list[Literal["dense", "moe"]]) -> tuple[LayerGroup, ...]:
    """Consecutive equal kinds joined."""
    groups: list[LayerGroup] = []
    for kind in kinds:
        if groups and groups[-1].kind == kind:
            groups[-1] = LayerGroup(kind, groups[-1].count + 1)
        else:
            groups.append(LayerGroup(kind, 1))
    return tuple(groups)


_READERS: Mapping[str, Callable[[_Fields, str], ModelSpec]] = {
    "llama": _llama,
    "mistral": _llama,
    "gpt2": _gpt2,
    "bloom": _bloom,
    "mpt": _mpt,
    "gemma": _gemma,
    "mixtral": _mixtral,
    "qwen2": _qwen2,
    "qwen2_moe": _qwen_moe,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen_moe,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "kimi_k2": _deepseek,
    "gpt_oss": _gpt_oss,
}
