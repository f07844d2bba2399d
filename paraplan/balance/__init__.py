"""Pipeline parallelism balancing."""

from paraplan.balance.balancer import balance
from paraplan.balance.describe import describe
from paraplan.balance.layer_set import LayerSet, load_layers
from paraplan.balance.problem import BalanceProblem
from paraplan.question.balance_spec import BalanceSpec

__all__ = ["BalanceProblem", "BalanceSpec", "LayerSet", "balance", "describe", "load_layers"]
