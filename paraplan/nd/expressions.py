"""Constraints such as ``tp * cp <= 8``: parsed to a tree of allowed operations, never evaluated as Python."""

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from paraplan.errors import InputError
from paraplan.layouts import IntArray
from paraplan.nd.search_spec import ALIASES, DIMENSIONS, NAMES
from paraplan.syntax import parse


def _divisor(value: Any) -> Any:
    """Zero as NaN, that compares false with everything (NumPy's integer remainder by zero is zero)."""
    return np.where(np.equal(value, 0), np.nan, value)


_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: lambda a, b: np.true_divide(a, _divisor(b)),
    ast.FloorDiv: lambda a, b: np.floor_divide(a, _divisor(b)),
    ast.Mod: lambda a, b: np.mod(a, _divisor(b)),
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


@dataclass(frozen=True, slots=True)
class Expression:
    """A checked constraint."""

    text: str
    names: frozenset[str]
    """The dimensions it reads, and ``devices`` where it does."""
    tree: ast.expr

    def holds(self, columns: Mapping[str, IntArray]) -> npt.NDArray[np.bool_]:
        """Whether each row satisfies it; ``columns`` has every one of :attr:`names`. Dividing by zero does not."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(_evaluate(self.tree, columns), dtype=bool)


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
        if any(node.value in words for words in NAMES.values()):
            return "number"
        problem = f"has the unknown word {node.value!r}"
    elif isinstance(node, ast.Name):
        name = ALIASES.get(node.id.lower(), node.id.lower())
        if name in DIMENSIONS or name == "devices":
            names.add(name)
            return "number"
        problem = f"names {node.id!r}, which is not one of {', '.join(DIMENSIONS)}, devices"
    else:
        problem = "uses something other than + - * / // % comparisons, and, or, not"
    raise InputError(f"{where}: {text!r} {problem}")


def _plain_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e15


def _evaluate(node: ast.expr, columns: Mapping[str, IntArray]) -> Any:
    if isinstance(node, ast.BoolOp):
        join = np.logical_and if isinstance(node.op, ast.And) else np.logical_or
        result = _evaluate(node.values[0], columns)
        for value in node.values[1:]:
            result = join(result, _evaluate(value, columns))
        return result
    if isinstance(node, ast.UnaryOp):
        value = _evaluate(node.operand, columns)
        return (
            np.logical_not(value)
            if isinstance(node.op, ast.Not)
            else -value
            if isinstance(node.op, ast.USub)
            else value
        )
    if isinstance(node, ast.Compare):
        left, result = _evaluate(node.left, columns), True
        for operator, right_node in zip(node.ops, node.comparators, strict=True):
            right = _evaluate(right_node, columns)
            result = np.logical_and(result, _COMPARE[type(operator)](left, right))
            left = right
        return result
    if isinstance(node, ast.BinOp):
        return _BINARY[type(node.op)](_evaluate(node.left, columns), _evaluate(node.right, columns))
    if isinstance(node, ast.Constant):
        if isinstance(node.value, str):
            return next(words.index(node.value) for words in NAMES.values() if node.value in words)
        return node.value
    assert isinstance(node, ast.Name), "the tree was checked"
    return columns[ALIASES.get(node.id.lower(), node.id.lower())]
