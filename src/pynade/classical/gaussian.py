"""One Gaussian with a full covariance: the density, and its fit in closed form or by EM."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from pynade.arguments import check_positive
from pynade.classical.em import Array, EMOptions, Parameters, Random, run_em
from pynade.classical.gaussian_em import GaussianEM, checked_floor, real_rows
from pynade.classical.gaussian_marginals import GaussianMarginals, draw_normal, filled, positive_factor
from pynade.classical.moments import Rows, Scale, cholesky, try_cholesky
from pynade.training.loop import Stopping

EPOCHS, TOL = 151, 1e-9  # of EM, where values are missing
LAST = 11  # M-steps from which it extrapolates
FAR = 1.0  # standard deviations: no extrapolation goes further


class MultivariateGaussian(GaussianMarginals):
    """x ~ N(mean, L Lᵀ), with L the lower Cholesky factor of the covariance.

    A new one is the standard normal; `gaussian` fits one.

    Args:
        n_variables: D.

    Example:
        >>> import torch
        >>> covariance = torch.tensor([[2.0, 1.0], [1.0, 2.0]])
        >>> model = MultivariateGaussian.from_moments(torch.zeros(2), covariance)
        >>> round(model.log_prob(torch.zeros(1, 2)).item(), 4)  # -log(2π √3)
        -2.3872
        >>> observed = torch.tensor([[True, False]])
        >>> model.best_guess(torch.tensor([[4.0, float("nan")]]), observed).tolist()
        [[4.0, 2.0]]
    """

    n_components = 1
    mean: Tensor
    factor: Tensor

    def __init__(self, n_variables: int) -> None:
        super().__init__()
        check_positive(n_variables=n_variables)
        self.n_variables = n_variables
        self.register_buffer("mean", torch.zeros(n_variables))
        self.register_buffer("factor", torch.eye(n_variables))

    @classmethod
    def from_moments(cls, mean: Tensor, covariance: Tensor) -> MultivariateGaussian:
        """The Gaussian with this mean (D,) and positive definite covariance (D, D), in their dtype."""
        factor = positive_factor(covariance, "the covariance")
        return filled(cls(len(mean)), mean.dtype, mean=mean, factor=factor)

    @property
    def covariance(self) -> Tensor:
        """Covariance (D, D)."""
        return self.factor @ self.factor.mT

    def components(self) -> tuple[Tensor, Tensor, Tensor]:
        """As a mixture of one component, float64."""
        factor = self.factor.double()
        return factor.new_zeros(1), self.mean.double()[None], (factor @ factor.mT)[None]

    def _log_prob(self, x: Tensor) -> Tensor:
        z = torch.linalg.solve_triangular(self.factor, (x - self.mean).mT, upper=False)
        constant = self.factor.diagonal().double().log().sum() + 0.5 * len(z) * math.log(2 * math.pi)
        return -0.5 * z.square().sum(0, dtype=torch.float64) - constant

    @torch.no_grad()
    def sample(self, n: int, generator: Random = None) -> Tensor:
        """mean + L z with z standard normal."""
        return self.mean + draw_normal((n, self.n_variables), generator, self.mean) @ self.factor.mT


@torch.no_grad()
def gaussian(
    x: Array, shrinkage: str | float | None = None, covariance_floor: float = 0.0, standardise: bool = True
) -> MultivariateGaussian:
    """Fit one Gaussian to rows x (N, D): in closed form, or where values are missing (NaN) by exact EM.

    Args:
        x: rows.
        shrinkage: None is maximum likelihood; a number a in [0, 1] gives (1 - a) Σ + a (tr Σ / D) I;
            "ledoit-wolf" lets scikit-learn choose a (complete rows only).
        covariance_floor: added to the diagonal of the covariance.
        standardise: shrinkage and floor are in units in which each column has standard deviation 1;
            otherwise in the units of the data.

    Raises:
        ValueError: the covariance is singular in spite of `covariance_floor`.

    Example:
        >>> import torch
        >>> model = gaussian(torch.tensor([[0.0, 0.0], [2.0, 1.0], [4.0, -1.0]]))
        >>> model.mean.tolist()
        [2.0, 0.0]
    """
    floor = checked_floor("covariance_floor", covariance_floor)
    x = real_rows(x)
    scale = Scale.of(x, standardise)
    amount = _shrinkage(shrinkage, (x - scale.shift) / scale.scale * scale.unit.sqrt())

    def regularised(covariance: Tensor) -> Tensor:
        level = (covariance.diagonal(dim1=-2, dim2=-1) * scale.unit).mean(-1, keepdim=True)
        return (1 - amount) * covariance + torch.diag_embed((amount * level + covariance_floor) / scale.unit)

    if torch.isnan(x).any():
        learner = _OneGaussianEM(Rows(x, scale), regularised, floor)
        run_em(learner, EMOptions(epochs=EPOCHS))
        mean, covariance = (learner.best[name][0, 0] for name in ("means", "covariances"))
    else:
        standardised = (x - scale.shift) / scale.scale
        mean = standardised.mean(0)
        centred = standardised - mean
        covariance = regularised(centred.T @ centred / len(x))
    cholesky(covariance, *floor)
    return MultivariateGaussian.from_moments(scale.means(mean), scale.covariances(covariance))


class _OneGaussianEM(GaussianEM):
    """EM of one Gaussian with Anderson acceleration, since plain EM is slow where many values are missing.

    An M-step is followed by an extrapolation from the last few, unless that lowers the likelihood.
    """

    def __init__(self, rows: Rows, regularised: Callable[[Tensor], Tensor], floor: tuple[str, float]) -> None:
        pooled = regularised(rows.pooled())
        start = self._params(torch.zeros_like(pooled[0]), pooled)
        super().__init__([(rows, None)], start, [Stopping(tol=TOL)], floor)
        self.regularised = regularised
        self.points: list[tuple[Tensor, Tensor]] = []  # before the last M-steps, and what these have added
        self.fallback: Parameters | None = None
        self.level = -math.inf

    @staticmethod
    def _params(mean: Tensor, covariance: Tensor) -> Parameters:
        zero = mean.new_zeros(1, 1)
        return {"log_weights": zero, "means": mean.view(1, 1, -1), "covariances": covariance[None, None]}

    def expect(self) -> list[float | None]:
        (train,) = super().expect()
        assert train is not None
        if self.fallback is not None and not train >= self.level:
            self.params, self.points = self.fallback, self.points[-1:]
            (train,) = super().expect()
            assert train is not None
        self.level, self.fallback = train, None
        return [train]

    def maximise(self) -> None:
        before, moments = self._point(), self.moments
        covariance = self.regularised(moments.covariances()[0, 0])
        self.params = self._params(moments.means(), covariance)
        after = self._point()
        self.points = [*self.points, (before, after - before)][-LAST:]
        if len(self.points) == 1:
            return
        x, step = (torch.stack([pair[k].flatten() for pair in self.points], 1).cpu() for k in (0, 1))
        weights = torch.linalg.lstsq(step.diff(dim=1), step[:, -1:], driver="gelsd").solution
        back = (x.diff(dim=1) + step.diff(dim=1)) @ weights
        ahead = after - back.view_as(after).to(after.device)
        root = ahead[1:].tril(-1) + torch.diag(ahead[1:].diagonal().exp())
        if bool(back.abs().max() < FAR) and not try_cholesky(root @ root.mT)[1]:
            self.fallback, self.params = self.params, self._params(ahead[0], root @ root.mT)

    def _point(self) -> Tensor:
        """Mean and Cholesky factor, its diagonal as logarithms: (1 + D, D), any value of which is valid."""
        root = cholesky(self.params["covariances"][0, 0], *self.floor)
        logs = root.tril(-1) + torch.diag(root.diagonal().log())
        return torch.cat([self.params["means"][0], logs])


def _shrinkage(shrinkage: str | float | None, x: Tensor) -> float:
    if shrinkage is None:
        return 0.0
    if shrinkage == "ledoit-wolf":
        if torch.isnan(x).any():
            raise ValueError(
                "Ledoit-Wolf shrinkage needs complete rows; give a number where values are missing"
            )
        from sklearn.covariance import ledoit_wolf_shrinkage

        return float(ledoit_wolf_shrinkage(x.cpu().numpy()))
    if isinstance(shrinkage, str) or not 0 <= shrinkage <= 1:
        raise ValueError(f"shrinkage is None, 'ledoit-wolf' or a number from 0 to 1, not {shrinkage!r}")
    return float(shrinkage)
