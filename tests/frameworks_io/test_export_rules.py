"""Exports follow the frameworks' own rules."""

from dataclasses import replace
from typing import Any

import pytest
import yaml

from paraplan.foundation.errors import InputError
from paraplan.frameworks_io.export import Launch, export, pipeline_layout
from paraplan.plan.published import PublishedLayout, PublishedTraining


def launch(layers: list[list[int]], recompute: dict[str, list[list[int]]] | None = None, **parallel: int) -> Launch:
    row: dict[str, Any] = {
        "dp": 4, "tp": 8, "cp": 1, "ep": 1, "etp": 8, "pp": len(layers[0]), "vpp": len(layers), "mbs": 1, "mb": 8, "sp": 1,  # noqa: E501
        "zero_stage": 1, "op": 4, **parallel,
    }  # fmt: skip
    training = PublishedTraining(global_batch=32, sequence_length=4096, precision="bf16")
    schedule = "interleaved" if len(layers) > 1 else "1f1b"
    return Launch(PublishedLayout(**row), training, layers, recompute or {"none": layers}, schedule, 0)


def test_megatron_layout_names_every_layer_in_model_order() -> None:
    given = launch([[2, 3], [3, 1]])
    assert pipeline_layout(given) == "Ett|ttt|ttt|tL"
    text = export(given, "megatron")
    assert "--pipeline-model-parallel-layout 'Ett|ttt|ttt|tL'" in text
    assert text.count("t", text.index("'E"), text.index("L'")) == given.total
    assert "--sequence-parallel" in text
    assert "--use-distributed-optimizer" in text


def test_prediction_layer_that_moved_is_where_the_plan_has_it() -> None:
    given = replace(launch([[2, 3], [3, 1]]), mtp=1, moved={"mtp": [[0, 0], [1, 0]]})
    assert pipeline_layout(given) == "Ett|ttt|tttm|tL"
    with pytest.raises(InputError, match="movable mtp: TorchTitan keeps it at its end"):
        export(given, "torchtitan")


@pytest.mark.parametrize("framework", ["megatron", "mindspeed", "mindformers", "hyperparallel", "torchtitan"])
@pytest.mark.parametrize(("end", "place"), [("embedding", [[0, 1], [0, 0]]), ("head", [[0, 0], [1, 0]])])
def test_ends_that_moved_are_refused_even_when_chunks_are_equal(
    framework: str, end: str, place: list[list[int]]
) -> None:
    with pytest.raises(InputError, match=f"movable {end}"):
        export(replace(launch([[4, 4], [4, 4]]), moved={end: place}), framework)


def test_ends_that_may_move_and_stayed_are_exported() -> None:
    stayed = replace(launch([[4, 4]]), moved={"embedding": [[1, 0]], "head": [[0, 1]]})
    assert "--pipeline-model-parallel-layout 'Etttt|ttttL'" in export(stayed, "megatron")
    assert export(stayed, "torchtitan") == export(launch([[4, 4]]), "torchtitan")


def test_megatron_uses_plain_flags_when_chunks_are_equal() -> None:
    text = export(launch([[2, 2], [2, 2]]), "megatron")
    assert "--num-layers-per-virtual-pipeline-stage 2" in text
    assert "layout" not in text


def test_megatron_refuses_recompute_that_differs_between_stages() -> None:
    with pytest.raises(InputError, match="one setting for all"):
        export(launch([[4, 4]], {"none": [[0, 4]], "full": [[4, 0]]}), "megatron")
    block = export(launch([[4, 4]], {"none": [[2, 2]], "full": [[2, 2]]}), "megatron")
    assert "--recompute-method block" in block
    assert "--recompute-num-layers 2" in block


def test_mindformers_offsets_sum_to_the_remainder_and_lists_include_the_stronger() -> None:
    given = launch([[5, 5], [4, 4]], {"none": [[2, 3], [4, 4]], "full": [[2, 0], [0, 0]], "both": [[1, 2], [0, 0]]})
    document = yaml.safe_load(export(given, "mindformers"))
    offset = document["model"]["model_config"]["offset"]
    assert sum(map(sum, offset)) == given.total % 4
    assert offset == [[1, 1], [0, 0]]
    recompute = document["recompute_config"]
    assert recompute["recompute"] == [[2, 0], [0, 0]]
    assert recompute["select_recompute"] == recompute["select_comm_recompute"] == [[3, 2], [0, 0]]
    assert document["parallel"]["pipeline_config"]["pipeline_interleave"] is True


def test_torchtitan_lists_every_module_once() -> None:
    text = export(launch([[2, 1]], zero_stage=1), "torchtitan")
    assert '[["tok_embeddings", "layers.0", "layers.1"], ["layers.2", "norm", "output"]]' in text
    assert 'pipeline_parallel_schedule = "1F1B"' in text


def test_v_schedule_runs_its_second_chunk_from_the_last_stage_to_the_first() -> None:
    given = replace(launch([[3, 2], [1, 2]]), schedule="zb-v", moved={"head": [[0, 0], [1, 0]]})
    # In the order of the model: 3 and 2 layers down, then 2 on stage 1 and 1 on stage 0.
    assert (
        '[["tok_embeddings", "layers.0", "layers.1", "layers.2"], ["layers.3", "layers.4"],'
        ' ["layers.5", "layers.6"], ["layers.7", "norm", "output"]]'
    ) in export(given, "torchtitan")
    # MindFormers reads the second row by stage and turns it round itself (LayerSetting, is_zbv).
    assert yaml.safe_load(export(given, "mindformers"))["model"]["model_config"]["offset"] == [[1, 0], [-1, 0]]
    with pytest.raises(InputError, match="movable head: TorchTitan keeps it at its end"):
        export(replace(given, moved={"head": [[0, 0], [0, 1]]}), "torchtitan")


def test_torchtitan_refuses_recompute_of_some_layers() -> None:
    with pytest.raises(InputError, match="recompute full, none: TorchTitan has none, selective or full for all"):
        export(launch([[4, 4]], {"none": [[4, 3]], "full": [[0, 1]]}), "torchtitan")
    for strategy, mode in (("none", "none"), ("select", "selective"), ("full", "full")):
        assert f'mode = "{mode}"' in export(launch([[4, 4]], {"comm": [[0, 0]], strategy: [[4, 4]]}), "torchtitan")


def test_unknown_framework_is_refused() -> None:
    with pytest.raises(InputError, match="one of megatron"):
        export(launch([[2, 2]]), "keras")
