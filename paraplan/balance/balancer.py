"""Balancing: bounds, search and integer program put together; the simulator has the last word."""

import math
import time
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from paraplan.balance import model, search
from paraplan.balance.bounds import Relaxation, Relaxed, disjunction
from paraplan.balance.play import problem_document
from paraplan.balance.problem import BalanceProblem
from paraplan.balance.restrictions import FREE, Counts
from paraplan.balance.shortfall import ContradictionError, Need, need, shortfall
from paraplan.foundation.arrays import Array
from paraplan.foundation.errors import InputError
from paraplan.simulate import bubble
from paraplan.simulate.pipeline_plan import Bubble, PipelinePlan, Table

GOOD_GAP = {0: 0.05, 1: 0.01, 2: 0.0}
"""Effort to the gap at which it stops looking."""

RUNS = {0: 2, 1: 8, 2: 8}
"""Annealing runs of one round."""

MOVES_PER_ROUND = 80_000
IDLE_ROUNDS = {0: 0, 1: 3, 2: 1000}
"""Rounds without improvement after which annealing ends."""

PROGRAM_VARIABLES = 400
"""Integer programs with more variables seldom close in time; they are tried only with effort 2."""


def balance(problem: BalanceProblem) -> PipelinePlan:
    """Assign layers and strategies to chunks under the memory limit.

    Tries every schedule for as many chunks where the specification leaves it open. The makespan and the peak memory
    are the simulator's for the returned assignment; the bound holds for every assignment that respects the limit.

    Raises:
        InputError: the schedule cannot run these numbers, or the options contradict the layers.
    """
    began = time.monotonic()
    solver = model.check_solver(problem.spec.solver)
    deadline = began + problem.spec.time_limit_s
    tried = alternatives(problem)
    best: PipelinePlan | None = None
    bounds: list[float] = []
    for i, one in enumerate(tried):
        now = time.monotonic()
        run = _Balancing(one, solver, now, now + (deadline - now) / (len(tried) - i))
        plan = run.plan(math.inf if best is None else best.makespan)
        bounds.append(run.given_bound if plan is None else plan.lower_bound)
        if plan is not None and (best is None or plan.makespan < best.makespan):
            best = plan
    if best is None:
        return no_plan(tried, min(bounds), solver, began, deadline)
    # The bound over all tried schedules is the lowest of theirs.
    bound = min([best.makespan, *bounds])
    gap = best.makespan / bound - 1 if bound > 0 else 0.0
    status = "optimal" if gap <= OPTIMAL_GAP else "feasible"
    return replace(best, status=status, lower_bound=bound, gap=gap, seconds=time.monotonic() - began)  # type: ignore[arg-type]


def alternatives(problem: BalanceProblem) -> list[BalanceProblem]:
    """The problem under every schedule to try: its own, and with ``auto`` those for as many chunks."""
    own = problem.schedule
    if problem.spec.schedule != "auto" or problem.batched or own not in SIMILAR:
        return [problem]
    names = SIMILAR[own]
    if problem.chunks == 2:
        names = (*names, *TWO_CHUNKS)
    found = [problem]
    for name in names:
        runnable = problem.spec.runtime is None or name in problem.spec.runtime
        enough = problem.micro_batches >= 2 * problem.stages if name in TWO_CHUNKS else True
        grouped = problem.micro_batches % problem.stages == 0 if name != "zb-h1" and name != "zb-h2" else True
        other = replace(problem, schedule=name)
        if name != own and runnable and enough and grouped and _options_fit(other):
            found.append(other)
    return found


def _options_fit(problem: BalanceProblem) -> bool:
    """Pins name chunks and stages, whose order is the schedule's."""
    try:
        return problem.restrictions is not None
    except InputError:
        return False


SIMILAR = {
    "1f1b": ("1f1b", "zb-h1", "zb-h2"),
    "interleaved": ("interleaved", "interleaved-less-memory"),
    "interleaved-less-memory": ("interleaved-less-memory", "interleaved"),
}
"""Schedule to those that run the same chunks. The less-memory order leaves room for less recomputation; zero-bubble
orders fill the bubble with weight gradients and hold more."""

TWO_CHUNKS = ("zb-v",)
"""Schedules of exactly two chunks a stage."""


OPTIMAL_GAP = 1e-6
"""A makespan this near its bound is called optimal: the solvers' own precision."""


GRACE_S = 5.0
"""Seconds past the time limit in which the integer program may still find out whether there is any assignment."""

ANNEALING_SHARE = 0.5
"""Of the time limit, for one round of annealing."""


LEAST_ANNEALING_S = 0.5
"""Where building the pipeline has taken the time, so that there is an answer."""

LEAST_EXPLAIN_S, MOST_EXPLAIN_S = 2.0, 5.0
"""Seconds, within the time limit or past it, in which the smallest limit that does is sought."""


class _Balancing:
    """One schedule of one problem, whose times it scales to about 1, where the solvers' tolerances belong."""

    def __init__(self, problem: BalanceProblem, solver: str, began: float, deadline: float) -> None:
        self.given, self.solver, self.began, self.deadline = problem, solver, began, deadline
        self.unit = time_unit(problem)
        self.problem = scaled(problem, 1 / self.unit)
        self.best: Counts | None = None
        self.best_time = math.inf
        self.bound = 0.0

    @property
    def given_bound(self) -> float:
        """The bound in the unit of the given problem."""
        return self.bound * self.unit

    def plan(self, beat: float = math.inf) -> PipelinePlan | None:
        """The best plan found; None where none can be below ``beat``, none is (infinite bound) or none was found."""
        problem, spec = self.problem, self.problem.spec
        _check_options(problem)
        limit = self.deadline - self.began
        relaxation = Relaxation(problem, self.began + 0.4 * limit)
        root = relaxation.solve()
        if math.isinf(root.bound):
            self.bound = math.inf
            return None
        self.bound = root.bound
        if self.given_bound >= beat:
            return None
        instance = search.instance_of(problem)
        starts = [round_relaxed(problem, root)]
        starts += [even_start(problem, i) for i in range(RUNS[spec.effort] - 1)]
        target = GOOD_GAP[spec.effort]
        # Short runs first: they bring small pipelines to their optimum.
        self._anneal(instance, starts, MOVES_PER_ROUND // 4)
        # Annealing may never reach what pins and fixed strategies leave; the program does.
        lost = self.best is None and problem.restrictions.any
        small = relaxation.rows.size <= PROGRAM_VARIABLES or lost
        if small and self._gap() > OPTIMAL_GAP and self._integer(relaxation, self.began + 0.4 * limit):
            self.bound = math.inf
            return None
        if lost and self.best is not None:
            starts = [self.best] * RUNS[spec.effort]
        if self._gap() > target:
            self._anneal(instance, starts, MOVES_PER_ROUND, 1)
        if self._gap() > target:
            self._raise_bound(relaxation, root)
        turn, idle = 2, 0
        while self._gap() > target and idle < IDLE_ROUNDS[spec.effort] and time.monotonic() < self.began + 0.6 * limit:
            before = self.best_time
            fresh = [even_start(problem, turn * 17 + i) for i in range(RUNS[spec.effort] // 2)]
            relaxed = [round_relaxed(problem, root)] * (RUNS[spec.effort] - len(fresh))
            self._anneal(instance, starts if lost else relaxed + fresh, MOVES_PER_ROUND * min(turn, 4), turn)
            idle = 0 if self.best_time < before * (1 - 1e-6) else idle + 1
            turn += 1
        last_resort = self.best is None or spec.effort == 2
        if self._gap() > OPTIMAL_GAP and last_resort and self._integer(relaxation, self.deadline):
            self.bound = math.inf
            return None
        if self.best is None:
            self._least_over(time.monotonic() + GRACE_S)
        return None if self.best is None else self._answer(self.best)

    def _integer(self, relaxation: Relaxation, deadline: float) -> bool:
        """Let the integer program improve the best assignment and the bound; whether it showed that there is none."""
        program = model.IntegerProgram(self.problem, relaxation.cuts)
        solved = program.solve(self.solver, deadline, self.best, self.best_time)
        if math.isinf(solved.bound) and self.best is None:
            return True
        if math.isfinite(solved.bound):
            self.bound = max(self.bound, min(solved.bound, self.best_time))
        if solved.counts_TRC is not None:
            self._take(solved.counts_TRC)
        return False

    def _least_over(self, deadline: float) -> None:
        """Take any assignment within the limit, or learn that there is none."""
        program = model.IntegerProgram(self.problem, [], range(self.problem.stages))
        status, counts = program.least_raise(self.solver, deadline)
        if counts is not None:
            self._take(counts)
        over = math.inf if counts is None else (self.problem.peak_memory(counts) / self.problem.costs.limit_P).max() - 1
        if status == "infeasible" or (status == "optimal" and over > model.TOLERANCE):
            self.bound = math.inf

    def _gap(self) -> float:
        return self.best_time / self.bound - 1 if self.bound > 0 else math.inf

    def _raise_bound(self, relaxation: Relaxation, root: Relaxed) -> None:
        if self.best is None:
            return
        relaxation.deadline = min(self.deadline, time.monotonic() + 0.5 * (self.deadline - self.began))
        self.bound = max(self.bound, min(disjunction(relaxation, root, self.best_time), self.best_time))

    def _anneal(self, instance: search.Instance, starts: list[Counts], moves: int, turn: int = 0) -> None:
        seed = self.problem.spec.seed * 1000 + turn * 100
        scale = max(self.bound, 1e-12)
        budget = ANNEALING_SHARE * (self.deadline - self.began)
        left = max(self.deadline - time.monotonic(), LEAST_ANNEALING_S)
        for _, counts in search.anneal(instance, starts, moves, seed, scale, self.bound, budget, left):
            self._take(counts)

    def _take(self, counts: Counts) -> None:
        """Keep an assignment that the simulator finds within the limit and faster."""
        problem = self.problem
        if not problem.restrictions.hold(counts):
            return
        if (problem.peak_memory(counts) > problem.costs.limit_P * (1 + 1e-12)).any():
            return
        seconds = problem.makespan(counts)
        if seconds < self.best_time:
            self.best, self.best_time = counts.copy(), seconds

    def _answer(self, counts: Counts) -> PipelinePlan:
        gap = self.best_time / self.bound - 1 if self.bound > 0 else 0.0
        gap = max(gap, 0.0)
        status = "optimal" if gap <= OPTIMAL_GAP else "feasible"
        bound = min(self.bound, self.best_time) * self.unit
        return plan_of(self.given, counts, status, bound, time.monotonic() - self.began, self.solver)


def no_plan(tried: list[BalanceProblem], bound: float, solver: str, began: float, deadline: float) -> PipelinePlan:
    """Why there is no plan, and the smallest limit that leaves one under any of the schedules tried.

    With a finite ``bound`` it was not shown that there is none. The contract has no status for that: the message says
    so, and the bound is there.

    Raises:
        ContradictionError: no assignment keeps to the restrictions, whatever the memory.
    """
    problem, now = tried[0], time.monotonic()
    left = min(max(deadline - now, LEAST_EXPLAIN_S), MOST_EXPLAIN_S)
    needs: list[Need] = []
    contradiction: ContradictionError | None = None
    for i, one in enumerate(tried):
        try:
            found = need(one, solver, now + left * (i + 1) / len(tried), even_start(one, 0))
        except ContradictionError as error:
            contradiction = contradiction or error
        else:
            needs += [] if found is None else [found]
    if contradiction is not None and not needs:
        raise contradiction
    parts = [shortfall(problem, even_start(problem, 0))]
    if needs:
        least = min(needs, key=lambda one: (one.stage is None, one.mib))
        limits = problem.memory_limit_mib
        parts.append(least.text(min(limits) if least.stage is None else limits[least.stage]))
    seconds = time.monotonic() - began
    found_none = "no assignment respects the limit"
    if math.isfinite(bound):
        found_none = (
            f"no assignment was found in {seconds:.3g} s, nor was it shown that there is none (it would take at least"
            f" {bound:.6g}); more time may find one"
        )
    message = "; ".join(part for part in (found_none, *parts) if part)
    empty = Bubble(0.0, 0.0, 0.0, 0.0, 0.0)
    return PipelinePlan(
        "infeasible", problem.schedule, math.inf, bound, 0.0, empty, (), (), {}, {}, (), max(problem.memory_limit_mib),
        seconds, solver, problem_document(problem), message,
    )  # fmt: skip


def time_unit(problem: BalanceProblem) -> float:
    """The power of two next to the longest layer, by which times are scaled without rounding."""
    longest = max(x for layer in problem.layers.layers for x in (layer.forward, layer.backward))
    unit: float = 2.0 ** math.frexp(longest * max(problem.slowness or (1.0,)))[1]
    return unit if longest > 0 else 1.0


def scaled(problem: BalanceProblem, factor: float) -> BalanceProblem:
    """The problem in another unit of time."""
    layers = tuple(
        replace(
            layer,
            forward=layer.forward * factor,
            backward=layer.backward * factor,
            strategies={
                name: replace(one, extra=one.extra * factor, host_time=one.host_time * factor)
                for name, one in layer.strategies.items()
            },
        )
        for layer in problem.layers.layers
    )
    return replace(problem, layers=replace(problem.layers, layers=layers), p2p=problem.p2p * factor)


def _check_options(problem: BalanceProblem) -> None:
    if len(problem.memory_limit_mib) != problem.stages:
        raise InputError(f"memory limit: one number for each of the {problem.stages} stages is needed")
    _ = problem.restrictions


def round_relaxed(problem: BalanceProblem, root: Relaxed) -> Counts:
    """Whole layers near a relaxed solution: running sums rounded, types in their order, strategies by largest share."""
    edges = np.rint(np.cumsum(root.counts_TRC.sum(axis=(0, 1)))).astype(np.int64)
    return _filled(problem, edges, root.counts_TRC)


def even_start(problem: BalanceProblem, turn: int) -> Counts:
    """Even chunks; all with the strategy that keeps least (turn 0, 2, …) or most (1, 3, …), shifted a little."""
    layers = int(problem.costs.count_T.sum())
    edges = np.rint(np.arange(1, problem.places + 1) * layers / problem.places).astype(np.int64)
    shares = np.zeros((len(problem.bodies), len(problem.strategies), problem.places))
    allowed = problem.restrictions.allowed_TRC
    keeps = problem.costs.activation_TR * (1 if turn % 2 == 0 else -1)
    for t in range(len(problem.bodies)):
        for q in range(problem.places):
            usable = np.flatnonzero(allowed[t, :, q])
            if len(usable):
                shares[t, usable[int(np.argmin(keeps[t, usable]))], q] = 1.0
    return _filled(problem, edges, shares)


def _filled(problem: BalanceProblem, edges_C: Counts, shares_TRC: Array) -> Counts:
    """Layers in order up to the running sums ``edges_C``, each place by its strategies' shares.

    The running sums give way to what the options fix; what the options leave no room for shows in the result.
    """
    kept = problem.restrictions
    counts = np.zeros(shares_TRC.shape, dtype=np.int64)
    t, left = 0, int(problem.costs.count_T[0])
    for q, total in enumerate(_totals(problem, edges_C)):
        room = int(total)
        given = np.maximum(kept.strategy_RC[:, q], 0)
        while room and t < len(problem.bodies):
            take = min(room, left)
            if kept.counted_T[t] and (kept.strategy_RC[:, q] != FREE).any():
                whole = _given_first(given, kept.strategy_RC[:, q] == FREE, take)
                given = given - whole * (kept.strategy_RC[:, q] != FREE)
            else:
                whole = _split(shares_TRC[t, :, q], kept.allowed_TRC[t, :, q], problem.costs.usable_TR[t], take)
            counts[t, :, q] += whole
            room, left = room - take, left - take
            if left == 0:
                t += 1
                left = int(problem.costs.count_T[t]) if t < len(problem.bodies) else 0
    if problem.spec.format == "mindformers" and {"select", "comm"} <= set(problem.strategies):
        _separate(problem, counts)
    return counts


def _totals(problem: BalanceProblem, edges_C: Counts) -> Counts:
    """Layers of every place near the running sums, as the options fix or bound them."""
    kept, count_T = problem.restrictions, problem.costs.count_T
    totals: Counts
    if kept.totals_C is not None:
        totals = kept.totals_C.copy()
        ends = np.flatnonzero(~kept.counted_T)
        first_body = int(np.argmax(kept.counted_T))
        totals[0] += int(count_T[ends[ends < first_body]].sum())
        totals[-1] += int(count_T[ends[ends > first_body]].sum())
        return totals
    edges = np.maximum.accumulate(np.clip(edges_C, kept.low_C, kept.high_C))
    totals = np.diff(edges, prepend=0)
    needed = np.maximum(kept.strategy_RC, 0).sum(axis=0)
    while (totals < needed).any() and (totals > needed).any():
        totals[int(np.argmin(totals - needed))] += 1
        totals[int(np.argmax(totals - needed))] -= 1
    return totals


def _given_first(given_R: Counts, free_R: npt.NDArray[np.bool_], take: int) -> Counts:
    """``take`` layers: those whose strategy is given first, the rest under the first free one."""
    whole = np.zeros(len(given_R), dtype=np.int64)
    for r in np.flatnonzero(given_R):
        whole[r] = min(int(given_R[r]), take)
        take -= int(whole[r])
    whole[int(np.argmax(free_R))] += take
    return whole


def _split(share_R: Array, allowed_R: npt.NDArray[np.bool_], usable_R: npt.NDArray[np.bool_], take: int) -> Counts:
    """``take`` layers by their shares, largest remainders first; without a share under the last strategy there is."""
    share = share_R * allowed_R
    if share.sum() <= 0:
        last = np.flatnonzero(allowed_R if allowed_R.any() else usable_R)[-1]
        share = np.zeros(len(share_R))
        share[last] = 1.0
    split = share / share.sum() * take
    whole: Counts = np.floor(split).astype(np.int64)
    for r in np.argsort(-(split - whole), kind="stable")[: take - int(whole.sum())]:
        whole[r] += 1
    return whole


def _separate(problem: BalanceProblem, counts: Counts) -> None:
    """Where select and comm would share a chunk, one of them takes the other's layers."""
    allowed = problem.restrictions.allowed_TRC
    one, other = problem.strategies.index("select"), problem.strategies.index("comm")
    for q in range(problem.places):
        if counts[:, one, q].sum() and counts[:, other, q].sum():
            there = counts[:, one, q] + counts[:, other, q] > 0
            kept, dropped = (one, other) if allowed[there, one, q].all() else (other, one)
            counts[:, kept, q] += counts[:, dropped, q]
            counts[:, dropped, q] = 0


def plan_of(
    problem: BalanceProblem, counts: Counts, status: str, bound: float, seconds: float, solver: str
) -> PipelinePlan:
    """What the simulator measures for an assignment."""
    durations = problem.durations(counts)
    makespan = problem.graph.makespan(durations, problem.p2p)
    bound = min(bound, makespan)

    def table(values_C: Counts) -> Table:
        rows = np.zeros((problem.chunks, problem.stages), dtype=np.int64)
        rows[problem.chunk_of, problem.stage_of] = values_C
        return tuple(tuple(int(x) for x in row) for row in rows)

    counted = problem.restrictions.counted_T
    own = counts[counted]
    share = int(problem.costs.count_T[counted].sum()) // problem.places
    return PipelinePlan(
        status=status,  # type: ignore[arg-type]
        schedule=problem.schedule,
        makespan=makespan,
        lower_bound=bound,
        gap=makespan / bound - 1 if bound > 0 else 0.0,
        bubble=bubble(problem.graph, durations, problem.p2p, _plain_work(problem, counts)),
        layers=table(own.sum(axis=(0, 1))),
        offset=table(own.sum(axis=(0, 1)) - share),
        recompute={name: table(own[:, r].sum(axis=0)) for r, name in enumerate(problem.strategies)},
        assignment={
            layer.name: {
                name: table(counts[t, r]) for r, name in enumerate(problem.strategies) if problem.costs.usable_TR[t, r]
            }
            for t, layer in enumerate(problem.bodies)
        },
        peak_memory_mib=tuple(float(x) for x in problem.peak_memory(counts)),
        memory_limit_mib=max(problem.memory_limit_mib),
        seconds=seconds,
        solver=solver,
        problem=problem_document(problem),
    )


def _plain_work(problem: BalanceProblem, counts: Counts) -> Array:
    """Each stage's work of the whole step without what its strategies add."""
    durations = problem.durations(counts)
    graph = problem.graph
    work = np.bincount(graph.klass % graph.stages, weights=durations[graph.klass], minlength=graph.stages)
    extra = problem.costs.backward_TR - np.array(
        [[layer.backward * (0.5 if problem.split_backward else 1.0)] for layer in problem.bodies]
    )
    added = np.einsum("tr,trc->c", np.where(problem.costs.usable_TR, extra, 0.0), counts)
    added = added * problem.costs.slowness_P[problem.stage_of] * problem.micro_batches
    np.subtract.at(work, problem.stage_of, added)
    return work.astype(np.float64)
