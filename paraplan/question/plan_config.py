"""The plan config: model, cluster, training, search and balance in one YAML file, validated whole."""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from paraplan.foundation.documents import find_file, read_document, read_mapping, read_text
from paraplan.foundation.errors import InputError
from paraplan.foundation.records import build, refuse_unknown, shown
from paraplan.question.balance_spec import BalanceSpec
from paraplan.question.clusters import ClusterSpec, load_device, make_cluster
from paraplan.question.clusters.catalogue import overlaid
from paraplan.question.clusters.spec import MOST_DEVICES
from paraplan.question.constraints import parse_expression
from paraplan.question.frameworks import FrameworkSpec, load_framework
from paraplan.question.models import ModelSpec, load_model
from paraplan.question.problem import Problem
from paraplan.question.search_spec import ALIASES, COMPONENT_OF_RATIO, DIMENSIONS, NAMES, SearchSpec
from paraplan.question.training import TrainingSpec

GIB = 2.0**30
MOST_VALUES = 1_000_000
"""Values that a range of a dimension may have."""

SECTIONS = ("model", "cluster", "training", "search", "balance")
SEARCH_KEYS = (*DIMENSIONS, *ALIASES, "constraints", "top", "reserve_gib", "recalibration")
CLUSTER_KEYS = ("device", "devices", "nic_gb_per_s_per_device", "memory_budget_gib", "calibration")
TRAINING_KEYS = ("framework", "framework_options")
SWITCHES = ("sp", "swap_act", "swap_os")


@dataclass(frozen=True, slots=True)
class PlanConfig:
    """A validated plan config."""

    name: str
    path: Path
    problem: Problem
    search: SearchSpec
    balance: BalanceSpec


def load_plan(path: Path, overrides: Mapping[str, Any] | None = None) -> PlanConfig:
    """Read and validate a plan config and everything that it names.

    Args:
        path: The YAML file.
        overrides: Values laid over the file's, keyed by their place: ``training.global_batch``.

    Raises:
        InputError: one line that names the file (with the line of the key), the field, what was found and what is
            allowed.
    """
    values = dict(read_mapping(path))
    for place, value in (overrides or {}).items():
        section, _, key = place.partition(".")
        if not key:
            values[section] = value
        else:
            inner = values.get(section) or {}
            if isinstance(inner, str):
                inner = dict(_cluster_document(inner, path)) if section == "cluster" else {}
            if not isinstance(inner, Mapping):
                raise InputError(f"{path}: {section}: {shown(inner)} found, a mapping is needed")
            values[section] = {**inner, key: value}
    try:
        refuse_unknown(values, SECTIONS, str(path))
        return _plan(values, path)
    except InputError as error:
        raise InputError(_with_line(str(error), path)) from None


def _plan(values: Mapping[str, Any], path: Path) -> PlanConfig:
    where = str(path)
    model = _model(values.get("model"), path)
    training_values = dict(_mapping(values, "training", where))
    framework_name = training_values.pop("framework", "megatron")
    options = training_values.pop("framework_options", None) or {}
    if not isinstance(framework_name, str):
        raise InputError(f"{where}: training.framework: {shown(framework_name)} found, a framework's name is needed")
    if not isinstance(options, Mapping):
        raise InputError(f"{where}: training.framework_options: {shown(options)} found, a mapping is needed")
    framework = load_framework(framework_name, dict(options), f"{where}: training.framework")
    refuse_unknown(training_values, [*TrainingSpec.__slots__, *TRAINING_KEYS], where, "training.")
    training = build(TrainingSpec, training_values, where, "training.")
    cluster = _cluster(values.get("cluster"), path)
    problem = Problem(model, cluster, training, framework)
    _check_training(problem, where)
    return PlanConfig(
        path.stem, path, problem, _search(values.get("search"), problem, where), _balance(values.get("balance"), where)
    )


def _model(value: Any, path: Path) -> ModelSpec:
    if not isinstance(value, str):
        found = "missing" if value is None else f"{shown(value)} found"
        raise InputError(f"{path}: model: {found}, the name or path of a model config is needed")
    try:
        return load_model(value, path)
    except InputError as error:
        text = str(error)
        raise InputError(text if not text.startswith("model:") else f"{path}: {text}") from None


def _cluster_document(name: str, path: Path) -> Mapping[str, Any]:
    folders = (path.parent, path.parent.parent / "clusters", Path("configs/clusters"))
    found = find_file(folders, (name, f"{name}.yaml"))
    if found is None:
        raise InputError(
            f"{path}: cluster: {shown(name)} found, a cluster file or a mapping with device and devices is needed"
        )
    return read_mapping(found)


def _cluster(value: Any, path: Path) -> ClusterSpec:
    where = str(path)
    if isinstance(value, str):
        value = _cluster_document(value, path)
    if not isinstance(value, Mapping):
        found = "missing" if value is None else f"{shown(value)} found"
        raise InputError(f"{where}: cluster: {found}, a mapping with device and devices is needed")
    refuse_unknown(value, CLUSTER_KEYS, where, "cluster.")
    name = value.get("device")
    if not isinstance(name, str):
        found = "missing" if name is None else f"{shown(name)} found"
        raise InputError(f"{where}: cluster.device: {found}, the name or file of a device is needed")
    try:
        device = load_device(name, path)
    except InputError as error:
        text = str(error)
        raise InputError(f"{where}: cluster.{text}" if text.startswith("device:") else text) from None
    if value.get("calibration") is not None:
        overlay = find_file([path.parent], [str(value["calibration"])])
        if overlay is None:
            raise InputError(
                f"{where}: cluster.calibration: {shown(value['calibration'])} found, a file that paraplan calibrate"
                " wrote is needed"
            )
        device = overlaid(device, overlay)
    devices = _whole(value.get("devices"), f"{where}: cluster.devices", MOST_DEVICES)
    nic = _positive(value.get("nic_gb_per_s_per_device"), f"{where}: cluster.nic_gb_per_s_per_device")
    budget = _positive(value.get("memory_budget_gib"), f"{where}: cluster.memory_budget_gib")
    return make_cluster(
        device, devices, nic * 1e9 if nic else None, budget * GIB if budget else None, f"{where}: cluster"
    )


def _check_training(problem: Problem, where: str) -> None:
    training, peaks, experts = problem.training, problem.cluster.device.peak_flops, problem.model.experts
    if not problem.cluster.device.computes(training.precision):
        known = ", ".join(peaks)
        raise InputError(
            f"{where}: training.precision: {training.precision!r} found, {problem.cluster.device.name} has {known}"
        )
    # With all tokens on one expert, its rank has as many times the even share as there are experts.
    if experts and training.expert_imbalance > experts.count:
        raise InputError(
            f"{where}: training.expert_imbalance: {training.expert_imbalance!r} found, at most the {experts.count}"
            " experts is needed"
        )


def _search(value: Any, problem: Problem, where: str) -> SearchSpec:
    values = {} if value is None else value
    if not isinstance(values, Mapping):
        raise InputError(f"{where}: search: {shown(values)} found, a mapping is needed")
    refuse_unknown(values, SEARCH_KEYS, where, "search.")
    candidates: dict[str, tuple[int, ...] | None] = {}
    for key, given in values.items():
        dimension = ALIASES.get(key, key)
        if dimension not in DIMENSIONS:
            continue
        if dimension in candidates:
            raise InputError(f"{where}: search.{key}: given twice, {dimension} is its other name")
        candidates[dimension] = dimension_values(given, dimension, f"{where}: search.{key}")
    constraints = values.get("constraints") or []
    if isinstance(constraints, str):
        constraints = [constraints]
    if not isinstance(constraints, list):
        raise InputError(f"{where}: search.constraints: {shown(constraints)} found, a list of expressions is needed")
    for text in constraints:
        parse_expression(text, f"{where}: search.constraints")
    reserve = _positive(values.get("reserve_gib"), f"{where}: search.reserve_gib", zero=True) or 0.0
    if reserve * GIB >= problem.cluster.memory_budget:
        raise InputError(
            f"{where}: search.reserve_gib: {reserve:g} found, less than the budget of"
            f" {problem.cluster.memory_budget / GIB:g} GiB is needed"
        )
    return SearchSpec(
        MappingProxyType(candidates),
        tuple(constraints),
        _whole(values.get("top", 3), f"{where}: search.top"),
        reserve * GIB,
        _recalibration(values.get("recalibration"), where),
    )


def _recalibration(value: Any, where: str) -> Mapping[str, float]:
    if value is None:
        return MappingProxyType({})
    try:
        ratios = read_document(Path(value)) if isinstance(value, str) else value
    except InputError as error:
        raise InputError(f"{where}: search.recalibration: {error}") from None
    if not isinstance(ratios, Mapping):
        raise InputError(f"{where}: search.recalibration: {shown(value)} found, one ratio per time component is needed")
    refuse_unknown(ratios, list(COMPONENT_OF_RATIO), where, "search.recalibration.")
    return MappingProxyType(
        {name: _positive(ratio, f"{where}: search.recalibration.{name}") or 1.0 for name, ratio in ratios.items()}
    )


def dimension_values(given: Any, dimension: str, where: str) -> tuple[int, ...] | None:
    """The candidates that a scalar, a list, a range or ``auto`` means; None for ``auto``.

    Raises:
        InputError: an empty list, a range that is too long, a wrong type, zero or a negative degree.
    """
    if given == "auto" or given is None:
        return None
    if isinstance(given, Mapping):
        refuse_unknown(given, ("min", "max", "step"), where, "")
        if dimension in NAMES or dimension in SWITCHES:
            return (_value(given, dimension, where),)
        low = _value(given.get("min", 1), dimension, f"{where}.min")
        if given.get("max") is None:
            raise InputError(f"{where}.max: missing, a whole number is needed")
        high = _value(given["max"], dimension, f"{where}.max")
        step = _whole(given.get("step", 1), f"{where}.step")
        if high < low:
            raise InputError(f"{where}: max {high} found, at least min {low} is needed")
        values = range(low, high + 1, step)
        if len(values) > MOST_VALUES:
            raise InputError(f"{where}: {len(values):,} values found, at most {MOST_VALUES:,} are allowed")
        return tuple(values)
    if isinstance(given, list):
        if not given:
            raise InputError(f"{where}: an empty list found, at least one value or 'auto' is needed")
        return tuple(dict.fromkeys(_value(item, dimension, where) for item in given))
    return (_value(given, dimension, where),)


def _value(given: Any, dimension: str, where: str) -> int:
    words = NAMES.get(dimension)
    if words is not None:
        if isinstance(given, str) and given.lower() in words:
            return words.index(given.lower())
        close = difflib.get_close_matches(str(given), words, 1, 0.5)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise InputError(f"{where}: {shown(given)} found, one of {', '.join(words)} is allowed{hint}")
    if dimension in SWITCHES:
        if given in (0, 1) or isinstance(given, bool):
            return int(given)
        raise InputError(f"{where}: {shown(given)} found, true or false is allowed")
    least, most = {"zero_stage": (0, 3), "recompute_layers": (-1, 10**6)}.get(dimension, (1, 10**7))
    if isinstance(given, bool) or not isinstance(given, int) or not least <= given <= most:
        raise InputError(f"{where}: {shown(given)} found, a whole number from {least} to {most} or 'auto' is allowed")
    return given


def _balance(value: Any, where: str) -> BalanceSpec:
    values = {} if value is None else value
    if not isinstance(values, Mapping):
        raise InputError(f"{where}: balance: {shown(values)} found, a mapping is needed")
    # One row is the table of one chunk a stage.
    tables = ("offset", "recompute", "select_recompute", "select_comm_recompute")
    values = {
        key: [given] if key in tables and isinstance(given, list) and given and isinstance(given[0], int) else given
        for key, given in values.items()
    }
    spec = build(BalanceSpec, values, where, "balance.")
    if not spec.time_limit_s > 0:
        raise InputError(f"{where}: balance.time_limit_s: {spec.time_limit_s!r} found, more than 0 is needed")
    if spec.effort not in (0, 1, 2):
        raise InputError(f"{where}: balance.effort: {spec.effort!r} found, 0, 1 or 2 is allowed")
    return spec


def with_framework(config: PlanConfig, framework: FrameworkSpec) -> PlanConfig:
    """The same question for another framework."""
    return replace(config, problem=replace(config.problem, framework=framework))


def _mapping(values: Mapping[str, Any], name: str, where: str) -> Mapping[str, Any]:
    value = values.get(name)
    if not isinstance(value, Mapping):
        found = "missing" if value is None else f"{shown(value)} found"
        raise InputError(f"{where}: {name}: {found}, a mapping is needed")
    return value


def _whole(value: Any, where: str, most: int | None = None) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1 or (most is not None and value > most):
        found = "missing" if value is None else f"{shown(value)} found"
        above = f" and at most {most:,}" if most is not None else ""
        raise InputError(f"{where}: {found}, a whole number of at least 1{above} is needed")
    return value


def _positive(value: Any, where: str, zero: bool = False) -> float | None:
    if value is None:
        return None
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and (value > 0 or (zero and value == 0))
    if not good or value != value or value == float("inf"):
        raise InputError(
            f"{where}: {shown(value)} found, a {'number of at least 0' if zero else 'positive number'} is needed"
        )
    return float(value)


def _with_line(message: str, path: Path) -> str:
    """The message with the line of the key it names."""
    match = re.match(rf"{re.escape(str(path))}: ([\w.]+)", message)
    if match is None:
        return message
    lines = read_text(path).splitlines()
    start = 0
    for key in match[1].split("."):
        for number in range(start, len(lines)):
            if re.match(rf"\s*['\"]?{re.escape(key)}['\"]?\s*:", lines[number]) or re.search(
                rf"[{{,]\s*{re.escape(key)}\s*:", lines[number]
            ):
                start = number
                break
        else:
            return message
    return message.replace(f"{path}: ", f"{path}:{start + 1}: ", 1)
