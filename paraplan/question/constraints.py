"""Constraints such as ``tp * cp <= 8``: parsed to a tree of allowed operations, never evaluated as Python."""

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from paraplan.foundation.arrays import IntArray
from paraplan.foundation.errors import InputError
from paraplan.foundation.syntax import parse
from paraplan.question.search_spec import ALIASES, DIMENSIONS, NAMES

_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.true_divide,
    ast.FloorDiv: np.floor_divide,
    ast.Mod: np.mod,
}
_COMPARE: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: np.equal,
    ast.NotEq: np.not_equal,
    ast.Lt: np.less,
    ast.LtE: np.less_equal,
    ast.Gt: np.greater,
    ast.GtE: np.greater_equal,
}
_LONGEST = 400
_DEEPEST = 40
_LARGEST = 1e12


@dataclass(frozen=True, slots=True)
class Expression:
    """A checked constraint."""

    text: str
    names: frozenset[str]
    """The dimensions it reads, and ``devices`` where it does."""
    tree: ast.expr

    def holds(self, columns: Mapping[str, IntArray]) -> npt.NDArray[np.bool_]:
        """Whether each row satisfies it; ``columns`` has every one of :attr:`names`.

        A comparison with a quotient by zero neither holds nor fails, so that its negation does not hold either.
        """
        with np.errstate(all="ignore"):
            return np.atleast_1d(_truth(self.tree, columns)[0])


def parse_expression(text: str, where: str = "constraints") -> Expression:
    """Check a constraint.

    Raises:
        InputError: not a comparison of sums, products, quotients and remainders of dimensions and numbers.
    """
    if not isinstance(text, str) or len(text) > _LONGEST:
        raise InputError(f"{where}: {str(text)[:60]!r} found, an expression such as 'tp * cp <= 8' is needed")
    try:
        tree = parse(text.strip(), "eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise InputError(f"{where}: {text!r} found, an expression such as 'tp * cp <= 8' is needed") from None
    names: set[str] = set()
    if _checked(tree, names, text, where, 0) != "truth":
        raise InputError(f"{where}: {text!r} compares nothing, e.g. 'tp * cp <= 8' is needed")
    return Expression(text, frozenset(names), tree)


def _checked(node: ast.expr, names: set[str], text: str, where: str, depth: int) -> str:
    """``truth`` or ``number``; collects the names."""
    problem = ""
    if depth > _DEEPEST:
        problem = "is nested too deeply"
    elif isinstance(node, ast.BoolOp):
        if all(_checked(value, names, text, where, depth + 1) == "truth" for value in node.values):
            return "truth"
        problem = "joins something that is not a comparison"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        if _checked(node.operand, names, text, where, depth + 1) == "truth":
            return "truth"
        problem = "negates something that is not a comparison"
    elif isinstance(node, ast.Compare) and all(type(operator) in _COMPARE for operator in node.ops):
        _number_words(node, text, where)
        if all(_checked(x, names, text, where, depth + 1) == "number" for x in [node.left, *node.comparators]):
            return "truth"
        problem = "compares comparisons"
    elif isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        if all(_checked(x, names, text, where, depth + 1) == "number" for x in (node.left, node.right)):
            return "number"
        problem = "calculates with a comparison"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        return _checked(node.operand, names, text, where, depth + 1)
    elif isinstance(node, ast.Constant) and _plain_number(node.value):
        return "number"
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        problem = f"calculates with the word {node.value!r}"
    elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
        problem = f"has the number {node.value!r}, at most {_LARGEST:g} is allowed"
    elif isinstance(node, ast.Name):
        name = _dimension(node)
        if name in DIMENSIONS or name == "devices":
            names.add(name)
            return "number"
        problem = f"names {node.id!r}, which is not one of {', '.join(DIMENSIONS)}, devices"
    else:
        problem = "uses something other than + - * / // % comparisons, and, or, not"
    raise InputError(f"{where}: {text!r} {problem}")


def _number_words(node: ast.Compare, text: str, where: str) -> None:
    """Put the number in the place of every word that a dimension is compared with."""
    operands = [node.left, *node.comparators]
    dimensions = {_dimension(one) for one in operands if isinstance(one, ast.Name)}
    for i, one in enumerate(operands):
        if not (isinstance(one, ast.Constant) and isinstance(one.value, str)):
            continue
        numbers = {NAMES[name].index(one.value) for name in dimensions if one.value in NAMES.get(name, ())}
        if len(dimensions) != 1 or not numbers:
            allowed = "; ".join(f"{name}: {', '.join(NAMES[name])}" for name in sorted(dimensions & set(NAMES)))
            raise InputError(
                f"{where}: {text!r} compares {', '.join(sorted(dimensions)) or 'no dimension'} with {one.value!r},"
                f" {allowed or 'a number'} is needed"
            )
        operands[i] = ast.copy_location(ast.Constant(numbers.pop()), one)
    node.left, node.comparators = operands[0], operands[1:]


def _dimension(node: ast.Name) -> str:
    return ALIASES.get(node.id.lower(), node.id.lower())


def _plain_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= _LARGEST


Masks = tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]


def _truth(node: ast.expr, columns: Mapping[str, IntArray]) -> Masks:
    """The rows for which a condition holds, and those for which it fails."""
    if isinstance(node, ast.UnaryOp):
        holds, fails = _truth(node.operand, columns)
        return fails, holds
    if isinstance(node, ast.BoolOp):
        parts = [_truth(value, columns) for value in node.values]
        (holds, fails), *rest = parts
        both = isinstance(node.op, ast.And)
        for more_hold, more_fail in rest:
            holds = holds & more_hold if both else holds | more_hold
            fails = fails | more_fail if both else fails & more_fail
        return holds, fails
    assert isinstance(node, ast.Compare), "the tree was checked"
    left = _number(node.left, columns)
    known = ~np.isnan(left)
    holds = np.ones_like(known)
    for operator, right_node in zip(node.ops, node.comparators, strict=True):
        right = _number(right_node, columns)
        holds, known = holds & _COMPARE[type(operator)](left, right), known & ~np.isnan(right)
        left = right
    return holds & known, ~holds & known


def _number(node: ast.expr, columns: Mapping[str, IntArray]) -> Any:
    """Values in floating point, which no product of dimensions overflows; a quotient by zero is NaN."""
    if isinstance(node, ast.BinOp):
        left, right = _number(node.left, columns), _number(node.right, columns)
        if isinstance(node.op, (ast.Div, ast.FloorDiv, ast.Mod)):
            right = np.where(right == 0, np.nan, right)
        return _BINARY[type(node.op)](left, right)
    if isinstance(node, ast.UnaryOp):
        value = _number(node.operand, columns)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.Constant):
        return np.float64(node.value)  # type: ignore[arg-type] # the tree was checked
    assert isinstance(node, ast.Name), "the tree was checked"
    return columns[_dimension(node)].astype(np.float64)
