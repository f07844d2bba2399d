"""Factoring: a cost that depends on few dimensions is computed once per combination of them, then gathered."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Combinations:
    """``U`` distinct rows of some columns."""

    rows_U: npt.NDArray[np.intp]
    """A row of the table for each combination."""
    inverse_N: npt.NDArray[np.intp]
    """The combination of each row."""

    def __len__(self) -> int:
        return len(self.rows_U)


def combine(*columns: IntArray) -> Combinations:
    """The distinct combinations of non-negative integer ``columns`` of shape (N,), in linear time.

    Every column is numbered by a table over its values and the numbers form one mixed-radix code; where the codes are
    too many for a table even once numbered themselves, ``np.unique`` sorts them instead.
    """
    count = len(columns[0])
    code = np.zeros(count, dtype=np.int64)
    radix, table = 1, max(8 * count, 2**16)
    for column in columns:
        if count and column[0] == column[-1] and bool((column == column[0]).all()):
            continue
        numbers, size = _numbered(column)
        if radix * size > table:
            # Of the codes few occur: numbering them keeps the table small.
            code, radix = _numbered(code) if radix <= table else _numbered_by_sorting(code)
        code += numbers * radix
        radix *= size
    inverse = _numbered(code)[0] if radix <= table else _numbered_by_sorting(code)[0]
    rows = np.empty(int(inverse.max()) + 1 if count else 0, dtype=np.intp)
    rows[inverse] = np.arange(count)
    return Combinations(rows, inverse)


def _numbered(column: IntArray) -> tuple[npt.NDArray[np.int64], int]:
    """Each value's number among the distinct values, and how many there are."""
    if not len(column):
        return column, 1
    top = int(column.max()) + 1
    if top > max(16 * len(column), 2**16):
        return _numbered_by_sorting(column)
    seen = np.zeros(top, dtype=bool)
    seen[column] = True
    present = np.flatnonzero(seen)
    numbers = np.empty(top, dtype=np.int64)
    numbers[present] = np.arange(len(present))
    return numbers[column], len(present)


def _numbered_by_sorting(column: IntArray) -> tuple[npt.NDArray[np.int64], int]:
    values, inverse = np.unique(column, return_inverse=True)
    return inverse.astype(np.int64).reshape(-1), len(values)
