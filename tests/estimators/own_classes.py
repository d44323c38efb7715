"""Classes that a user might write: a family of three levels, a net, and an estimator of them."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import pynade
from pynade.estimators import OrderlessEstimator
from pynade.estimators.parameters import DOCS, documented
from pynade.families import Family
from pynade.nets import AnyOrderNet

DOCS["TrinaryNADE.width"] = "numbers in the shared layer."


@pynade.register
class Trinary(Family):
    """Values 0, 1 and 2."""

    n_params = 3
    n_features = 3

    def check(self, x):
        if not torch.isin(x, torch.tensor([0.0, 1.0, 2.0], dtype=x.dtype, device=x.device)).all():
            raise ValueError("expected the values 0, 1 and 2")

    def encode(self, x, i=None):
        return functional.one_hot(x.long(), 3).to(x.dtype)

    def log_prob(self, x, eta, i=None):
        return eta.log_softmax(-1).gather(-1, x.long().unsqueeze(-1)).squeeze(-1)

    def sample(self, eta, i=None, generator=None):
        chances = eta.softmax(-1).flatten(0, -2)
        return torch.multinomial(chances, 1, generator=generator).view(eta.shape[:-1]).to(eta.dtype)

    def mean(self, eta, i=None):
        return eta.softmax(-1) @ torch.arange(3.0, dtype=eta.dtype, device=eta.device)

    def best_guess(self, eta, i=None):
        return eta.argmax(-1).to(eta.dtype)

    def cdf(self, x, eta, i=None):
        below = torch.arange(3, device=x.device) <= x.unsqueeze(-1)
        return (eta.softmax(-1) * below).sum(-1)

    def quantile(self, q, eta, i=None):
        return (eta.softmax(-1).cumsum(-1) < q.unsqueeze(-1)).sum(-1).clamp(max=2).to(eta.dtype)

    def eta_from_marginal(self, x):
        shares = torch.stack([(x == k).double().mean(0) for k in range(3)], -1)
        return (shares + 0.01).log().float()


@pynade.register
class SharedNet(AnyOrderNet):
    """One tanh layer over the features of the observed variables."""

    def __init__(self, n_variables, n_params=3, n_features=3, width=8, generator=None):
        super().__init__(n_variables, n_params, n_features)
        self.width = width
        inputs = n_variables * (n_features + 1)
        self.first = nn.Parameter(torch.empty(inputs, width).normal_(0, inputs**-0.5, generator=generator))
        self.output = nn.Parameter(
            torch.empty(width, n_variables * n_params).normal_(0, width**-0.5, generator=generator)
        )
        self.bias = nn.Parameter(torch.zeros(n_variables, n_params))

    def conditionals(self, features, observed, noise=None):
        seen = features * observed.unsqueeze(-1)
        inputs = torch.cat((seen.flatten(1), observed.to(features.dtype)), -1)
        eta = torch.tanh(inputs @ self.first) @ self.output
        return eta.view(-1, *self.bias.shape) + self.bias

    def config(self):
        return {
            "n_variables": self.n_variables,
            "n_params": self.n_params,
            "n_features": self.n_features,
            "width": self.width,
        }


class Levels:
    """Cells with the values 0, 1 and 2."""

    takes, kind, white = "the values 0, 1 and 2", "levels", 2

    def convert(self, X, missing):
        return X.astype(np.float64)

    def check_columns(self, X, names):
        pass

    def native(self, draws):
        return draws.double().cpu().numpy()

    def family(self, train):
        return Trinary()


@pynade.register
@documented
@dataclass(eq=False, repr=False)
class TrinaryNADE(OrderlessEstimator):
    """An order-agnostic model of three levels."""

    width: int = 8

    def _cells(self):
        return Levels()

    def _net(self, n_variables, family, generator):
        return SharedNet(n_variables, 3, 3, self.width, generator)
