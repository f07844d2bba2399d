"""What a MindFormers training YAML says about its pipeline."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paraplan.foundation.documents import read_document
from paraplan.foundation.errors import InputError

SCHEDULES: Mapping[str, str] = {
    "gpipe": "gpipe",
    "1f1b": "1f1b",
    "seqpipe": "seq1f1b",
    "zero_bubble_v": "zb-v",
}
"""``pipeline_scheduler`` to ours."""

LISTS = ("recompute", "select_recompute", "select_comm_recompute")


@dataclass(frozen=True, slots=True)
class TrainingPipeline:
    """The pipeline of a training configuration; None where it does not say."""

    stages: int | None
    micro_batches: int | None
    chunks: int
    schedule: str | None
    splits: int
    """Slices of the sequence."""
    layers: int | None
    lists: Mapping[str, Any]
    """``offset`` and the recompute lists that are there, as they are written."""


def read_training_yaml(path: Path) -> TrainingPipeline:
    """Read ``parallel_config``, ``parallel``, ``model.model_config`` and ``recompute_config``.

    Raises:
        InputError: names the file, the field, what was found and what is needed.
    """
    document = read_document(path)
    where = str(path)
    if not isinstance(document, Mapping):
        raise InputError(f"{where}: {type(document).__name__} found, a mapping is needed")
    degrees = _section(document, "parallel_config", where)
    model = _section(_section(document, "model", where), "model_config", f"{where}: model")
    parallel = _section(document, "parallel", where)
    pipeline = _section(parallel, "pipeline_config", f"{where}: parallel")
    recompute = document.get("recompute_config") or {}
    if not isinstance(recompute, Mapping):
        raise InputError(f"{where}: recompute_config: {recompute!r} found, a mapping is needed")
    stages = _whole(degrees, "pipeline_stage", f"{where}: parallel_config")
    micro_batches = _whole(degrees, "micro_batch_num", f"{where}: parallel_config")
    splits = _whole(degrees, "seq_split_num", f"{where}: parallel_config") or 1
    # Chunks count only where interleaving is on (MindFormers forces them to 1 otherwise).
    chunks = 1
    if pipeline.get("pipeline_interleave") is True:
        chunks = _whole(model, "pp_interleave_num", f"{where}: model.model_config") or 1
    layers = _whole(model, "num_layers", f"{where}: model.model_config")
    lists = {name: recompute[name] for name in LISTS if recompute.get(name) not in (None, False)}
    if model.get("offset") is not None:
        lists["offset"] = model["offset"]
    return TrainingPipeline(stages, micro_batches, chunks, _schedule(pipeline, chunks, where), splits, layers, lists)


def _schedule(pipeline: Mapping[str, Any], chunks: int, where: str) -> str | None:
    """The schedule that ``pipeline_config`` names, None: it names none."""
    given, where = pipeline.get("pipeline_scheduler"), f"{where}: parallel.pipeline_config"
    less_memory = pipeline.get("pipeline_less_memory") or False
    if given not in (None, *SCHEDULES):
        raise InputError(f"{where}.pipeline_scheduler: {given!r} found, one of {', '.join(SCHEDULES)} is needed")
    if not isinstance(less_memory, bool):
        raise InputError(f"{where}.pipeline_less_memory: {less_memory!r} found, true or false is needed")
    if given == "zero_bubble_v" and chunks != 2:
        raise InputError(f"{where}.pipeline_scheduler: zero_bubble_v found with {chunks} chunks a stage, 2 are needed")
    if less_memory:
        if chunks == 1 or given not in (None, "1f1b"):
            raise InputError(f"{where}.pipeline_less_memory: true found, interleaved 1f1b is needed with it")
        return "interleaved-less-memory"
    if given == "1f1b" and chunks > 1:
        return "interleaved"
    return None if given is None else SCHEDULES[given]


def _section(values: Mapping[str, Any], name: str, where: str) -> Mapping[str, Any]:
    found = values.get(name) or {}
    if not isinstance(found, Mapping):
        raise InputError(f"{where}: {name}: {found!r} found, a mapping is needed")
    return found


def _whole(values: Mapping[str, Any], name: str, where: str) -> int | None:
    """A whole number of at least 1; None where it is not there."""
    value = values.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise InputError(f"{where}.{name}: {value!r} found, a whole number of at least 1 is needed")
    return value
