"""``paraplan nd``: the ND search alone."""

import argparse
import csv
import io
import json
import re
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from paraplan.cli.arguments import Parser, filled, positive, settings, size
from paraplan.foundation.documents import read_document, read_mapping, write_whole
from paraplan.foundation.errors import InputError, NoAnswerError, ParaplanError
from paraplan.question.layouts import RECOMPUTE, Layouts
from paraplan.question.plan_config import PlanConfig, load_plan
from paraplan.question.problem import Problem
from paraplan.question.search_spec import ALIASES, DIMENSIONS, UNSEARCHED, SearchSpec, limit, words
from paraplan.search.search import SearchResult

GIB = 2.0**30
DEFAULT_TOP = 10


def add_arguments(parser: Parser) -> None:
    parser.add_argument("-y", "--yaml", type=filled, metavar="CONFIG", required=True, help="plan config")
    parser.add_argument(
        "-f",
        "--framework",
        type=filled,
        help="mindformers, mindspeed, hyperparallel, hyper_v2, torchtitan, megatron, …",
    )
    parser.add_argument("-m", "--model", type=filled, help="name or path of a model config")
    parser.add_argument("-l", "--dimensions", nargs="*", metavar="DIM", help="dimensions to vary (none: all); MP = TP")
    parser.add_argument("-d", "--devices", type=positive, help="number of devices")
    parser.add_argument("-b", "--global-batch", type=positive, metavar="BATCH", help="sequences of a step")
    parser.add_argument("-A", "--device-type", type=filled, metavar="TYPE", help="A2, A3, h100, …")
    parser.add_argument("-t", "--top", type=positive, help=f"layouts printed and drawn ({DEFAULT_TOP})")
    parser.add_argument(
        "-v",
        "--verbosity",
        type=int,
        choices=range(7),
        default=2,
        metavar="LEVEL",
        help="0 nothing, 1 result, 2 files and plots, 3 counts, … 6 debug",
    )
    parser.add_argument("-M", "--max-mem", type=filled, metavar="SIZE", help="memory budget of a device, e.g. 58GB")
    parser.add_argument(
        "-mem", "--reserve", type=filled, metavar="SIZE", help="memory kept back for balancing, e.g. 4GB"
    )
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
    parser.add_argument(
        "-c", "--recalibration", type=filled, metavar="FILE", help="JSON with one ratio per time component"
    )
    parser.add_argument("-s", "--search", type=filled, metavar="FILE", help="YAML with another search section")
    parser.add_argument(
        "-o", "--output", type=filled, metavar="DIR", help="write candidates.csv, ranking.png and pareto.png here"
    )
    parser.add_argument("--explain", type=filled, metavar="DIM=VALUE,…", help="say what is wrong with this layout")
    parser.add_argument(
        "--sensitivity", action="store_true", help="what overtakes the winner when the hardware is 10 %% off"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")


def run(arguments: argparse.Namespace) -> int:
    config = configured(arguments)
    asking = _Asking(config, arguments.manual_ppb)
    if arguments.explain is not None:
        return _explain(arguments, asking)
    progress = _Progress() if sys.stderr.isatty() or arguments.verbosity >= 3 else None
    found = asking.answer(config.problem, arguments.top or max(DEFAULT_TOP, config.search.top), progress)
    if progress is not None:
        progress.close()
    document = found.to_json(config.problem)
    document["recalibration"] = dict(config.search.recalibration)
    told = arguments.verbosity >= 1 and not arguments.json
    # What takes longer comes after the ranking, so that Ctrl-C cannot lose it.
    if told:
        sys.stdout.write("\n".join(_ranking(config, document, found.stopped, arguments)) + "\n")
        sys.stdout.flush()
    if arguments.sensitivity:
        document["sensitivity"] = asking.sensitivity(found)
        if told:
            sys.stdout.write("".join(f"{line['change']}: {line['effect']}\n" for line in document["sensitivity"]))
    if arguments.json:
        if arguments.output:
            from paraplan.search.economics import costs_of

            document["economics"] = costs_of(config.problem, float(found.ranked.step_time_N[0]))
        sys.stdout.write(json.dumps(document) + "\n")
        sys.stdout.flush()
    if arguments.output:
        paths = _write(Path(arguments.output), config, found, document)
        if told and arguments.verbosity >= 2:
            sys.stdout.write("\n".join(["", *map(str, paths)]) + "\n")
    return 0


@dataclass(frozen=True, slots=True)
class _Asking:
    """The search as the command line asks for it: by the models alone, or played with the config's lists."""

    config: PlanConfig
    played: bool

    def answer(self, problem: Problem, top: int, progress: "_Progress | None" = None) -> SearchResult:
        """The ranking, on the config's hardware or on other.

        Raises:
            InputError: no layout is legal.
            NoAnswerError: none fits.
        """
        from paraplan.search.search import search

        try:
            found = search(problem, self.config.search, progress, max(top, PLAYED) if self.played else top)
        except ParaplanError as error:
            raise type(error)(f"{self.config.path}: {error}") from None
        return _with_lists(replace(self.config, problem=problem), found, top) if self.played else found

    def step_of(self, problem: Problem, layout: Layouts) -> tuple[float, bool]:
        """Seconds of one layout's step, as :meth:`answer` ranks it, and whether it fits."""
        from paraplan import memory
        from paraplan.search.search import ranked_step_times

        if self.played:
            seconds, peak = _played(replace(self.config, problem=problem), layout)
            return seconds, peak <= problem.cluster.memory_budget
        seconds = float(ranked_step_times(problem, self.config.search, layout)[0])
        return seconds, float(memory.peaks(problem, layout)[0]) <= limit(problem, self.config.search)

    def sensitivity(self, found: SearchResult) -> list[dict[str, str]]:
        """What 10 % of hardware change."""
        from paraplan.search.sensitivity import sensitivity

        return sensitivity(self.config.problem, found, lambda problem: self.answer(problem, 1), self.step_of)


def _write(folder: Path, config: PlanConfig, found: SearchResult, document: dict[str, Any]) -> list[Path]:
    """The files of ``-o``."""
    from paraplan.plan.plots.pareto import pareto_png
    from paraplan.search.pareto import front

    paths = [folder / name for name in ("candidates.csv", "ranking.png", "pareto.png")]
    write_whole(paths[0], candidates_csv(document["ranked"]))
    write_whole(paths[1], ranking_picture(config, found))
    write_whole(paths[2], pareto_png(config.problem, front(config.problem, config.search)))
    return paths


PLAYED = 64
"""Layouts that are played with the config's own lists."""


def _with_lists(config: PlanConfig, found: SearchResult, top: int) -> SearchResult:
    """The ranked layouts under the config's offset and recompute lists, played, ranked again.

    Raises:
        NoAnswerError: none fits so.
    """
    from paraplan import memory
    from paraplan.search.ranking import Ranked
    from paraplan.search.search import predicted

    layouts, where = found.ranked.layouts, f"{config.path}: balance"
    played = [_played(config, layouts.take(np.array([i]))) for i in range(len(layouts))]
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
        times=predicted(config.problem, config.search, ranked.layouts),
        memories=memory.estimate(config.problem, ranked.layouts),
    )


def _played(config: PlanConfig, layout: Layouts) -> tuple[float, float]:
    """Step seconds and peak bytes of one layout under the config's lists.

    The seconds change by as much as recalibration changes the model's: a played step knows no components.
    """
    from paraplan import time as performance
    from paraplan.balance.describe import played_lists
    from paraplan.search.search import ranked_step_times

    seconds, peak = played_lists(config.problem, layout, config.balance, f"{config.path}: balance")
    if config.search.recalibration:
        plain = performance.step_times(config.problem, layout)
        seconds *= float(ranked_step_times(config.problem, config.search, layout)[0] / plain[0])
    return seconds, peak


def _ranking(config: PlanConfig, document: dict[str, Any], stopped: bool, arguments: argparse.Namespace) -> list[str]:
    from paraplan.search.economics import costs_of, costs_text
    from paraplan.search.search import ratios_text
    from paraplan.search.table import ranking_table

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
        *([f"recalibrated: {ratios_text(config.search.recalibration)}"] if config.search.recalibration else []),
        "",
        ranking_table(document["ranked"], shutil.get_terminal_size((110, 24)).columns),
    ]
    if arguments.verbosity >= 3:
        out += [
            "",
            "removed by rule:",
            *(f"  {count:>14,}  {name}" for name, count in document["removed"].items() if count),
        ]
    return [*out, "", *costs_text(costs_of(problem, document["ranked"][0]["step_time_s"]))]


def ranking_picture(config: PlanConfig, found: SearchResult) -> bytes:
    """The ranked layouts side by side, by the models alone."""
    from paraplan.plan.document import RankedPlan, layout_name
    from paraplan.plan.plots.ranking import ranking_png
    from paraplan.time import mfu, tokens_per_second_per_device

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
    blamed: dict[str, str] = {}
    for option, place, value in (
        ("-m", "model", arguments.model),
        ("-f", "training.framework", arguments.framework),
        ("-d", "cluster.devices", arguments.devices),
        ("-b", "training.global_batch", arguments.global_batch),
        ("-A", "cluster.device", arguments.device_type),
    ):
        if value is not None:
            overrides[place], blamed[place] = value, option
    if arguments.search:
        section = read_document(Path(arguments.search))
        overrides["search"] = section.get("search", section) if isinstance(section, dict) else section
        blamed["search"] = arguments.search
    if arguments.max_mem:
        place = "cluster.memory_budget_gib"
        overrides[place], blamed[place] = size(arguments.max_mem, "-M") / GIB, "-M"
    if arguments.reserve:
        place = "search.reserve_gib"
        overrides[place], blamed[place] = size(arguments.reserve, "-mem") / GIB, "-mem"
    if arguments.recalibration:
        place = "search.recalibration"
        overrides[place], blamed[place] = read_mapping(Path(arguments.recalibration)), arguments.recalibration
    try:
        config = load_plan(Path(arguments.yaml), overrides)
    except InputError as error:
        raise InputError(_blamed(str(error), arguments.yaml, blamed)) from None
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


def _blamed(message: str, config: str, options: dict[str, str]) -> str:
    """A message about a value that an option gave: it names the option, not the config."""
    match = re.match(rf"{re.escape(str(Path(config)))}(?::\d+)?: ", message)
    if match is None:
        return message
    rest = message[match.end() :]
    for place in sorted(options, key=len, reverse=True):
        if re.match(rf"{re.escape(place)}[.:]", rest):
            return f"{options[place]}: {rest}"
    return message


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


def _explain(arguments: argparse.Namespace, asking: _Asking) -> int:
    from paraplan.search.explain import explain
    from paraplan.search.search import layout_json

    config = asking.config
    given = settings([arguments.explain], "--explain")
    try:
        winner = asking.answer(config.problem, 1).ranked
    except ParaplanError:
        winner = None
    found = explain(config.problem, config.search, given, winner)
    lines = list(found.lines)
    shape = {name: config.search.fixed().get(name, 0) for name in SHAPE}
    if asking.played and not found.broken and any(found.layout[name] != shape[name] for name in SHAPE):
        lines.append(
            f"the above is the model's; the config's lists, for {words(shape, SHAPE)}, cannot be played with it"
        )
    elif asking.played and not found.broken:
        seconds, fits = asking.step_of(config.problem, Layouts.of([found.layout]))
        against = ""
        if winner is not None:
            best = float(winner.step_time_N[0])
            against = f", {seconds / best - 1:+.1%} against the winner's {best:.4g} s"
        lines.append("the above is the model's, of an even split; played with the config's lists:")
        lines.append(f"step {seconds:.4g} s{against}; {'fits' if fits else 'does not fit'}")
    if arguments.json:
        document = {"layout": layout_json(found.layout), "rules": [rule.name for rule in found.broken], "lines": lines}
        sys.stdout.write(json.dumps(document) + "\n")
    else:
        sys.stdout.write("\n".join(lines) + "\n")
    return 0


SHAPE = ("pp", "vpp")
"""What the config's lists fix."""


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
