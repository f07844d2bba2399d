"""What a MindFormers training YAML says about its pipeline."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paraplan.documents import read_document
from paraplan.errors import InputError

LISTS = ("recompute", "select_recompute", "select_comm_recompute")


@dataclass(frozen=True, slots=True)
class TrainingPipeline:
    """The pipeline of a training configuration; None where it does not say."""

    stages: int
    micro_batches: int
    chunks: int
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
    stages = _whole(degrees, "pipeline_stage", f"{where}: parallel_config", 1)
    micro_batches = _whole(degrees, "micro_batch_num", f"{where}: parallel_config", 1)
    # Chunks count only where interleaving is on (MindFormers forces them to 1 otherwise).
    chunks = 1
    if pipeline.get("pipeline_interleave") is True:
        chunks = _whole(model, "pp_interleave_num", f"{where}: model.model_config", 1)
    layers = _whole(model, "num_layers", f"{where}: model.model_config", 0) or None
    lists = {name: recompute[name] for name in LISTS if recompute.get(name) not in (None, False)}
    if model.get("offset") is not None:
        lists["offset"] = model["offset"]
    return TrainingPipeline(stages, micro_batches, chunks, layers, lists)


def _section(values: Mapping[str, Any], name: str, where: str) -> Mapping[str, Any]:
    found = values.get(name) or {}
    if not isinstance(found, Mapping):
        raise InputError(f"{where}: {name}: {found!r} found, a mapping is needed")
    return found


def _whole(values: Mapping[str, Any], name: str, where: str, default: int) -> int:
    value = values.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < min(1, default):
        raise InputError(f"{where}.{name}: {value!r} found, a whole number of at least {min(1, default)} is needed")
    return value
