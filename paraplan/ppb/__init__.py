"""Pipeline parallelism balancing."""

from paraplan.ppb.balance_spec import BalanceSpec
from paraplan.ppb.balancer import balance
from paraplan.ppb.describe import describe
from paraplan.ppb.layer_set import LayerSet, load_layers
from paraplan.ppb.problem import BalanceProblem

__all__ = ["BalanceProblem", "BalanceSpec", "LayerSet", "balance", "describe", "load_layers"]
