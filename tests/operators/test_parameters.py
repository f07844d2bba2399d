"""Parameter counts against published totals, and what readers refuse."""

import pytest

from paraplan.foundation.errors import InputError
from paraplan.operators.parameters import active, embedding, layer, total
from paraplan.question.models import load_model, model_names
from paraplan.question.models.readers import read

PUBLISHED_TOTALS = {
    # Element counts of the published checkpoints, in 10^9; rounded where the authors give no more digits.
    "llama3-8b": 8.030261248,
    "llama3-70b": 70.553706496,
    "llama3-405b": 405.853388800,
    "llama2-7b": 6.738415616,
    "llama2-13b": 13.015864320,
    "llama2-70b": 68.976648192,
    "gpt3-175b": 175.0,
    "qwen2.5-72b": 72.706203648,
    "qwen3-235b-a22b": 235.093634560,
    "qwen3-30b-a3b": 30.532122624,
    "qwen2-57b-a14b": 57.409139200,
    "mixtral-8x7b": 46.702792704,
    "mixtral-8x22b": 140.620634112,
    "deepseek-v2": 235.741434880,
    "deepseek-v3": 671.026419200,
    "gpt-oss-120b": 116.83,
    "gpt-oss-20b": 20.91,
    "bloom-176b": 176.247271424,
    "gemma-2b": 2.506172416,
    "gemma-7b": 8.537680896,
    "deepseek-v2-lite": 15.7,
}

PUBLISHED_ACTIVE = {
    # Model cards, as many digits as they give: most are too coarse to test the half per cent.
    "mixtral-8x7b": "12.9",
    "mixtral-8x22b": "39",
    "qwen3-235b-a22b": "22",
    "qwen3-30b-a3b": "3.3",
    "deepseek-v3": "37",
    "deepseek-v2": "21",
    "qwen2-57b-a14b": "14",
}


@pytest.mark.parametrize("name", sorted(PUBLISHED_TOTALS))
def test_total_agrees_with_the_published_count(name: str) -> None:
    assert total(load_model(name)) / 1e9 == pytest.approx(PUBLISHED_TOTALS[name], rel=0.005)


@pytest.mark.parametrize("name", sorted(PUBLISHED_ACTIVE))
def test_active_agrees_with_the_published_count(name: str) -> None:
    published = PUBLISHED_ACTIVE[name]
    last_digit = 10.0 ** -len(published.partition(".")[2])
    assert abs(active(load_model(name)) / 1e9 - float(published)) <= last_digit / 2 + 0.005 * float(published)


def test_active_without_the_embedding_is_openai_s_figure() -> None:
    model = load_model("gpt-oss-120b")
    assert (active(model) - embedding(model)) / 1e9 == pytest.approx(5.13, rel=0.005)


def test_every_shipped_model_is_read() -> None:
    for name in model_names():
        model = load_model(name)
        assert model.layers > 0
        assert total(model) >= active(model) > 0


def test_llama_layer_by_hand() -> None:
    # Llama-3-8B: q and o 2·4096², k and v 2·4096·1024, three matrices 4096·14336, two norms of 4096.
    found = layer(load_model("llama3-8b"), "dense")
    assert found.attention == 2 * 4096**2 + 2 * 4096 * 1024
    assert found.feed_forward == 3 * 4096 * 14336
    assert found.norms == 2 * 4096
    assert found.total == found.attention + found.feed_forward + found.norms


def test_latent_attention_by_hand() -> None:
    # DeepSeek-V3: up 1536·128·192 + 512·128·256, out 128·128·7168; down 7168·(1536 + 576) and two inner norms.
    found = layer(load_model("deepseek-v3"), "moe")
    assert found.attention == 1536 * 128 * 192 + 512 * 128 * 256 + 128 * 128 * 7168
    assert found.attention_replicated == 7168 * (1536 + 512 + 64) + 1536 + 512
    assert found.experts == 256 * 3 * 7168 * 2048


SMALL = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_attention_heads": 8,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "vocab_size": 100,
}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "model_type: missing"),
        ({"model_type": "rwkv"}, "'rwkv' is not supported; supported are .*llama"),
        ({"model_type": "llama", "hidden_size": 64}, "num_attention_heads .*: missing"),
        ({"model_type": "llama", "hidden_size": -1}, "hidden_size: -1 found"),
        (
            SMALL | {"num_key_value_heads": 3},
            "num_key_value_heads: 3 found, a divisor of the 8 heads",
        ),
    ],
)
def test_wrong_config_names_the_field(config: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(config, "m", "m.json")


EXPERTS = {"num_local_experts": 8, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}


@pytest.mark.parametrize("field", ["hidden_size", "num_hidden_layers", "intermediate_size", "vocab_size"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e20, 0, True])
def test_impossible_count_names_the_field(field: str, value: float) -> None:
    with pytest.raises(InputError, match=f"m.json: {field}: .* found, a whole number of at least 1"):
        read(SMALL | {field: value}, "m", "m.json")


@pytest.mark.parametrize(
    ("model_type", "field", "value"),
    [
        *[("gpt_oss", "layer_types", value) for value in (3, "abc", [1])],
        *[("qwen3_moe", "mlp_only_layers", value) for value in (3, [[1]], [True])],
        *[("mixtral", "capacity_factor", value) for value in (float("inf"), float("nan"), 0, 9)],
        *[("gpt2", "attn_pdrop", value) for value in (-0.1, 1.1, "x")],
    ],
)
def test_impossible_field_of_a_family_is_named(model_type: str, field: str, value: object) -> None:
    config = SMALL | EXPERTS | {"model_type": model_type}
    read(config, "m", "m.json")
    with pytest.raises(InputError, match=f"m.json: {field}: "):
        read(config | {field: value}, "m", "m.json")


def test_no_dropout_is_a_probability() -> None:
    assert not read(SMALL | {"model_type": "gpt2", "attn_pdrop": 0.0}, "m", "m.json").attention_dropout


def test_misspelt_width_is_missing_and_foreign_keys_are_not_read() -> None:
    assert read(SMALL | {"torch_dtype": "bfloat16"}, "m", "m.json").ffn_hidden == 128
    misspelt = {key.replace("intermediate", "intermediat"): value for key, value in SMALL.items()}
    with pytest.raises(InputError, match=r"intermediate_size .*: missing"):
        read(misspelt, "m", "m.yaml")
    # GPT-2's n_inner may be absent: four times the width.
    assert read(misspelt | {"model_type": "gpt2"}, "m", "m.yaml").ffn_hidden == 256


def test_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean 'llama3-70b'"):
        load_model("llama3-70")
