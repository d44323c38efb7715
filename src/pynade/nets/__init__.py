"""Nets: from the features of the variables observed so far to the parameters (eta) of the next."""

from pynade.nets.base import AnyOrderNet, Net, Walk, grouped, stepwise
from pynade.nets.fixed_order import FVSBNNet, MADENet, NADENet
from pynade.nets.gaussian_table import GaussianTableNet, TableBlend
from pynade.nets.masked_conv import PAPER_BLUEPRINT, Hybrid, MaskedConv
from pynade.nets.masked_mlp import MaskedMLP
from pynade.nets.table import TableNet
from pynade.nets.transformer import CausalTransformer, Transformer
from pynade.nets.unet import UNet

__all__ = ["PAPER_BLUEPRINT", "AnyOrderNet", "CausalTransformer", "FVSBNNet", "GaussianTableNet", "Hybrid"]
__all__ += ["MADENet", "MaskedConv", "MaskedMLP", "NADENet", "Net", "TableBlend", "TableNet", "Transformer"]
__all__ += ["UNet", "Walk", "grouped", "stepwise"]
