"""Layer descriptions: what one layer of each type costs, read from JSON or made from the models."""

import difflib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from paraplan.foundation.documents import find_file, read_document, write_whole
from paraplan.foundation.errors import InputError
from paraplan.foundation.records import refuse_unknown, shown

BUNDLED = Path(__file__).parent / "layers"

MEMORY_FIELDS: Mapping[str, str] = {
    "none": "memory_activation",
    "select": "memory_select_rec",
    "comm": "memory_select_comm",
    "both": "memory_both_comm_select",
    "full": "memory_recompute",
}
"""Strategy to the field with the MiB that one micro-batch keeps under it."""

COEFFICIENTS: Mapping[str, tuple[str, float]] = {
    "select": ("select_rec_coef", 0.04),
    "comm": ("select_comm_coef", 0.125),
    "both": ("both_comm_select_coef", 0.165),
    "full": ("recompute_coef", 0.5),
}
"""Strategy to the field with its extra backward time as a share of the backward time, and its default."""

TIME_FIELDS: Mapping[str, str] = {
    "select": "select_rec_time",
    "comm": "select_comm_time",
    "both": "both_comm_select_time",
    "full": "recompute_time",
}
"""Strategy to the field with its whole backward time, which wins over the coefficient."""

LARGEST = 1e15
"""Of the numbers of a problem: beside larger ones double precision loses those it is added to."""

MOST_LAYERS = 1_000_000

_KNOWN = {
    "name",
    "model_name",
    "type",
    "nb_layer",
    "time",
    "forward_time",
    "backward_time",
    "memory_parameter",
    "strategies",
    *MEMORY_FIELDS.values(),
    *TIME_FIELDS.values(),
    *(name for name, _ in COEFFICIENTS.values()),
}

_TOP_LEVEL = ("name", "layers_description", "auto_partition_layer", "pre_defined_layer", "stage_const_mem")
"""Keys of a file; the predecessor writes the last two, of which the layers' own types and ``-mc`` take the place."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to treat a layer's activations."""

    activation: float
    """MiB that one micro-batch keeps."""
    extra: float = 0.0
    """Backward time on top of the plain backward."""
    transient: float = 0.0
    """MiB held while the layer's backward runs."""
    host_time: float = 0.0
    """Time on the host link for one micro-batch and direction (swap strategies)."""


@dataclass(frozen=True, slots=True)
class LayerType:
    """One type of layer; times in the file's own unit."""

    name: str
    role: Literal["HEAD", "BODY", "TAIL"]
    count: int
    forward: float
    backward: float
    parameter: float
    """MiB for good."""
    strategies: Mapping[str, Strategy]
    """At least one; without any memory in the file ``none`` with 0 MiB."""


@dataclass(frozen=True, slots=True)
class LayerSet:
    """The layers of one model in order: heads, bodies, tails."""

    name: str
    layers: tuple[LayerType, ...]

    def of_role(self, role: str) -> tuple[LayerType, ...]:
        return tuple(layer for layer in self.layers if layer.role == role)


def bundled_names() -> list[str]:
    """Names of the shipped layer files."""
    return sorted(path.stem for path in BUNDLED.glob("*.json"))


def load_layers(name_or_path: str, folder: str | None = None, where: str = "layers") -> LayerSet:
    """Read a layer file by path or among the bundled ones; with ``folder`` from there (or that file) alone.

    Args:
        name_or_path: Of the layer file.
        folder: Where else to look (a folder, or the file itself).
        where: Who names it, for messages.

    Raises:
        InputError: not found (names the bundled ones), or not a layer description.
    """
    given = Path(name_or_path)
    tried = [given, Path(f"{given}.json"), BUNDLED / f"{given.name.removesuffix('.json')}.json"]
    if folder is not None:
        if not Path(folder).exists():
            raise InputError(f"-lf: {folder!r} found, an existing folder or layer file is needed")
        tried = [Path(folder), *(Path(folder) / name for name in (given, f"{given}.json"))]
    found = find_file([Path()], map(str, tried))
    if found is not None:
        return read_layers(read_document(found), str(found))
    if folder is not None:
        raise InputError(f"-lf: {folder!r} found, a folder with {given} or {given}.json is needed")
    known = bundled_names()
    close = difflib.get_close_matches(given.name, known, 1, 0.5)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise InputError(f"{where}: {name_or_path!r} found, a layer file or one of {', '.join(known)} is needed{hint}")


def read_layers(document: Any, where: str) -> LayerSet:
    """The layers of a description.

    Raises:
        InputError: names the layer and the field, what was found and what is needed.
    """
    if not isinstance(document, Mapping):
        raise InputError(f"{where}: {type(document).__name__} found, a mapping with layers_description is needed")
    refuse_unknown(document, _TOP_LEVEL, where)
    described = document.get("layers_description")
    if not isinstance(described, list) or not described:
        found = "missing" if described is None else f"{str(described)[:40]!r} found"
        raise InputError(f"{where}: layers_description: {found}, a list of layers is needed")
    counts = document.get("auto_partition_layer")
    if counts is not None and not isinstance(counts, Mapping):
        raise InputError(
            f"{where}: auto_partition_layer: {shown(counts)} found, a mapping of layer to its number is needed"
        )
    layers = tuple(_layer(entry, i, counts or {}, where) for i, entry in enumerate(described))
    if not any(layer.role == "BODY" for layer in layers):
        raise InputError(f"{where}: layers_description: no layer of type BODY, at least one is needed")
    names = [layer.name for layer in layers]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{where}: layers_description: {name!r} is there twice")
    refuse_unknown(counts or {}, names, where, "auto_partition_layer.")
    order = {"HEAD": 0, "BODY": 1, "TAIL": 2}
    return LayerSet(str(document.get("name", Path(where).stem)), tuple(sorted(layers, key=lambda x: order[x.role])))


def _layer(entry: Any, index: int, counts: Mapping[str, Any], where: str) -> LayerType:
    place = f"{where}: layers_description[{index}]"
    if not isinstance(entry, Mapping):
        raise InputError(f"{place}: {entry!r} found, a mapping is needed")
    name = entry.get("name")
    if not isinstance(name, str) or not name:
        raise InputError(f"{place}.name: {name!r} found, a name is needed")
    place = f"{where}: {name}"
    # The predecessor's own files write one field with a trailing blank.
    values = {str(key).strip(): value for key, value in entry.items()}
    refuse_unknown(values, _KNOWN, where, f"{name}.")
    role = values.get("type")
    if role not in ("HEAD", "BODY", "TAIL"):
        raise InputError(f"{place}.type: {role!r} found, HEAD, BODY or TAIL is needed")
    count = values.get("nb_layer")
    if count is None:
        count = counts.get(name, 1)
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST_LAYERS:
        raise InputError(f"{place}.nb_layer: {shown(count)} found, a whole number from 1 to {MOST_LAYERS:,} is needed")
    forward = _number(values, "forward_time" if "forward_time" in values else "time", place, needed=True)
    backward = _number(values, "backward_time", place)
    if backward is None:
        backward = 2 * forward
    parameter = _number(values, "memory_parameter", place) or 0.0
    return LayerType(name, role, count, forward, backward, parameter, _strategies(values, backward, place))


def _strategies(values: Mapping[str, Any], backward: float, place: str) -> dict[str, Strategy]:
    found: dict[str, Strategy] = {}
    for strategy, field in MEMORY_FIELDS.items():
        memory = _number(values, field, place)
        if memory is None:
            continue
        extra = 0.0
        if strategy in COEFFICIENTS:
            name, default = COEFFICIENTS[strategy]
            coefficient = _number(values, name, place)
            extra = backward * (default if coefficient is None else coefficient)
            whole = _number(values, TIME_FIELDS[strategy], place)
            if whole is not None:
                if whole < backward:
                    raise InputError(
                        f"{place}.{TIME_FIELDS[strategy]}: {whole:g} found, at least the backward time"
                        f" {backward:g} is needed"
                    )
                extra = whole - backward
        found[strategy] = Strategy(memory, extra)
    named = {} if values.get("strategies") is None else values["strategies"]
    if not isinstance(named, Mapping):
        raise InputError(f"{place}.strategies: {shown(named)} found, a mapping of strategy to its costs is needed")
    for strategy, costs in named.items():
        where = f"{place}.strategies.{strategy}"
        if not isinstance(costs, Mapping):
            raise InputError(f"{where}: {shown(costs)} found, a mapping is needed")
        for key in costs:
            if key not in ("activation", "extra", "transient", "host_time"):
                raise InputError(f"{where}.{key}: unknown field; allowed: activation, extra, transient, host_time")
        found[str(strategy)] = Strategy(
            _number(costs, "activation", where, needed=True),
            _number(costs, "extra", where) or 0.0,
            _number(costs, "transient", where) or 0.0,
            _number(costs, "host_time", where) or 0.0,
        )
    return found or {"none": Strategy(0.0)}


def _number(values: Mapping[str, Any], name: str, place: str, *, needed: bool = False) -> Any:
    value = values.get(name)
    if value is None:
        if needed:
            raise InputError(f"{place}.{name}: missing, a number of at least 0 is needed")
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= LARGEST:
        raise InputError(f"{place}.{name}: {shown(value)} found, a number from 0 to {LARGEST:g} is needed")
    return float(value)


def layers_document(layers: LayerSet) -> dict[str, Any]:
    """A layer description that :func:`read_layers` reads back as the same layers."""
    entries: list[dict[str, Any]] = []
    for layer in layers.layers:
        entries.append(
            {
                "name": layer.name,
                "model_name": layers.name,
                "type": layer.role,
                "nb_layer": layer.count,
                "time": layer.forward,
                "backward_time": layer.backward,
                "memory_parameter": layer.parameter,
                "strategies": {name: asdict(one) for name, one in layer.strategies.items()},
            }
        )
    return {
        "name": layers.name,
        "pre_defined_layer": {x.name: 0 if x.role == "HEAD" else -1 for x in layers.layers if x.role != "BODY"},
        "auto_partition_layer": {x.name: x.count for x in layers.layers if x.role == "BODY"},
        "layers_description": entries,
    }


def write_layers(layers: LayerSet, path: Path) -> None:
    """Write a layer file that :func:`load_layers` reads back as the same layers."""
    write_whole(path, json.dumps(layers_document(layers), indent=2) + "\n")
