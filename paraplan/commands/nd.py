"""``paraplan nd``: the ND search alone."""

import argparse
import csv
import io
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from paraplan.commands.arguments import Parser, positive, settings, size
from paraplan.configuration import PlanConfig, load_plan
from paraplan.documents import read_document, write_whole
from paraplan.errors import InputError
from paraplan.layouts import RECOMPUTE
from paraplan.nd.search import SearchResult
from paraplan.nd.search_spec import ALIASES, DIMENSIONS, UNSEARCHED, SearchSpec

GIB = 2.0**30
DEFAULT_TOP = 10


def add_arguments(parser: Parser) -> None:
    parser.add_argument("-y", "--yaml", metavar="CONFIG", required=True, help="plan config")
    parser.add_argument(
        "-f", "--framework", help="mindformers, mindspeed, hyperparallel, hyper_v2, torchtitan, megatron, …"
    )
    parser.add_argument("-m", "--model", help="name or path of a model config")
    parser.add_argument("-l", "--dimensions", nargs="*", metavar="DIM", help="dimensions to vary (none: all); MP = TP")
    parser.add_argument("-d", "--devices", type=positive, help="number of devices")
    parser.add_argument("-b", "--global-batch", type=positive, metavar="BATCH", help="sequences of a step")
    parser.add_argument("-A", "--device-type", metavar="TYPE", help="A2, A3, h100, …")
    parser.add_argument("-t", "--top", type=positive, help=f"layouts printed and drawn ({DEFAULT_TOP})")
    parser.add_argument(
        "-v", "--verbosity", type=int, default=2, help="0 nothing, 1 result, 2 files and plots, 3 counts, … 6 debug"
    )
    parser.add_argument("-M", "--max-mem", metavar="SIZE", help="memory budget of a device, e.g. 58GB")
    parser.add_argument("-mem", "--reserve", metavar="SIZE", help="memory kept back for balancing, e.g. 4GB")
    parser.add_argument(
        "-swap_act", "--swap-act", action="store_true", help="activations travel to host memory and back"
    )
    parser.add_argument("-swap_os", "--swap-os", action="store_true", help="optimizer states live in host memory")
    parser.add_argument(
        "-mppb",
        "--manual-ppb",
        action="store_true",
        help="take the offset and recompute lists from the config's balance section, and play them",
    )
    parser.add_argument("-c", "--recalibration", metavar="FILE", help="JSON with one ratio per time component")
    parser.add_argument("-s", "--search", metavar="FILE", help="YAML with another search section")
    parser.add_argument("-o", "--output", metavar="DIR", help="write candidates.csv, ranking.png and pareto.png here")
    parser.add_argument("--explain", metavar="DIM=VALUE,…", help="say what is wrong with this layout")
    parser.add_argument(
        "--sensitivity", action="store_true", help="what overtakes the winner when the hardware is 10 %% off"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")


def run(arguments: argparse.Namespace) -> int:
    from paraplan.nd.search import search

    config = configured(arguments)
    top = arguments.top or max(DEFAULT_TOP, config.search.top)
    problem = config.problem
    if arguments.explain:
        return _explain(arguments, config)
    progress = _Progress() if sys.stderr.isatty() or arguments.verbosity >= 3 else None
    found = search(problem, config.search, progress, max(top, PLAYED) if arguments.manual_ppb else top)
    if progress is not None:
        progress.close()
    if arguments.manual_ppb:
        found = _with_lists(config, found, top)
    document = found.to_json(problem)
    if arguments.output:
        from paraplan.nd.economics import costs_of
        from paraplan.nd.pareto import front
        from paraplan.plots.pareto import pareto_png

        folder = Path(arguments.output)
        write_whole(folder / "candidates.csv", candidates_csv(document["ranked"]))
        write_whole(folder / "pareto.png", pareto_png(problem, front(problem, config.search)))
        write_whole(folder / "ranking.png", ranking_picture(config, found))
        document["economics"] = costs_of(problem, float(found.ranked.step_time_N[0]))
    if arguments.sensitivity:
        from paraplan.nd.sensitivity import sensitivity

        document["sensitivity"] = sensitivity(problem, config.search, found)
    if arguments.json:
        sys.stdout.write(json.dumps(document) + "\n")
        return 0
    if arguments.verbosity >= 1:
        _print(config, document, found.stopped, arguments)
    return 0


PLAYED = 64
"""Layouts that are played with the config's own lists."""


def _with_lists(config: PlanConfig, found: SearchResult, top: int) -> SearchResult:
    """The ranked layouts under the config's offset and recompute lists, played, ranked again.

    Raises:
        NoAnswerError: none fits so.
    """
    from paraplan import memory, performance
    from paraplan.errors import NoAnswerError
    from paraplan.nd.ranking import Ranked
    from paraplan.ppb.describe import played_lists

    layouts = found.ranked.layouts
    where = f"{config.path}: balance"
    played = [
        played_lists(config.problem, layouts.take(np.array([i])), config.balance, where) for i in range(len(layouts))
    ]
    seconds, peaks = (np.array(values) for values in zip(*played, strict=True))
    budget = config.problem.cluster.memory_budget
    fitting = np.flatnonzero(peaks <= budget)
    if not len(fitting):
        raise NoAnswerError(
            f"{where}: with these lists none of {len(layouts)} layouts fits {budget / GIB:.2f} GiB: the closest needs"
            f" {peaks.min() / GIB:.2f} GiB; more recompute in the lists would help, or lists that paraplan ppb balances"
        )
    order = fitting[np.argsort(seconds[fitting], kind="stable")][:top]
    ranked = Ranked(layouts.take(order), seconds[order], peaks[order])
    return replace(
        found,
        ranked=ranked,
        times=performance.estimate(config.problem, ranked.layouts),
        memories=memory.estimate(config.problem, ranked.layouts),
    )


def _print(config: PlanConfig, document: dict[str, Any], stopped: bool, arguments: argparse.Namespace) -> None:
    from paraplan.nd.economics import costs_of, costs_text
    from paraplan.nd.table import ranking_table

    problem = config.problem
    out = [
        f"{problem.model.name} on {problem.cluster.devices} x {problem.cluster.device.name}, global batch"
        f" {problem.training.global_batch} x {problem.training.sequence_length} tokens, {problem.training.precision},"
        f" {problem.framework.name}",
        f"{document['candidates']:,} layouts satisfy every rule, {document['fitting']:,} fit"
        f" {(problem.cluster.memory_budget - config.search.reserve_bytes) / GIB:.1f} GiB,"
        f" {document['seconds']['total']:.2f} s"
        + (" (stopped early: the ranking is of what had been seen)" if stopped else ""),
        *(["played with the config's offset and recompute lists on every chunk"] if arguments.manual_ppb else []),
        "",
        ranking_table(document["ranked"], shutil.get_terminal_size((110, 24)).columns),
    ]
    if arguments.verbosity >= 3:
        out += [
            "",
            "removed by rule:",
            *(f"  {count:>14,}  {name}" for name, count in document["removed"].items() if count),
        ]
    out += ["", *costs_text(costs_of(problem, document["ranked"][0]["step_time_s"]))]
    for line in document.get("sensitivity", []):
        out.append(f"{line['change']}: {line['effect']}")
    if arguments.output and arguments.verbosity >= 2:
        out += ["", *(str(Path(arguments.output) / name) for name in ("candidates.csv", "ranking.png", "pareto.png"))]
    sys.stdout.write("\n".join(out) + "\n")


def ranking_picture(config: PlanConfig, found: SearchResult) -> bytes:
    """The ranked layouts side by side, by the models alone."""
    from paraplan.performance import mfu, tokens_per_second_per_device
    from paraplan.plan_document import RankedPlan, layout_name
    from paraplan.plots.ranking import ranking_png

    problem, plans = config.problem, []
    for i in range(len(found.ranked)):
        row, step = found.ranked.layouts.row(i), float(found.ranked.step_time_N[i])
        time = {name: float(value[i]) for name, value in found.times.components.items()}
        memory = {name: float(value[i]) / GIB for name, value in found.memories.components.items()}
        plans.append(
            RankedPlan(
                rank=i + 1,
                name=layout_name(row),
                parallel=row,
                pipeline={},
                step_time_s=step,
                estimated_step_time_s=step,
                tokens_per_s_per_device=float(tokens_per_second_per_device(problem, np.array([step]))[0]),
                mfu=float(mfu(problem, np.array([step]))[0]),
                peak_memory_gib=float(found.ranked.peak_N[i]) / GIB,
                time_s={**time, "imbalance": 0.0},
                memory_gib=memory,
            )
        )
    cluster = problem.cluster
    title = f"{problem.model.name} on {cluster.devices:,} × {cluster.device.name}, before balancing"
    return ranking_png(plans, (cluster.memory_budget - config.search.reserve_bytes) / GIB, title)


def configured(arguments: argparse.Namespace) -> PlanConfig:
    """The plan config with the options laid over it."""
    overrides: dict[str, Any] = {}
    for place, value in (
        ("model", arguments.model),
        ("training.framework", arguments.framework),
        ("cluster.devices", arguments.devices),
        ("training.global_batch", arguments.global_batch),
        ("cluster.device", arguments.device_type),
    ):
        if value is not None:
            overrides[place] = value
    if arguments.search:
        section = read_document(Path(arguments.search))
        overrides["search"] = section.get("search", section) if isinstance(section, dict) else section
    if arguments.max_mem:
        overrides["cluster.memory_budget_gib"] = size(arguments.max_mem, "-M") / GIB
    if arguments.reserve:
        overrides["search.reserve_gib"] = size(arguments.reserve, "-mem") / GIB
    if arguments.recalibration:
        overrides["search.recalibration"] = arguments.recalibration
    config = load_plan(Path(arguments.yaml), overrides)
    candidates = dict(config.search.candidates)
    if arguments.dimensions is not None:
        candidates = _varied(arguments.dimensions, candidates)
    if arguments.swap_act:
        candidates["swap_act"] = (1,)
    if arguments.swap_os:
        candidates["swap_os"] = (1,)
    if arguments.manual_ppb:
        balance = config.balance
        if balance.offset is None:
            raise InputError(f"{config.path}: -mppb: balance.offset is missing, the layers of every chunk are needed")
        candidates["pp"], candidates["vpp"] = (len(balance.offset[0]),), (len(balance.offset),)
        if balance.recompute or balance.select_recompute or balance.select_comm_recompute:
            # What the lists recompute is theirs to say; the search must not lose what only they make fit.
            candidates["recompute"] = (RECOMPUTE.index("full"),)
    search: SearchSpec = replace(config.search, candidates=MappingProxyType(candidates))
    return replace(config, search=search)


def _varied(names: list[str], candidates: dict[str, tuple[int, ...] | None]) -> dict[str, tuple[int, ...] | None]:
    """Vary the named dimensions (none named: all that have automatic candidates); hold the others at the config's."""
    keys = []
    for name in [part for given in names for part in given.replace(",", " ").split()]:
        key = ALIASES.get(name.lower(), name.lower())
        if key not in DIMENSIONS:
            raise InputError(f"-l: {name!r} found, allowed: {', '.join(x.upper() for x in DIMENSIONS)}")
        keys.append(key)
    if not keys:
        return dict.fromkeys(d for d in DIMENSIONS if d not in UNSEARCHED) | {
            name: values for name, values in candidates.items() if name in UNSEARCHED
        }
    # dp and mb follow from the rest; degrees that are neither named nor given stay at 1.
    held: dict[str, tuple[int, ...] | None] = {
        d: candidates.get(d) or (1,) for d in ("tp", "cp", "ep", "etp", "pp", "vpp", "mbs") if d not in keys
    }
    opened = {
        key: None if candidates.get(key) is None or len(candidates[key] or ()) <= 1 else candidates[key] for key in keys
    }
    kept = {name: values for name, values in candidates.items() if name not in held and name not in keys}
    return {**kept, **held, **opened}


def candidates_csv(ranked: list[dict[str, Any]]) -> str:
    """The ranking as a table."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(ranked[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(ranked)
    return stream.getvalue()


def _explain(arguments: argparse.Namespace, config: PlanConfig) -> int:
    from paraplan.errors import ParaplanError
    from paraplan.nd.explain import explain
    from paraplan.nd.search import search

    given = settings([arguments.explain], "--explain")
    try:
        winner = search(config.problem, config.search, None, 1).ranked
    except ParaplanError:
        winner = None
    found = explain(config.problem, config.search, given, winner)
    if arguments.json:
        document = {"layout": found.layout, "rules": [rule.name for rule in found.broken], "lines": list(found.lines)}
        sys.stdout.write(json.dumps(document) + "\n")
    else:
        sys.stdout.write("\n".join(found.lines) + "\n")
    return 0


class _Progress:
    """A line on standard error once a search takes more than two seconds."""

    def __init__(self) -> None:
        import time

        self.clock = time.monotonic
        self.began = self.shown = self.clock()
        self.drawn = False

    def __call__(self, seen: int, fitting: int, best: float) -> None:
        now = self.clock()
        if now - self.began > 2 and now - self.shown > 0.2:
            self.shown, self.drawn = now, True
            rate = seen / (now - self.began)
            sys.stderr.write(f"\r{seen:,} layouts ({rate:,.0f}/s), {fitting:,} fit, best {best:.4g} s \x1b[K")
            sys.stderr.flush()

    def close(self) -> None:
        if self.drawn:
            sys.stderr.write("\n")
