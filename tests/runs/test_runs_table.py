"""What a row of a table of runs says about how it ran."""

import csv
import json
from pathlib import Path

import pytest

from paraplan.cli import main
from paraplan.foundation.errors import InputError
from paraplan.question.frameworks import load_framework
from paraplan.question.layouts import RECOMPUTE
from paraplan.runs.table import answer, framework_of, read_row

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


SMALL = {
    "id": "a",
    "model": "llama3-8b",
    "hardware": "h100-80gb-sxm",
    "num_devices": "8",
    "tp": "2",
    "pp": "1",
    "seq_len": "4096",
    "global_batch": "16",
}
CUSTOM = {"model": "mine", "layers": "4", "hidden": "1024", "heads": "8"}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"micro_batch": "3"}, "mbs=3 breaks rule 'batch over dp and mbs': the global batch 16"),
        ({"micro_batch": "64"}, "mbs=64 breaks rule 'batch over dp and mbs'"),
        ({"global_batch": "7"}, "breaks rule 'batch over dp and mbs': the global batch 7"),
        ({"num_devices": "64", "tp": "1", "pp": "64"}, "pp=64 breaks rule 'layers over pp'"),
        ({"num_devices": "64", "tp": "64"}, "tp=64 breaks rule 'heads over tp'"),
        ({"num_devices": "14", "cp": "7"}, "cp=7, cp_kind=ring breaks rule 'sequence over cp'"),
        ({"vpp": "100"}, "vpp=100 breaks rule 'layers over chunks'"),
        ({"vpp": "2"}, "vpp=2 breaks rule 'interleaving needs a pipeline'"),
        (CUSTOM | {"heads": "7"}, "tp=2 breaks rule 'heads over tp': .* 7 attention heads"),
        (CUSTOM | {"experts": "8", "topk": "9"}, "topk: 9 found, at most the 8 experts"),
        ({"heads": "7"}, "layers: missing, and hidden, heads or experts are not those of llama3-8b"),
        ({"kv_heads": "7"}, "kv_heads: 7 found, a divisor of the 32 heads"),
        ({"kv_heads": "64"}, "kv_heads: 64 found, a divisor of the 32 heads"),
        ({"precision": "fp8", "hardware": "a100-80gb-sxm"}, "precision: 'fp8' found, a100-80gb-sxm has"),
        ({"precision": "nvfp4"}, "precision: 'nvfp4' found, h100-80gb-sxm has"),
        ({"precision": "bf16", "hardware": "v100-32gb-sxm"}, "precision: 'bf16' found, v100-32gb-sxm has"),
        ({"zero_stage": "7"}, "zero_stage: 7 found, a whole number from 0 to 3"),
        ({"num_devices": "2", "zero_stage": "7"}, "zero_stage: 7 found, a whole number from 0 to 3"),
        ({"recompute": "nonsense"}, "recompute: 'nonsense' found"),
        ({"recompute": "nope"}, "recompute: 'nope' found"),
        ({"schedule": "foo"}, "schedule: 'foo' found"),
        ({"sp": "maybe"}, "sp: 'maybe' found, yes or no"),
        ({"fused_rms_norm": "maybe"}, "fused_rms_norm: 'maybe' found, yes or no"),
        ({"attention": "zzz"}, "attention: 'zzz' found, flash or unfused"),
        ({"seq_len": "1e12"}, r"seq_len: 1e\+12 found, a whole number from 1"),
        ({"global_batch": "1e30"}, r"global_batch: 1e\+30 found"),
        ({"micro_batch": "1e30"}, r"micro_batch: 1e\+30 found"),
        ({"vpp": "1e20"}, r"vpp: 1e\+20 found"),
        ({"layers": "1e30"}, r"layers: 1e\+30 found"),
        ({"zero_stage": "1e30"}, r"zero_stage: 1e\+30 found"),
    ],
)
def test_impossible_row_says_why(changed: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_row(SMALL | changed)
    assert answer(SMALL | changed).error


@pytest.mark.parametrize(
    "changed",
    [
        # What published tables write of dimensions that mean nothing.
        {"num_devices": "2", "zero_stage": "1"},
        {"num_devices": "8", "tp": "1", "sp": "yes"},
        # Embedding and head are two of the 8·4 layers.
        {"num_devices": "16", "pp": "8", "layers": "30", "vpp": "4", "schedule": "interleaved-1f1b"},
        {"recompute": "selective(every 2nd layer)", "schedule": "none", "attention": "FlashAttention-2", "sp": "Yes"},
        {"notes": "etp=99999999999999999999"},
        {"num_devices": "64", "pp": "4", "schedule": "dualpipe", "global_batch": "64"},
        {"num_devices": "64", "pp": "4", "schedule": "zb-v", "vpp": "1", "global_batch": "64"},
        # Frameworks of today want groups of pp micro-batches, and batches that are whole.
        {"num_devices": "64", "pp": "4", "vpp": "2", "global_batch": "24", "micro_batch": "1"},
        {"global_batch": "2046", "micro_batch": "4"},
    ],
)
def test_possible_row_is_answered(changed: dict[str, str]) -> None:
    assert not answer(SMALL | changed).error


def test_name_of_a_shipped_model_is_enough() -> None:
    row = {"id": "a", "model": "mixtral-8x7b", "hardware": "h100-80gb-sxm", "num_devices": "64", "global_batch": "128"}
    model = read_row(row).problem.model
    assert model.experts is not None
    assert (model.experts.count, model.layers, model.model_type) == (8, 32, "mixtral")


def run_table(folder: Path, rows: list[dict[str, str]], *arguments: str, text: str = "") -> int:
    columns = list({name: None for row in rows for name in row})
    with (folder / "runs.csv").open("w", newline="") as stream:
        if rows:
            writer = csv.DictWriter(stream, columns)
            writer.writeheader()
            writer.writerows(rows)
        stream.write(text)
    return main(["estimate", "--table", str(folder / "runs.csv"), *arguments])


def test_row_that_is_refused_takes_no_other_with_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "out.csv"
    bad = SMALL | {"id": "b", "seq_len": "1e12"}
    assert run_table(tmp_path, [SMALL, bad, SMALL | {"id": "c"}], "--output", str(output)) == 0
    with output.open() as stream:
        assert [bool(row["error"]) for row in csv.DictReader(stream)] == [False, True, False]
    capsys.readouterr()
    # Nothing is answered: no answer.
    assert run_table(tmp_path, [bad], "--output", str(output), "--json") == 1
    assert json.loads(capsys.readouterr().out) == {"answered": 0, "refused": 1, "output": str(output)}


def test_table_from_a_spreadsheet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    header, values = ",".join(SMALL), ",".join(SMALL.values())
    assert run_table(tmp_path, [], "--output", "-", text=f"\ufeff{header}\n{values}\n") == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("a,0.")
    text = f"{header}\n{values}\n".replace(",", ";")
    assert run_table(tmp_path, [], "--output", "-", text=text) == 2
    assert capsys.readouterr().err.endswith("runs.csv: columns separated by ';' found, commas are needed\n")


def test_answers_never_take_the_place_of_the_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "link.csv").symlink_to("runs.csv")
    for name in ("runs.csv", "link.csv"):
        assert run_table(tmp_path, [SMALL], "--output", str(tmp_path / name)) == 2
        assert "is the table of runs itself" in capsys.readouterr().err
        assert (tmp_path / "runs.csv").read_text().startswith("id,model,")
    assert run_table(tmp_path, [SMALL], "--output", "-", "--json") == 2
    assert "--json: standard output takes the table" in capsys.readouterr().err
