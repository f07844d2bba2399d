"""Simulated annealing over assignments, on the exact makespan and the exact memory, compiled.

A move takes one layer to another place, another strategy, or both, one to three such at once (balancing the stage it
leaves against the one it joins). Assignments over the memory limit are allowed on the way at a price, never kept.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paraplan.balance.problem import BalanceProblem
from paraplan.balance.restrictions import FREE, Counts
from paraplan.foundation.compilation import compiled
from paraplan.foundation.threads import WORKERS, run_all
from paraplan.schedules.orders import B, F, W

HOT, COLD = 0.004, 1e-5
"""First and last temperature, in makespans."""

REMEMBERED_PATHS = 24
"""Longest paths of refused assignments: one of them usually refuses the next move too, without playing it."""

MOST_BLOCKS = 1_500_000_000
"""Blocks that the moves of one run may play: some five seconds."""

BLOCKS_A_SECOND = 400_000_000
"""Blocks that a run plays: how many moves a time allows, the same on every machine."""

LEAST_MOVES = 200

OVER_PRICE = 4.0
"""Price of an assignment twice the memory limit, in makespans."""


@dataclass(frozen=True, slots=True)
class Instance:
    """A problem flattened for the compiled search."""

    arrays: tuple[npt.NDArray[np.generic], ...]
    p2p: float
    allowed_TRC: npt.NDArray[np.bool_]
    fixed_T: npt.NDArray[np.bool_]
    """Types whose layers stay on their places."""
    frozen_RC: npt.NDArray[np.bool_]
    """Strategies whose number on a place is given."""
    low_C: Counts
    high_C: Counts
    """Bounds of the running sums of layers over the places."""
    exclusive: tuple[int, int]
    """Two strategies that must not share a place, (-1, -1): none."""


def instance_of(problem: BalanceProblem) -> Instance:
    """Flatten ``problem``."""
    graph, costs = problem.graph, problem.costs
    places = np.arange(problem.places)
    classes = np.stack(
        [(operation * problem.chunks + problem.chunk_of) * problem.stages + problem.stage_of for operation in (F, B, W)]
    )
    pointers, counts, running = [0], [], []
    for moment in problem.moments:
        counts.append(moment.counts_nV)
        running.append(moment.running_n)
        pointers.append(pointers[-1] + len(moment.running_n))
    arrays = (
        graph.klass, graph.before, graph.source, graph.crosses, graph.meets,
        classes[:, places].astype(np.int64), problem.stage_of.astype(np.int64), problem.chunk_of.astype(np.int64),
        costs.forward_T, costs.backward_TR, costs.weight_T, costs.parameter_T,
        costs.activation_TR / problem.splits, costs.transient_TR,
        costs.fixed_durations / problem.splits, costs.fixed_memory_P, costs.fixed_activation_VP / problem.splits,
        costs.fixed_transient_VP, costs.limit_P, costs.slowness_P / problem.splits,
        np.array(pointers, dtype=np.int64), np.concatenate(counts), np.concatenate(running),
    )  # fmt: skip
    names = problem.strategies
    pair = (-1, -1)
    if problem.spec.format == "mindformers" and "select" in names and "comm" in names:
        pair = (names.index("select"), names.index("comm"))
    kept = problem.restrictions
    fixed = kept.counted_T & (kept.totals_C is not None)
    return Instance(
        arrays, problem.p2p, kept.allowed_TRC, fixed, kept.strategy_RC != FREE, kept.low_C, kept.high_C, pair
    )


def anneal(
    instance: Instance,
    starts: list[Counts],
    moves: int,
    seed: int,
    makespan: float,
    stop_at: float = 0.0,
    budget: float = float("inf"),
    seconds: float | None = None,
) -> list[tuple[float, Counts]]:
    """Run one annealing from each start, two at a time; returns the best within the limit of each (infinite: none).

    Args:
        instance: The flattened problem.
        starts: Assignments (T, R, C).
        moves: Moves of each run; fewer where the pipeline has so many blocks that they would take minutes.
        seed: The run's number is added to it.
        makespan: A typical one, for the temperature.
        stop_at: A lower bound; reaching it ends a run.
        budget: Seconds that all runs may take: they get fewer moves, cool down faster.
        seconds: When they are over, every run ends where it is.
    """

    blocks = len(instance.arrays[0])
    most = min(MOST_BLOCKS, budget * BLOCKS_A_SECOND * WORKERS / len(starts))
    moves = min(moves, max(LEAST_MOVES, int(most / blocks)))
    stopped = np.zeros(1, dtype=np.bool_)

    def run(i: int) -> tuple[float, Counts]:
        best, counts = _anneal(
            instance.arrays, instance.p2p, starts[i].copy(), instance.allowed_TRC, instance.fixed_T,
            instance.frozen_RC, instance.low_C, instance.high_C, *instance.exclusive, moves, seed + i, makespan,
            stop_at * (1 + 1e-12), stopped,
        )  # fmt: skip
        return float(best), counts

    return run_all(run, range(len(starts)), lambda: stopped.fill(True), seconds)


@compiled
def _place_durations(arrays, counts, durations, q):  # type: ignore[no-untyped-def]
    """Durations of the three classes of place ``q``."""
    classes, stage_of = arrays[5], arrays[6]
    forward, backward, weight, fixed, speed = arrays[8], arrays[9], arrays[10], arrays[14], arrays[19]
    f = 0.0
    b = 0.0
    w = 0.0
    for t in range(counts.shape[0]):
        held = 0
        for r in range(counts.shape[1]):
            n = counts[t, r, q]
            if n:
                held += n
                b += n * backward[t, r]
        f += held * forward[t]
        w += held * weight[t]
    rate = speed[stage_of[q]]
    durations[classes[0, q]] = f * rate + fixed[classes[0, q]]
    durations[classes[1, q]] = b * rate + fixed[classes[1, q]]
    durations[classes[2, q]] = w * rate + fixed[classes[2, q]]


@compiled
def _overflow(arrays, counts, s):  # type: ignore[no-untyped-def]
    """Peak memory of stage ``s`` over its limit, as a share of the limit; negative: that much is free."""
    stage_of, chunk_of, parameter, activation, transient = arrays[6], arrays[7], arrays[11], arrays[12], arrays[13]
    memory, fixed_activation, fixed_transient, limit = arrays[15], arrays[16], arrays[17], arrays[18]
    pointers, moments, running = arrays[20], arrays[21], arrays[22]
    chunks = fixed_activation.shape[0]
    static = memory[s]
    held = np.empty(chunks)
    worst = np.empty(chunks)
    for v in range(chunks):
        held[v] = fixed_activation[v, s]
        worst[v] = fixed_transient[v, s]
    for q in range(counts.shape[2]):
        if stage_of[q] != s:
            continue
        v = chunk_of[q]
        for t in range(counts.shape[0]):
            for r in range(counts.shape[1]):
                n = counts[t, r, q]
                if n:
                    static += n * parameter[t]
                    held[v] += n * activation[t, r]
                    if transient[t, r] > worst[v]:
                        worst[v] = transient[t, r]
    peak = 0.0
    for i in range(pointers[s], pointers[s + 1]):
        total = worst[running[i]] if running[i] >= 0 else 0.0
        for v in range(chunks):
            total += moments[i, v] * held[v]
        if total > peak:
            peak = total
    if limit[s] <= 0:
        return 1e30
    return (static + peak) / limit[s] - 1


@compiled
def _makespan(arrays, durations, p2p, ends):  # type: ignore[no-untyped-def]
    klass, before, source, crosses, meets = arrays[0], arrays[1], arrays[2], arrays[3], arrays[4]
    latest = 0.0
    for i in range(len(klass)):
        start = 0.0
        b = before[i]
        if b >= 0:
            start = ends[b]
        c = source[i]
        if c >= 0:
            ready = ends[c] + crosses[i] * p2p
            if ready > start:
                start = ready
        for k in range(2):
            m = meets[i, k]
            if m >= 0:
                start = max(start, max(ends[m], ends[b]) + p2p)
        ends[i] = start + durations[klass[i]]
        if ends[i] > latest:
            latest = ends[i]
    return latest


@compiled
def _remember(arrays, ends, p2p, path):  # type: ignore[no-untyped-def]
    """Count the classes on the longest path into ``path``; returns the seconds of its sends."""
    klass, before, source, crosses, meets = arrays[0], arrays[1], arrays[2], arrays[3], arrays[4]
    path[:] = 0.0
    sends = 0.0
    i = int(np.argmax(ends))
    while i >= 0:
        path[klass[i]] += 1.0
        b = before[i]
        following = b
        latest = ends[b] if b >= 0 else 0.0
        used = 0.0
        c = source[i]
        if c >= 0 and ends[c] + crosses[i] * p2p >= latest:
            following, latest, used = c, ends[c] + crosses[i] * p2p, crosses[i]
        for k in range(2):
            m = meets[i, k]
            if m >= 0:
                met = max(ends[m], ends[b]) + p2p
                if met > latest:
                    latest, used = met, 1.0
                    following = m if ends[m] >= ends[b] else b
        sends += used
        i = following
    return sends * p2p


@compiled
def _in_order(counts, t):  # type: ignore[no-untyped-def]
    """Whether type ``t`` lies between its neighbours in the order of the model."""
    types, strategies, places = counts.shape
    first = places
    last = -1
    for q in range(places):
        for r in range(strategies):
            if counts[t, r, q]:
                first = min(first, q)
                last = max(last, q)
    for other in range(types):
        if other == t:
            continue
        for q in range(places):
            for r in range(strategies):
                if counts[other, r, q] and ((other < t and q > first) or (other > t and q < last)):
                    return False
    return True


@compiled
def _within_bounds(counts, low, high):  # type: ignore[no-untyped-def]
    """Whether the running sums of layers over the places keep to their bounds."""
    total = 0
    for q in range(counts.shape[2]):
        for t in range(counts.shape[0]):
            for r in range(counts.shape[1]):
                total += counts[t, r, q]
        if total < low[q] or total > high[q]:
            return False
    return True


@compiled
def _mixed(counts, q, one, other):  # type: ignore[no-untyped-def]
    if one < 0:
        return False
    a = 0
    b = 0
    for t in range(counts.shape[0]):
        a += counts[t, one, q]
        b += counts[t, other, q]
    return a > 0 and b > 0


@compiled
def _anneal(  # type: ignore[no-untyped-def]
    arrays,
    p2p,
    counts,
    allowed,
    fixed,
    frozen,
    low,
    high,
    exclusive_a,
    exclusive_b,
    moves,
    seed,
    scale,
    stop_at,
    stopped,
):
    np.random.seed(seed)
    types, strategies, places = counts.shape
    stage_of, limit = arrays[6], arrays[18]
    stages = len(limit)
    durations = arrays[14].copy()
    ends = np.empty(len(arrays[0]))
    for q in range(places):
        _place_durations(arrays, counts, durations, q)
    pinned = low[: places - 1].any() or (high < high[places - 1]).any()
    over = np.empty(stages)
    for s in range(stages):
        over[s] = _overflow(arrays, counts, s)
    current_time = _makespan(arrays, durations, p2p, ends)
    excess = 0.0
    for s in range(stages):
        excess += max(over[s], 0.0)
    current = current_time + OVER_PRICE * scale * excess
    best = np.inf
    best_counts = counts.copy()
    if excess <= 1e-12:
        best = current_time
    hot, cold = HOT * scale, COLD * scale
    undo_t = np.empty(6, np.int64)
    undo_r = np.empty(6, np.int64)
    undo_q = np.empty(6, np.int64)
    undo_r2 = np.empty(6, np.int64)
    undo_q2 = np.empty(6, np.int64)
    touched = np.zeros(places, np.bool_)
    paths = np.zeros((REMEMBERED_PATHS, len(durations)))
    path_sends = np.zeros(REMEMBERED_PATHS)
    oldest = 0
    for move in range(moves):
        if stopped[0]:
            break
        temperature = hot * (cold / hot) ** (move / moves)
        steps = 1
        chance = np.random.random()
        if chance < 0.35:
            steps = 2
        elif chance < 0.45:
            steps = 3
        done = 0
        legal = True
        previous = -1
        for _ in range(steps):
            # A layer that is there: try a few random cells.
            found = False
            t = 0
            r = 0
            q = 0
            for _ in range(20):
                t = np.random.randint(types)
                r = np.random.randint(strategies)
                q = previous if previous >= 0 and np.random.random() < 0.7 else np.random.randint(places)
                if counts[t, r, q] > 0:
                    found = True
                    break
            if not found:
                legal = False
                break
            q2 = q
            if not fixed[t] and np.random.random() < 0.7:
                if np.random.random() < 0.5:
                    q2 = q + np.random.randint(-2, 3)
                    q2 = min(max(q2, 0), places - 1)
                else:
                    q2 = np.random.randint(places)
            r2 = r
            if q2 == q or np.random.random() < 0.4:
                r2 = np.random.randint(strategies)
            if (q2 == q and r2 == r) or not allowed[t, r2, q2] or frozen[r, q] or frozen[r2, q2]:
                legal = False
                break
            counts[t, r, q] -= 1
            counts[t, r2, q2] += 1
            undo_t[done] = t
            undo_r[done] = r
            undo_q[done] = q
            undo_r2[done] = r2
            undo_q2[done] = q2
            done += 1
            previous = q2
            if (q2 != q and types > 1 and not _in_order(counts, t)) or _mixed(counts, q2, exclusive_a, exclusive_b):
                legal = False
                break
        accepted = False
        if legal and pinned:
            legal = _within_bounds(counts, low, high)
        if legal:
            touched[:] = False
            for k in range(done):
                touched[undo_q[k]] = True
                touched[undo_q2[k]] = True
            new_excess = 0.0
            for s in range(stages):
                hit = False
                for q in range(places):
                    if touched[q] and stage_of[q] == s:
                        hit = True
                value = _overflow(arrays, counts, s) if hit else over[s]
                new_excess += max(value, 0.0)
            price = OVER_PRICE * scale * new_excess
            # What costs more by memory alone need not be timed.
            threshold = current - temperature * np.log(max(np.random.random(), 1e-300))
            if price <= threshold:
                for q in range(places):
                    if touched[q]:
                        _place_durations(arrays, counts, durations, q)
                refused = False
                for k in range(REMEMBERED_PATHS):
                    length = path_sends[k]
                    for j in range(len(durations)):
                        length += paths[k, j] * durations[j]
                    if length + price > threshold:
                        refused = True
                        break
                new_time = 0.0 if refused else _makespan(arrays, durations, p2p, ends)
                if not refused and new_time + price > threshold:
                    path_sends[oldest] = _remember(arrays, ends, p2p, paths[oldest])
                    oldest = (oldest + 1) % REMEMBERED_PATHS
                elif not refused:
                    accepted = True
                    current = new_time + price
                    for s in range(stages):
                        hit = False
                        for q in range(places):
                            if touched[q] and stage_of[q] == s:
                                hit = True
                        if hit:
                            over[s] = _overflow(arrays, counts, s)
                    if new_excess <= 1e-12 and new_time < best:
                        best = new_time
                        best_counts[:] = counts
                        if best <= stop_at:
                            return best, best_counts
        if not accepted:
            for k in range(done - 1, -1, -1):
                counts[undo_t[k], undo_r[k], undo_q[k]] += 1
                counts[undo_t[k], undo_r2[k], undo_q2[k]] -= 1
            for k in range(done):
                _place_durations(arrays, counts, durations, undo_q[k])
                _place_durations(arrays, counts, durations, undo_q2[k])
    return best, best_counts
