import pytest
import torch

from pynade.families import Bernoulli
from pynade.models import Autoregressive, Ensemble, Independent, Mixture
from pynade.nets import MADENet, NADENet
from pynade.ordering import Ordering


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Autoregressive(NADENet(3), Bernoulli(), Ordering.natural(4)), "ordering has 4 variables"),
        (lambda: Autoregressive(NADENet(3, n_params=2), Bernoulli(), Ordering.natural(3)), "n_params=1"),
        (lambda: Autoregressive(NADENet(3), Bernoulli(), Ordering.random(3, k=2)), "Ensemble"),
        (lambda: Ensemble(NADENet(3), Bernoulli(), Ordering.natural(3)), "Autoregressive"),
        (lambda: Mixture([]), "at least one component"),
        (lambda: Mixture([Independent(Bernoulli(), 2), Independent(Bernoulli(), 3)]), r"\[2, 3\]"),
        (lambda: Mixture([Independent(Bernoulli(), 2)], weights=[-1.0]), "positive weight"),
        (lambda: NADENet(3, hidden=0), "hidden must be at least 1"),
        (lambda: NADENet(0), "n_variables must be at least 1"),
        (lambda: NADENet(3, activation="softmax"), "known: sigmoid"),
        (lambda: MADENet(3, hidden=(4, 0)), "at least one unit"),
    ],
)
def test_parts_that_do_not_fit_are_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_conditional_means_are_the_probabilities_of_each_value():
    model = Autoregressive(NADENet(4, hidden=3), Bernoulli(), Ordering([2, 0, 3, 1]))
    x = torch.tensor([[0, 1, 1, 0]])
    p = model.conditional_means(x)
    log_p = torch.where(x.bool(), p, 1 - p).log().sum()
    assert log_p.item() == pytest.approx(model.log_prob(x).item(), rel=1e-5)


def test_mixture_weights_are_normalised_and_kept_in_double():
    model = Mixture([Independent(Bernoulli(), 2), Independent(Bernoulli(), 2)], weights=[1, 3])
    torch.testing.assert_close(model.log_weights.exp(), torch.tensor([0.25, 0.75], dtype=torch.float64))
    assert model.dtype == torch.float32


def test_nade_sampling_work_is_linear_in_d():
    """One predict and one observe per variable, whatever D: O(HD) per sample, not O(HD²)."""
    calls = []

    class Counting(NADENet):
        def predict(self, state, i):
            calls.append(state["a"].shape)
            return super().predict(state, i)

    model = Autoregressive(Counting(50, hidden=6), Bernoulli(), Ordering.natural(50))
    model.sample(9, torch.Generator().manual_seed(0))
    assert calls == [(1, 9, 6)] * 50
