"""The time of one training step: layers, pipeline, data parallelism and optimizer put together."""

from copy import copy
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from paraplan.foundation.arrays import Array, combine
from paraplan.memory.layers import layer_activations
from paraplan.operators import collectives as communication
from paraplan.operators.layer_kinds import KINDS, front_dense, on_stage
from paraplan.question.clusters.placement import place
from paraplan.question.layouts import RECOMPUTE, SCHEDULES, Layouts
from paraplan.question.problem import Problem
from paraplan.time.data_parallel import DataParallel, data_parallel
from paraplan.time.layers import LayerCosts, layer_costs

COMPONENTS = (
    "compute",
    "recompute",
    "swap",
    "tp_comm",
    "cp_comm",
    "ep_comm",
    "pp_comm",
    "dp_comm",
    "bubble",
    "optimizer",
    "overhead",
)

FILL = {
    "1f1b": 1.0,
    "gpipe": 1.0,
    "interleaved": 1.0,
    "interleaved-less-memory": 1.0,
    "seq1f1b": 0.5,
    "zb-h1": 1 / 3,
    "zb-h2": 0.0,
    "zb-v": 0.0,
    "dualpipe-v": 1 / 6,
}
"""Pipeline fill and drain, in units of (pp − 1) average stage times (interleaving divides by vpp): 1F1B (Narayanan et
al., arXiv:2104.04473, section 2.2); zero-bubble with equal forward, input- and weight-gradient times (Qi et al.,
arXiv:2401.10241, table 2, and arXiv:2405.15362, table 1); Seq1F1B with two splits."""


@dataclass(frozen=True)
class TimeTable:
    """Seconds of one step for ``N`` layouts."""

    step_time_N: Array
    components: dict[str, Array]
    """Name (:data:`COMPONENTS`) to seconds that nothing hides, shape (N,); they sum to the step."""


@dataclass(frozen=True)
class LayerTimes:
    """What the balancer and the simulator take: one micro-batch through one layer of each of :data:`KINDS`.

    Kinds that the model lacks take no time.
    """

    forward_NK: Array
    backward_NK: Array
    recompute_NKR: Array
    """Extra backward seconds under each of :data:`paraplan.question.layouts.RECOMPUTE`."""
    p2p_N: Array
    """Seconds of one send between neighbouring stages."""
    outside_N: Array
    """Seconds of a step outside the pipeline: unhidden data-parallel communication, optimizer, overhead."""


def estimate(problem: Problem, layouts: Layouts) -> TimeTable:
    """Predict the step of every layout, and where its time goes."""
    return _Step(problem, layouts).table()


def step_times(problem: Problem, layouts: Layouts, above: float = np.inf) -> Array:
    """Only :attr:`TimeTable.step_time_N`, in less time: the pipeline once per combination of what it depends on.

    Steps that are longer than ``above`` seconds by their pipeline alone are infinite.
    """
    step = _Step(problem, layouts)
    found = combine(
        step.inverse,
        layouts.recompute,
        layouts.recompute_layers + 1,
        layouts.pp,
        layouts.vpp,
        layouts.schedule,
        layouts.mb,
        layouts.dp,
        layouts.swap_act,
    )
    pipeline: Array = step.of(found.rows_U).pipeline[found.inverse_N]
    near = np.flatnonzero(pipeline <= above)
    if len(near) == len(pipeline):
        return pipeline + step.outside
    seconds = np.full(len(pipeline), np.inf)
    if len(near):
        seconds[near] = pipeline[near] + step.of(near).outside
    return seconds


def layer_times(problem: Problem, layouts: Layouts) -> LayerTimes:
    """Times of single layers, for balancing and simulation."""
    step = _Step(problem, layouts)
    inverse = step.costs.combinations.inverse_N
    shape = (len(layouts), len(KINDS))
    forward, backward = np.zeros(shape), np.zeros(shape)
    recompute = np.zeros((*shape, len(RECOMPUTE)))
    for k, kind in enumerate(KINDS):
        cost = step.costs.kinds.get(kind)
        if cost is None:
            continue
        forward[:, k] = cost.forward.total[inverse]
        backward[:, k] = cost.backward.total[inverse]
        for r, part in enumerate(cost.recompute):
            recompute[:, k, r] = part.total[inverse]
    return LayerTimes(forward, backward, recompute, step.p2p, step.outside)


class _Step:
    """One pass over ``N`` layouts; what only the breakdown needs is computed when it is asked for."""

    def __init__(self, problem: Problem, layouts: Layouts) -> None:
        self.problem = problem
        self.layouts = layouts
        self.costs: LayerCosts = layer_costs(problem, layouts)
        self.inverse = self.costs.combinations.inverse_N

    def of(self, rows: npt.NDArray[np.intp]) -> "_Step":
        """The same for some of the layouts."""
        part = copy(self)
        part.layouts, part.inverse = self.layouts.take(rows), self.inverse[rows]
        return part

    @cached_property
    def recomputed_share(self) -> Array | float:
        """Share of the layers that recompute."""
        chosen = self.layouts.recompute_layers
        if not (chosen >= 0).any():
            return 1.0
        held = self.problem.model.layers / (self.layouts.pp * self.layouts.vpp)
        return np.where(chosen < 0, 1.0, np.minimum(1.0, chosen / held))

    def _gathered(self, kind: str, field: str) -> tuple[Array, Array]:
        """Forward plus backward, and recompute, of one kind: seconds of ``field`` ("total" or a part's), shape (N,)."""
        cost = self.costs.kinds[kind]
        work = getattr(cost.forward, field) + getattr(cost.backward, field)
        levels = np.stack([getattr(part, field) for part in cost.recompute], axis=1)
        chosen = levels.reshape(-1)[self.inverse * len(RECOMPUTE) + self.layouts.recompute]
        return work[self.inverse], chosen * self.recomputed_share

    @cached_property
    def layer(self) -> dict[str, Array]:
        """Seconds of one micro-batch through a layer of each kind, recompute included."""
        found: dict[str, Array] = {kind: sum(self._gathered(kind, "total")) for kind in self.costs.kinds}  # type: ignore[misc]
        return {kind: seconds + sum(self.swapped.get(kind, ())) for kind, seconds in found.items()}

    @cached_property
    def swapped(self) -> dict[str, tuple[Array, Array]]:
        """Seconds by which a layer's activations, on their way to the host and back, outlast its two passes.

        They leave behind the layer's forward and come back behind its backward and recomputation, both ways at once.
        """
        layouts, device = self.layouts, self.problem.cluster.device
        if not layouts.swap_act.any():
            return {}
        combinations, activations = layer_activations(self.problem, layouts)
        rows, share = combinations.inverse_N, self.recomputed_share
        exposed: dict[str, tuple[Array, Array]] = {}
        for kind in ("dense", "moe"):
            if kind not in self.costs.kinds:
                continue
            levels = np.stack(activations[kind].kept, axis=1)
            chosen = levels.reshape(-1)[rows * len(RECOMPUTE) + layouts.recompute]
            size = share * chosen + (1 - share) * levels[rows, 0]
            seconds = size / (device.host_bandwidth * device.efficiency.host_link)
            forward = self.costs.kinds[kind].forward.total[self.inverse]
            both, again = self._gathered(kind, "total")
            passes = (forward, both - forward + again)
            out, back = (np.where(layouts.swap_act == 1, np.maximum(0.0, seconds - one), 0.0) for one in passes)
            exposed[kind] = out, back
        return exposed

    @cached_property
    def ends(self) -> tuple[Array, Array]:
        """What the first and the last stage do besides their layers."""
        tail = self.layer["head"]
        if "mtp" in self.layer:
            tail = tail + self.problem.model.mtp_layers * self.layer["mtp"]
        return self.layer["embedding"], tail

    @cached_property
    def all_layers(self) -> Array:
        """One micro-batch through the whole model."""
        dense = front_dense(self.problem.model)
        total = self.ends[0] + self.ends[1]
        for kind, count in (("dense", dense), ("moe", self.problem.model.layers - dense)):
            if count:
                total = total + count * self.layer[kind]
        return total

    @cached_property
    def slowest_stage(self) -> Array:
        """One micro-batch on the slowest stage.

        The first stages hold the dense layers, the last but one the most layers, the first and last the ends: the
        slowest is among these four.
        """
        layouts, (first, last) = self.layouts, self.ends
        pp = layouts.pp
        # How many layers a stage holds depends on the chunks alone.
        found = combine(pp, layouts.vpp)
        rows, inverse = layouts.take(found.rows_U), found.inverse_N
        slowest = np.zeros(len(layouts))
        for stage in (np.zeros_like(rows.pp), np.minimum(1, rows.pp - 1), np.maximum(rows.pp - 2, 0), rows.pp - 1):
            held = on_stage(self.problem.model, rows, stage)
            seconds = (stage == 0)[inverse] * first + (stage == rows.pp - 1)[inverse] * last
            for kind, count in (("dense", held.dense), ("moe", held.moe)):
                if kind in self.layer and count.any():
                    seconds += count.astype(np.float64)[inverse] * self.layer[kind]
            np.maximum(slowest, seconds, out=slowest)
        if self.problem.framework.uneven_stages:
            uneven = np.flatnonzero((pp > 1) & (self.problem.model.layers % (pp * layouts.vpp) != 0))
            slowest[uneven] = np.minimum(slowest[uneven], self._balanced(uneven))
        return slowest

    def _balanced(self, rows: npt.NDArray[np.intp]) -> Array:
        """The slowest stage where layers do not divide over the chunks, so that the layout is written by hand.

        Hands then take layers off the stages that hold the ends. The slowest stage is one of the middle with ``n``
        layers, or an end with its own work and ``n``: the fastest of these under which the stages hold all.
        """
        first, last, total = self.ends[0][rows], self.ends[1][rows], self.all_layers[rows]
        pp, layers = self.layouts.pp[rows], self.problem.model.layers
        each = (total - first - last) / layers
        average = total / pp
        best = np.full(len(rows), np.inf)
        for extra in (0.0, first, last):
            least = np.floor((average - extra) / each)
            for more in (0, 1, 2):
                slowest = np.maximum(np.maximum((least + more) * each + extra, first), last)
                # A rounding error must not cost a layer.
                room = slowest / each + 1e-9
                held = (
                    (pp - 2) * np.floor(room)
                    + np.floor(np.maximum(0.0, room - first / each))
                    + np.floor(np.maximum(0.0, room - last / each))
                )
                best = np.minimum(best, np.where(held >= layers, slowest, np.inf))
        return best

    @cached_property
    def fill(self) -> Array:
        """Fill and drain of the pipeline."""
        shares = np.array([FILL[name] for name in SCHEDULES])[self.layouts.schedule]
        pp = self.layouts.pp
        seconds: Array = (pp - 1) / pp * self.all_layers * shares / self.layouts.vpp
        return seconds

    @cached_property
    def p2p(self) -> Array:
        """One send between neighbouring stages."""
        layouts = self.layouts
        group = place(self.problem.cluster.levels, layouts.pp, layouts.dp * layouts.cp * layouts.tp)
        return communication.point_to_point(self.problem.cluster, group, self.costs.boundary_bytes_U[self.inverse])

    @cached_property
    def sends(self) -> Array:
        """Sends that nothing hides: through the empty pipeline and back, and in the steady phase."""
        layouts = self.layouts
        shown = 1 - self.problem.framework.overlap_pipeline
        return 2 * self.p2p * ((layouts.pp - 1) + layouts.mb * layouts.vpp * shown)

    @cached_property
    def parallel(self) -> DataParallel:
        return data_parallel(self.problem, self.layouts)

    @cached_property
    def data_parallel_seconds(self) -> Array:
        """Reduction and gathering that the passes do not hide.

        With ZeRO 0 to 2 the gradients travel behind the backward of the last micro-batch and the parameters behind
        the forward of the first; the last bucket has nothing left to hide behind. With ZeRO 3 every micro-batch
        gathers before both passes and scatters after its backward, one layer ahead.
        """
        layouts, framework = self.layouts, self.problem.framework
        held = np.maximum(self.problem.model.layers / layouts.pp, 1.0)
        forward, backward = self._pass_seconds()
        reduce, gather = self.parallel.reduce, self.parallel.gather

        def shown(seconds: Array, hidden: float, window: Array) -> Array:
            if hidden == 0:
                return seconds
            return np.maximum(seconds / held, seconds - hidden * window)

        once = shown(reduce, framework.overlap_gradient_reduce, backward) + np.where(
            layouts.zero_stage >= 1, shown(gather, framework.overlap_parameter_gather, forward), 0.0
        )
        if not (layouts.zero_stage == 3).any():
            return once
        ahead = framework.overlap_parameter_gather
        every = layouts.mb * (shown(gather, ahead, forward) + shown(gather + reduce, ahead, backward))
        return np.where(layouts.zero_stage == 3, every, once)

    def _pass_seconds(self) -> tuple[Array, Array]:
        """Forward and backward of one micro-batch on an average stage, as far as they hide communication.

        What context parallelism and swapping show counts: compute that shrinks shows more of them, and the pass is as
        long.
        """
        model = self.problem.model
        dense = front_dense(model)
        forward = backward = np.zeros(len(self.costs.combinations))
        for kind, count in (("dense", dense), ("moe", model.layers - dense)):
            if count:
                one, other, paired = (
                    self.costs.kinds[kind].forward,
                    self.costs.kinds[kind].backward,
                    self.costs.paired_U,
                )
                # An exchange that DualPipe could not hide lasts as much longer as compute is faster.
                forward = forward + count * np.where(paired, one.total, one.compute + one.tp + one.cp)
                backward = backward + count * np.where(paired, other.total, other.compute + other.tp + other.cp)
        forward, backward = forward[self.inverse], backward[self.inverse]
        for kind, count in (("dense", dense), ("moe", model.layers - dense)):
            if kind in self.swapped:
                out, back = self.swapped[kind]
                forward, backward = forward + count * out, backward + count * back
        pp = self.layouts.pp
        return forward / pp, backward / pp

    @cached_property
    def contention(self) -> Array:
        """Compute slowed by the collectives that run behind it, which take compute units and memory bandwidth."""
        share = self.problem.cluster.device.efficiency.contention
        moved = self.parallel.reduce + np.where(self.layouts.zero_stage >= 1, self.parallel.gather, 0.0)
        every = self.layouts.mb * (self.parallel.reduce + 2 * self.parallel.gather)
        return share * np.where(self.layouts.zero_stage == 3, every, moved)

    @cached_property
    def outside(self) -> Array:
        return self.data_parallel_seconds + self.parallel.optimizer + self.contention

    @cached_property
    def pipeline(self) -> Array:
        return self.layouts.mb * self.slowest_stage + self.fill + self.sends

    @cached_property
    def seconds(self) -> Array:
        return self.pipeline + self.outside

    def table(self) -> TimeTable:
        """The step split up; the work shown is an average stage's, what the slowest adds is bubble."""
        model, layouts = self.problem.model, self.layouts
        dense = front_dense(model)
        counts = {"embedding": 1, "dense": dense, "moe": model.layers - dense, "mtp": model.mtp_layers, "head": 1}
        passes = layouts.mb / layouts.pp
        parts = dict.fromkeys(COMPONENTS, np.zeros(len(layouts)))
        for name, field in (("compute", "compute"), ("tp_comm", "tp"), ("cp_comm", "cp"), ("ep_comm", "ep")):
            for kind in self.costs.kinds:
                work, again = self._gathered(kind, field)
                parts[name] = parts[name] + passes * counts[kind] * work
                parts["recompute"] = parts["recompute"] + passes * counts[kind] * again
        for kind, shown in self.swapped.items():
            parts["swap"] = parts["swap"] + passes * counts[kind] * sum(shown)
        parts["pp_comm"] = self.sends
        parts["dp_comm"] = self.data_parallel_seconds
        parts["bubble"] = layouts.mb * (self.slowest_stage - self.all_layers / layouts.pp) + self.fill
        parts["optimizer"] = self.parallel.optimizer
        parts["overhead"] = self.contention
        return TimeTable(self.seconds, parts)
