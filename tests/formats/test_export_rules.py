"""Exports follow the frameworks' own rules."""

from dataclasses import replace

import pytest
import yaml

from paraplan.errors import InputError
from paraplan.formats.export import Launch, export, launch_of, pipeline_layout


def launch(layers: list[list[int]], recompute: dict[str, list[list[int]]] | None = None, **parallel: object) -> Launch:
    row = {
        "dp": 4, "tp": 8, "cp": 1, "ep": 1, "etp": 8, "pp": len(layers[0]), "vpp": len(layers), "mbs": 1, "mb": 8, "sp": 1,  # noqa: E501
        "zero_stage": 1, "op": 4, "recompute": "none", **parallel,
    }  # fmt: skip
    training = {"global_batch": 32, "sequence_length": 4096, "precision": "bf16"}
    schedule = "interleaved" if len(layers) > 1 else "1f1b"
    return Launch(row, training, layers, recompute or {"none": layers}, schedule, 0)


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
    with pytest.raises(InputError, match="keeps the loss on the last chunk"):
        pipeline_layout(replace(given, moved={"head": [[0, 0], [1, 0]]}))
    with pytest.raises(InputError, match="keeps it on the first stage"):
        pipeline_layout(replace(given, moved={"embedding": [[0, 1], [0, 0]]}))


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


def test_wrong_plans_are_refused() -> None:
    with pytest.raises(InputError, match="one of megatron"):
        export(launch([[2, 2]]), "keras")
    with pytest.raises(InputError, match="plans: missing"):
        launch_of({}, 1, "x.json")
    with pytest.raises(InputError, match="not a plan of ours"):
        launch_of({"plans": [{}]}, 1, "x.json")
