"""What a row of a table of runs says about how it ran."""

import pytest

from paraplan.errors import InputError
from paraplan.formats.runs_table import answer, framework_of, read_row
from paraplan.frameworks import load_framework
from paraplan.layouts import RECOMPUTE

ROW = {
    "id": "a",
    "source": "Megatron-Bridge performance summary",
    "model": "qwen3-30b-a3b",
    "experts": "128",
    "topk": "8",
    "hardware": "b200-180gb-sxm",
    "num_devices": "8",
    "ep": "8",
    "seq_len": "4096",
    "global_batch": "512",
    "micro_batch": "1",
    "precision": "bf16",
}


def test_release_of_the_container_says_what_was_captured() -> None:
    assert framework_of(ROW).expert_graphs
    for notes, graphs in (
        ("26.06 NeMo Container", False),
        ("25.09.01 NeMo Container", False),
        ("26.08 NeMo Container", True),
    ):
        found = framework_of(ROW | {"notes": notes})
        assert (found.name, found.expert_graphs) == ("nemo", graphs)
        assert found.release == notes[:5]


def test_release_of_a_plan_is_an_option_of_the_framework() -> None:
    assert load_framework("nemo").expert_graphs
    assert not load_framework("nemo", {"release": "25.11"}).expert_graphs
    assert load_framework("nemo", {"release": "25.11", "expert_graphs": True}).expert_graphs
    with pytest.raises(InputError, match=r"release: 'new' found"):
        load_framework("nemo", {"release": "new"})


def test_capacity_is_read_from_the_notes() -> None:
    for notes, factor in (("tokendrop", 1.0), ("capacity factor 1.25, alltoall", 1.25), ("dropless", None)):
        experts = read_row(ROW | {"notes": notes}).problem.model.experts
        assert experts is not None
        assert experts.capacity_factor == factor
    # Launched one by one, the same products take longer.
    assert (
        answer(ROW | {"notes": "26.02 NeMo Container"}).step_time
        > answer(ROW | {"notes": "26.02 NeMo Container, tokendrop"}).step_time
    )


def test_swapped_attention_recomputes_the_rest() -> None:
    row = ROW | {"source": "MindSpeed-LLM", "hardware": "a2", "recompute": "none", "notes": "swap-attention"}
    assert set(read_row(row).layouts.recompute) == {RECOMPUTE.index("full")}
    assert set(read_row(row | {"notes": ""}).layouts.recompute) == {RECOMPUTE.index("none")}
