"""A table of training runs, one row a run, turned into problems and layouts and answered row by row.

The columns are those of ``benchmarks/data/runs.csv``. A blank cell, or a column that is not there, is unknown and
takes what the framework would take; where published runs are tuned (micro-batch size, chunks a stage, recompute) the
unknown takes the fastest value that fits.
"""

import csv
import io
import math
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from paraplan import memory
from paraplan import time as performance
from paraplan.foundation.documents import read_text, write_whole
from paraplan.foundation.errors import InputError, ParaplanError
from paraplan.question.clusters import DeviceSpec, load_device, make_cluster
from paraplan.question.frameworks import FrameworkSpec, load_framework
from paraplan.question.layouts import COLUMNS, RECOMPUTE, SCHEDULES, Layouts
from paraplan.question.models.catalogue import load_model, model_names
from paraplan.question.models.spec import Experts, LayerGroup, ModelSpec
from paraplan.question.problem import Problem
from paraplan.question.search_spec import NAMES, SearchSpec
from paraplan.question.training import Precision, TrainingSpec
from paraplan.schedules.orders import V_SHAPED
from paraplan.search.rules import rules
from paraplan.time.metrics import model_flops_per_token

OUTPUT_COLUMNS = (
    "id",
    "step_time_s",
    "tokens_per_s_per_device",
    "tflops_per_device",
    "mfu",
    "peak_memory_gib",
    "fits",
    "error",
)

_FRAMEWORKS = (
    ("torchtitan", "torchtitan"),
    ("llm-foundry", "llm-foundry"),
    ("mosaic", "llm-foundry"),
    ("mindspeed", "mindspeed"),
    ("mindformers", "mindformers"),
    ("mindspore", "mindformers"),
    ("hyperparallel", "hyperparallel"),
    ("megatron-bridge", "nemo"),
    ("nemo", "nemo"),
    ("dgxc", "nemo"),
    ("bigscience", "deepspeed"),
    ("vtrain", "deepspeed"),
    ("deepspeed", "deepspeed"),
    ("aleph-alpha", "eager"),
)
"""Words in a row's ``framework`` or ``source`` that tell which framework ran it; otherwise Megatron-LM."""


@dataclass(frozen=True, slots=True)
class Row:
    """One run: the problem, and the layouts that its unknowns leave open."""

    problem: Problem
    layouts: Layouts


@dataclass(frozen=True, slots=True)
class Answer:
    """The prediction for one row; numbers are NaN where ``error`` says why."""

    step_time: float
    peak_memory: float
    """Bytes."""
    fits: bool
    error: str
    problem: Problem | None = None
    layout: Layouts | None = None


def estimate_table(path: Path, output: Path) -> tuple[int, int]:
    """Answer every row of ``path`` and write ``output``; returns the rows answered and the rows refused.

    Args:
        path: The table.
        output: Where the answers go; ``-`` is standard output.

    Raises:
        InputError: the table cannot be read, or has no ``id`` column, or the answers would take its place.
    """
    rows = read_rows(path)
    written = str(output) != "-"
    if written and output.exists() and output.samefile(path):
        raise InputError(f"{output}: is the table of runs itself, another file is needed for the answers")
    answers = [answer(row) for row in rows]
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(OUTPUT_COLUMNS)
    for row, found in zip(rows, answers, strict=True):
        writer.writerow([row["id"], *_cells(found)])
    if written:
        write_whole(output, stream.getvalue())
    else:
        sys.stdout.write(stream.getvalue())
    refused = sum(bool(found.error) for found in answers)
    return len(rows) - refused, refused


def read_rows(path: Path) -> list[dict[str, str]]:
    """The table's rows; every row has an ``id``."""
    try:
        reader = csv.DictReader(io.StringIO(read_text(path)), restkey="beyond the header", restval="")
        rows = list(reader)
    except csv.Error as error:
        raise InputError(f"{path}: not a CSV table ({error})") from None
    names = reader.fieldnames or []
    if len(names) == 1 and ";" in names[0]:
        raise InputError(f"{path}: columns separated by ';' found, commas are needed")
    if "id" not in names:
        raise InputError(f"{path}: column id: missing, a header with id, model, hardware, … is needed")
    for row in rows:
        row.pop("beyond the header", None)
    return rows


def answer(cells: Mapping[str, str]) -> Answer:
    """Predict one row; a row that cannot be predicted says why."""
    try:
        row = read_row(cells)
        table = memory.estimate(row.problem, row.layouts)
        seconds = performance.step_times(row.problem, row.layouts)
    except ParaplanError as error:
        return Answer(math.nan, math.nan, False, str(error))
    budget = row.problem.cluster.memory_budget
    fitting = table.peak_N <= budget
    # The fastest of what fits; where nothing does, the smallest.
    chosen = int(np.argmin(np.where(fitting, seconds, np.inf)) if fitting.any() else np.argmin(table.peak_N))
    return Answer(
        float(seconds[chosen]),
        float(table.peak_N[chosen]),
        bool(fitting[chosen]),
        "",
        row.problem,
        row.layouts.take(np.array([chosen])),
    )


def read_row(cells: Mapping[str, str]) -> Row:
    """The problem and layouts of one row.

    Raises:
        InputError: names the column, what was found and what is needed.
    """
    framework = framework_of(cells)
    device = load_device(_text(cells, "hardware", needed=True))
    nic = _number(cells, "nic_gb_per_s_per_device")
    tp, pp, cp, ep = (_count(cells, name, 1) for name in ("tp", "pp", "cp", "ep"))
    dp = _count(cells, "dp", 0)
    devices = _count(cells, "num_devices", dp * tp * pp * cp)
    if dp == 0:
        dp = devices // (tp * pp * cp)
    if dp < 1 or dp * tp * pp * cp != devices:
        raise InputError(f"num_devices: {devices} found, dp·tp·pp·cp = {dp}·{tp}·{pp}·{cp} is needed")
    model = _with_capacity(model_of(cells), cells)
    sequence = _count(cells, "seq_len", 0) or model.max_positions
    if not sequence:
        raise InputError("seq_len: missing, a number of tokens is needed")
    batch = _count(cells, "global_batch", 0)
    if not batch:
        raise InputError("global_batch: missing, a number of sequences is needed")
    if dp > batch:
        raise InputError(f"global_batch: {batch} found, at least one sequence for each of the {dp} replicas is needed")
    if model.experts and (model.experts.count % ep or (dp * cp * tp) % ep):
        raise InputError(f"ep: {ep} found, a divisor of {model.experts.count} experts and of dp·cp·tp is needed")
    training = TrainingSpec(
        sequence,
        batch,
        _precision(cells, device),
        attention_kernel="unfused" if _without_flash(cells, framework) else "flash",
        fused_norm=_flag(cells, "fused_rms_norm", True)
        and not re.search(r"unfused\s+(rms|layer)?norm", _text(cells, "notes", "").lower()),
    )
    cluster = make_cluster(device, devices, nic * 1e9 if nic else None)
    problem = Problem(model, cluster, training, framework)
    layouts = _layouts(cells, problem, dp, tp, pp, cp, ep)
    _require_lawful(problem, layouts)
    return Row(problem, layouts)


def _require_lawful(problem: Problem, layouts: Layouts) -> None:
    """Check a row by the rules of the search that no framework escapes: one of its layouts must satisfy them all.

    Raises:
        InputError: none does; names the rule that the last one breaks.
    """
    columns = {name: getattr(layouts, name) for name in COLUMNS}
    batch = problem.training.global_batch
    exceptions = {
        # Where every chunk has one layer, the tables count the embedding and the head as layers.
        "layers over chunks": layouts.pp * layouts.vpp <= problem.model.layers + 2,
        # Batches are published rounded.
        "batch over dp and mbs": np.abs(layouts.dp * layouts.mbs * layouts.mb / batch - 1) <= ROUNDED_BATCH,
        "sequence over cp": problem.training.sequence_length % layouts.cp == 0,
    }
    lawful = np.ones(len(layouts), dtype=bool)
    for rule in rules(problem, SearchSpec()):
        if rule.name not in NECESSARY:
            continue
        left = lawful & (exceptions[rule.name] if rule.name in exceptions else rule.holds(columns))
        if not left.any():
            last = layouts.row(int(np.argmax(lawful)))
            found = ", ".join(
                f"{name}={NAMES[name][last[name]] if name in NAMES else last[name]}" for name in sorted(rule.needs)
            )
            raise InputError(f"{found} breaks rule '{rule.name}': {rule.reason}")
        lawful = left


NECESSARY = (
    "heads over tp",
    "layers over pp",
    "layers over chunks",
    "sequence over cp",
    "ep needs experts",
    "experts over ep",
    "experts over devices",
    "batch over dp and mbs",
    "interleaving needs a pipeline",
)
"""Rules that a run that took place cannot have broken; the others are what frameworks of today ask for."""

ROUNDED_BATCH = 0.05


def _without_flash(cells: Mapping[str, str], framework: FrameworkSpec) -> bool:
    """Whether a run had no tiled attention kernel: said so, on Megatron-DeepSpeed, or published before it was usual."""
    text = _text(cells, "attention", "").lower()
    if text:
        if "flash" not in text and "unfused" not in text:
            raise InputError(f"attention: {text!r} found, flash or unfused is needed")
        return "unfused" in text
    return framework.name == "deepspeed" or _published_before(cells, FLASH_SINCE)


def _published_before(cells: Mapping[str, str], month: int) -> bool:
    """Whether the source is a paper from before ``month``, written as in its arXiv identifier: 2301."""
    found = re.findall(r"arxiv:(\d{4})\.\d{5}", _text(cells, "source", "").lower())
    return any(int(published) < month for published in found)


FLASH_SINCE = 2402
"""Papers before it, by the year and month of their arXiv identifiers, built on releases of Megatron-LM in which tiled
attention was an option that they would have named (Qi et al., arXiv:2401.10241, among them)."""

FSDP_SINCE = 2304
"""Before it only DeepSpeed sharded parameters (PyTorch FSDP: Zhao et al., arXiv:2304.11277)."""

ASYNC_TENSOR = 0.3
"""Share of tensor-parallel traffic that asynchronous tensor parallelism hides."""


def _layouts(cells: Mapping[str, str], problem: Problem, dp: int, tp: int, pp: int, cp: int, ep: int) -> Layouts:
    model, batch = problem.model, problem.training.global_batch
    schedule, name = _text(cells, "schedule", "").lower(), _schedule(cells, pp)
    stage = _count(cells, "zero_stage", 3 if "fsdp" in schedule else 1, least=0, most=3)
    if dp * cp == 1:
        stage = 0  # One replica has nothing to shard over, whatever the stage is called.
    told = re.search(r"\betp=(\d{1,9})\b", _text(cells, "notes", "").lower())
    etp = _count(cells, "etp", int(told.group(1)) if told else 0)
    if not etp:
        etp = tp if ep == 1 or (problem.framework.name != "nemo" and dp * cp % ep == 0) else 1
    sp = _flag(cells, "sp", problem.framework.sequence_parallel) and tp > 1
    vpp = _count(cells, "vpp", 0)
    if vpp:
        chunks = [vpp]
    elif name == "interleaved":
        chunks = [v for v in range(2, 13) if model.layers % (pp * v) == 0] or [2]
    else:
        chunks = [1]
    if name in V_SHAPED:
        # Tables count a bidirectional pipeline's two chunks as none or as one.
        chunks = [2]
    size = _count(cells, "micro_batch", 0)
    sizes = [size] if size else ([b for b in (1, 2, 4, 8) if batch % (dp * b) == 0] or [1])
    rows = []
    for v in chunks:
        for b in sizes:
            for level, kept in _recompute(cells, model.layers // (pp * v)):
                rows.append(
                    {
                        "dp": dp, "tp": tp, "cp": cp, "ep": ep, "etp": etp, "pp": pp, "vpp": v, "mbs": b,
                        "mb": max(1, round(batch / (dp * b))),
                        "sp": int(sp),
                        "zero_stage": stage,
                        "op": dp * cp if stage else 1,
                        "recompute": RECOMPUTE.index(level),
                        "recompute_layers": kept,
                        "schedule": SCHEDULES.index(name if v > 1 or name not in ("interleaved",) else "1f1b"),
                    }
                )  # fmt: skip
    return Layouts.of(rows)


_SCHEDULES = (
    ("zb-2p", "zb-h2"),
    ("zb-1p", "zb-h1"),
    ("zb-h2", "zb-h2"),
    ("zb-h1", "zb-h1"),
    ("zb-v", "zb-v"),
    ("dualpipe", "dualpipe-v"),
    ("interleaved", "interleaved"),
    ("1f1b-i", "interleaved"),
    ("afab", "gpipe"),
    ("gpipe", "gpipe"),
    ("1f1b", ""),
    ("fsdp", ""),
    ("hsdp", ""),
    ("none", ""),
)
"""Words in a row's ``schedule``, the more special first; empty: plain 1F1B, or interleaved where ``vpp`` says so."""


def _schedule(cells: Mapping[str, str], pp: int) -> str:
    text = _text(cells, "schedule", "").lower()
    name = next((name for word, name in _SCHEDULES if word in text), "" if not text else None)
    if name is None:
        words = ", ".join(word for word, _ in _SCHEDULES)
        raise InputError(f"schedule: {text!r} found, one of {words} is needed")
    if pp == 1:
        return "1f1b"
    return name or ("interleaved" if _count(cells, "vpp", 1) > 1 else "1f1b")


def _recompute(cells: Mapping[str, str], held: int) -> list[tuple[str, int]]:
    """Recompute levels to try, and layers of each chunk that recompute (-1: all) where a chunk holds ``held``.

    An unknown one is tuned: as few layers are recomputed as the memory demands.
    """
    text = _text(cells, "recompute", "").lower()
    # MindSpeed's swap-attention keeps attention on the host and recomputes the rest of the layer.
    if "swap-attention" in _text(cells, "notes", "").lower():
        return [("full", -1)]
    if not text:
        some = sorted({max(1, round(held * share)) for share in (0.25, 0.5, 0.75)} - {held})
        return [("none", -1), ("select", -1), *(("full", layers) for layers in some), ("full", -1)]
    word = re.match(r"[a-z]*", text)[0]  # type: ignore[index] # an empty word matches everywhere
    levels = {"none": "none", "no": "none", "full": "full", "select": "select", "selective": "select"}
    if word not in levels:
        raise InputError(f"recompute: {text!r} found, none, selective… or full is needed")
    return [(levels[word], -1)]


def framework_of(cells: Mapping[str, str]) -> FrameworkSpec:
    """The framework of a row, from its ``framework`` or its ``source``; on Ascend devices MindSpeed by default."""
    named = _text(cells, "framework", "")
    text = f"{named} {_text(cells, 'source', '')} {_text(cells, 'source_key', '')}".lower()
    # TorchTitan's asynchronous tensor parallelism is a switch, off by default.
    hidden = {"overlap_tensor": ASYNC_TENSOR} if "async tp" in _text(cells, "notes", "").lower() else None
    released = re.search(r"(\d\d\.\d\d)(\.\d+)? nemo container", _text(cells, "notes", "").lower())
    for word, name in _FRAMEWORKS:
        if word in text:
            release = {"release": released.group(1)} if released and name == "nemo" else {}
            return load_framework(name, (hidden or {}) | release)
    # Only the in-house trainers that this entry describes have the norm's kernel as a switch of the run.
    if _text(cells, "fused_rms_norm", ""):
        return load_framework("eager", hidden)
    if _text(cells, "zero_stage", "") == "3" and _published_before(cells, FSDP_SINCE):
        return load_framework("deepspeed")
    return load_framework("mindspeed" if "ascend" in _text(cells, "hardware", "").lower() else "megatron")


def model_of(cells: Mapping[str, str]) -> ModelSpec:
    """The model of a row: its published config where the name is known, else its columns, which win where both are.

    Raises:
        InputError: neither makes a model.
    """
    model = _shaped(cells)
    if model.latent is None and model.heads % model.kv_heads:
        raise InputError(f"kv_heads: {model.kv_heads} found, a divisor of the {model.heads} heads is needed")
    if model.experts and model.experts.topk > model.experts.count:
        raise InputError(f"topk: {model.experts.topk} found, at most the {model.experts.count} experts are allowed")
    return model


def _shaped(cells: Mapping[str, str]) -> ModelSpec:
    name = _text(cells, "model", "")
    layers = _count(cells, "layers", 0)
    experts = _count(cells, "experts", 0)
    published = _published(name)
    if published is not None and (not experts or published.experts):
        shape = (published.hidden, published.heads)
        if (_count(cells, "hidden", shape[0]), _count(cells, "heads", shape[1])) == shape:
            vocab = _count(cells, "vocab", published.vocab)
            heads = _count(cells, "kv_heads", published.kv_heads)
            return _with_layers(
                replace(published, vocab=vocab, kv_heads=published.kv_heads if published.latent else heads),
                layers or published.layers,
            )
    if not layers:
        if published is not None:
            raise InputError(f"layers: missing, and hidden, heads or experts are not those of {published.name}")
        raise InputError(f"layers: missing, and {name or 'the model'} is not a shipped model")
    hidden, heads = _count(cells, "hidden", 0), _count(cells, "heads", 0)
    if not hidden or not heads:
        raise InputError("hidden, heads: missing, positive numbers are needed")
    width = _count(cells, "ffn_hidden", 4 * hidden)
    # A feed-forward of four times the width has no gate in every published family but Gemma and Aquila.
    lower = name.lower()
    gated = width != 4 * hidden or any(word in lower for word in ("aquila", "gemma", "llama", "mistral"))
    if any(word in lower for word in ("gemma", "nemotron")):
        gated = "gemma" in lower
    key_value = _count(cells, "kv_heads", heads)
    return ModelSpec(
        name=name or "unnamed",
        model_type="table",
        hidden=hidden,
        heads=heads,
        kv_heads=key_value,
        head_dim=_count(cells, "head_dim", 256 if "gemma" in lower else max(1, hidden // heads)),
        ffn_hidden=0 if experts else width,
        vocab=_count(cells, "vocab", 32000 if gated else 51200),
        groups=(LayerGroup("moe" if experts else "dense", layers),),
        gated=gated,
        norm="rmsnorm" if gated else "layernorm",
        mlp_bias=not gated,
        learned_positions=0 if gated or "bloom" in lower else _count(cells, "seq_len", 2048),
        tied_embeddings=not gated,
        attention_dropout=not gated and not any(word in lower for word in ("mpt", "nemotron")),
        experts=Experts(experts, _count(cells, "topk", 2), width) if experts else None,
        # The published config of Mistral 7B v0.1.
        sliding_window=4096 if "mistral-7b" in lower else 0,
        sliding_share=1.0 if "mistral-7b" in lower else 0.0,
    )


def _with_capacity(model: ModelSpec, cells: Mapping[str, str]) -> ModelSpec:
    """The model with the experts' capacity that the notes tell; dropped tokens without a number mean the even share."""
    if model.experts is None:
        return model
    notes = _text(cells, "notes", "").lower()
    found = re.search(r"capacity factor\s*(\d+(?:\.\d+)?)", notes)
    if not found and "tokendrop" not in notes:
        return model
    return replace(model, experts=replace(model.experts, capacity_factor=float(found.group(1)) if found else 1.0))


def _with_layers(model: ModelSpec, layers: int) -> ModelSpec:
    """The model cut or stretched to ``layers``, the front kept."""
    groups: list[LayerGroup] = []
    left = layers
    for group in model.groups:
        if left:
            groups.append(LayerGroup(group.kind, min(group.count, left)))
            left -= groups[-1].count
    if left:
        groups[-1] = LayerGroup(groups[-1].kind, groups[-1].count + left)
    return replace(model, groups=tuple(groups), mtp_layers=model.mtp_layers if layers == model.layers else 0)


@cache
def _published(name: str) -> ModelSpec | None:
    """The shipped model that a row's name means: ``Qwen3_235B-A22B`` is ``qwen3-235b-a22b``."""
    key = _letters(name)
    best = ""
    for known in model_names():
        short = _letters(known)
        if key and (key.startswith(short) or (len(key) >= 8 and short.startswith(key))) and len(known) > len(best):
            best = known
    return load_model(best) if best else None


def _letters(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum()).replace("llama31", "llama3")


_PRECISIONS: tuple[tuple[str, Precision], ...] = (
    ("nvfp4", "nvfp4"),
    ("fp4", "nvfp4"),
    ("mxfp8", "mxfp8"),
    ("fp8-mx", "mxfp8"),
    ("fp8-row", "fp8-rowwise"),
    ("fp8-tensor", "fp8-tensorwise"),
    ("fp8-cs", "fp8-cs"),
    ("fp8", "fp8"),
    ("bf16", "bf16"),
    ("fp16", "fp16"),
    ("fp32", "fp32"),
    ("tf32", "fp32"),
)
"""Words in a row's ``precision``, the more special first."""


def _precision(cells: Mapping[str, str], device: DeviceSpec) -> Precision:
    text, peaks = _text(cells, "precision", "").lower(), device.peak_flops
    if not text:
        return "bf16" if "bf16" in peaks else "fp16"
    name = next((name for word, name in _PRECISIONS if word in text), None)
    if name is None:
        raise InputError(f"precision: {text!r} found, fp32, fp16, bf16, fp8…, mxfp8 or nvfp4 is needed")
    if not device.computes(name):
        raise InputError(f"precision: {text!r} found, {device.name} has {', '.join(peaks)}")
    return name


def _text(cells: Mapping[str, str], name: str, default: str = "", *, needed: bool = False) -> str:
    value = (cells.get(name) or "").strip()
    if not value and needed:
        raise InputError(f"{name}: missing, a value is needed")
    return value or default


def _number(cells: Mapping[str, str], name: str) -> float | None:
    text = _text(cells, name)
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        raise InputError(f"{name}: {text!r} found, a number is needed") from None
    if not math.isfinite(value) or value < 0:
        raise InputError(f"{name}: {text!r} found, a finite number of at least 0 is needed")
    return value


def _count(cells: Mapping[str, str], name: str, default: int, least: int = 1, most: int = 10**9) -> int:
    value = _number(cells, name)
    if value is None:
        return default
    if value != int(value) or not least <= value <= most:
        raise InputError(f"{name}: {value:g} found, a whole number from {least} to {most} is needed")
    return int(value)


def _flag(cells: Mapping[str, str], name: str, default: bool) -> bool:
    text = _text(cells, name).lower()
    if text and text not in ("yes", "true", "1", "no", "false", "0"):
        raise InputError(f"{name}: {text!r} found, yes or no is needed")
    return text in ("yes", "true", "1") if text else default


def _cells(found: Answer) -> list[str]:
    if found.error or found.problem is None:
        return ["", "", "", "", "", "", found.error]
    problem, step = found.problem, np.array([found.step_time])
    tokens = float(performance.tokens_per_second_per_device(problem, step)[0])
    return [
        f"{found.step_time:.6g}",
        f"{tokens:.6g}",
        f"{tokens * model_flops_per_token(problem) / 1e12:.5g}",
        f"{float(performance.mfu(problem, step)[0]):.4f}",
        f"{found.peak_memory / 2**30:.5g}",
        "yes" if found.fits else "no",
        "",
    ]
