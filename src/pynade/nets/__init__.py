"""Nets: from features of the variables seen so far to raw parameters eta of the next."""

from pynade.nets.any_order import AnyOrderNet
from pynade.nets.base import Net, grouped, stepwise
from pynade.nets.fvsbn import FVSBNNet
from pynade.nets.made import MADENet
from pynade.nets.masked_mlp import MaskedMLP
from pynade.nets.nade import NADENet

__all__ = ["AnyOrderNet", "FVSBNNet", "MADENet", "MaskedMLP", "NADENet", "Net", "grouped", "stepwise"]
