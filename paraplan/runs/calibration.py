"""Fitting the constants of a device type to measured runs: few of them, and only those that the runs determine."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from paraplan.foundation.arrays import Array
from paraplan.question.clusters.spec import Efficiency

CONSTANTS = (
    "matmul",
    "attention",
    "attention_flash2",
    "memory_bandwidth",
    "intra_link",
    "inter_link",
    "launch_seconds",
)
"""Shares of the peaks that are reached, and the launch time: what the time of a step depends on."""

BOUNDS = {"launch_seconds": (1e-6, 1e-4)}
SHARE = (0.05, 1.0)

DETERMINED = 0.03
"""A constant is determined where halving it moves the runs' times, beyond what the others can imitate, by this much."""

OUTLIER = 0.15
"""Logarithmic error from which a run counts linearly."""

ROWS_PER_CONSTANT = 2
ITERATIONS = 20
NUDGE = 0.02

Predict = Callable[[Efficiency], Array]
"""Step times of all runs, in seconds, for one set of constants."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """What a fit found."""

    efficiency: Efficiency
    fitted: tuple[str, ...]
    undetermined: tuple[str, ...]
    """Constants that these runs do not determine; they keep their values."""
    before: float
    """Mean absolute relative error with the catalogue's constants."""
    after: float


def calibrate(start: Efficiency, predict: Predict, measured: Array, weights: Array | None = None) -> Calibration:
    """Fit by damped Gauss-Newton steps on the logarithm of predicted over measured times.

    Errors beyond :data:`OUTLIER` count linearly (Huber's weights), so that a run that is off for a reason of its own
    does not drag the constants along.

    Args:
        start: The catalogue's constants.
        predict: Times of the runs for given constants.
        measured: Measured times, the same order.
        weights: How much each run counts; all the same unless given.
    """
    fitted, undetermined = determined(start, predict, len(measured))
    shares = np.ones(len(measured)) if weights is None else weights
    current, residual = start, np.log(predict(start) / measured)
    damping = 1e-3
    for _ in range(ITERATIONS if fitted else 0):
        jacobian = _jacobian(current, predict, fitted)
        pull = shares * np.minimum(1.0, OUTLIER / np.maximum(np.abs(residual), 1e-12))
        normal = jacobian.T @ (pull[:, None] * jacobian)
        gradient = jacobian.T @ (pull * residual)
        step = -np.linalg.solve(normal + damping * np.diag(np.diag(normal) + 1e-9), gradient)
        tried = _moved(current, fitted, step.astype(np.float64))
        new = np.log(predict(tried) / measured)
        if _loss(new, shares) < _loss(residual, shares) * (1 - 1e-6):
            current, residual, damping = tried, new, damping / 4
        else:
            damping *= 8
            if damping > 1e4:
                break
    before = float(np.abs(predict(start) / measured - 1).mean())
    after = float(np.abs(predict(current) / measured - 1).mean())
    return Calibration(current, fitted, undetermined, before, after)


def _loss(residual: Array, shares: Array) -> float:
    size = np.abs(residual)
    return float(shares @ np.where(size < OUTLIER, size * size, OUTLIER * (2 * size - OUTLIER)))


def determined(start: Efficiency, predict: Predict, rows: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Which constants the runs determine, and which not.

    Taken greedily: of the remaining ones that whose effect, beyond what those already taken can imitate, is largest.
    """
    jacobian = _jacobian(start, predict, CONSTANTS) * np.log(2.0) / np.sqrt(rows)
    taken: list[int] = []
    rest = jacobian.copy()
    while len(taken) < min(len(CONSTANTS), rows // ROWS_PER_CONSTANT):
        sizes = np.linalg.norm(rest, axis=0)
        sizes[taken] = 0.0
        best = int(np.argmax(sizes))
        if sizes[best] < DETERMINED:
            break
        taken.append(best)
        basis, _ = np.linalg.qr(jacobian[:, taken])
        rest = jacobian - basis @ (basis.T @ jacobian)
    names = tuple(CONSTANTS[i] for i in sorted(taken))
    return names, tuple(name for name in CONSTANTS if name not in names)


def _jacobian(efficiency: Efficiency, predict: Predict, names: Sequence[str]) -> Array:
    """Change of the logarithm of the times with the logarithm of each constant, shape (rows, constants)."""
    columns = []
    for i in range(len(names)):
        step = np.zeros(len(names))
        step[i] = NUDGE
        up, down = _moved(efficiency, names, step), _moved(efficiency, names, -step)
        distance = np.log(getattr(up, names[i]) / getattr(down, names[i]))
        columns.append(np.log(predict(up) / predict(down)) / distance)
    return np.stack(columns, axis=1)


def _moved(efficiency: Efficiency, names: Sequence[str], step: Array) -> Efficiency:
    values = {}
    for name, change in zip(names, step, strict=True):
        low, high = BOUNDS.get(name, SHARE)
        values[name] = float(np.clip(getattr(efficiency, name) * np.exp(np.clip(change, -0.5, 0.5)), low, high))
    return replace(efficiency, **values)
