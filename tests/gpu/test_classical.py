"""Classical densities on a GPU: the same results as on the CPU, and their benchmark."""

import copy

import pytest
import torch

from pynade.classical import RBM, chow_liu, contrastive_divergence, em_bernoulli, em_trees
from pynade.classical.contrastive_divergence import _Contrastive
from pynade_benchmarks.baselines import OURS_ON_CPU, QUICK, bench_baselines
from tests.contracts.cases import MARGINALISABLE, all_states

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def generator(seed=0, device="cuda"):
    return torch.Generator(device).manual_seed(seed)


@pytest.mark.parametrize("build", MARGINALISABLE.values(), ids=MARGINALISABLE.keys())
def test_answers_are_those_of_the_cpu(build):
    model, x = build(6), all_states(6)
    there, far = copy.deepcopy(model).to("cuda"), x.to("cuda")
    observed = torch.rand(x.shape, generator=generator(device="cpu")) < 0.5
    nothing = torch.zeros_like(observed)
    torch.testing.assert_close(there.log_prob(far).cpu(), model.log_prob(x), rtol=0, atol=1e-10)
    torch.testing.assert_close(
        there.marginal_log_prob(far, observed.to("cuda")).cpu(),
        model.marginal_log_prob(x, observed),
        rtol=0,
        atol=1e-10,
    )
    eta = there.distribution(2, far, nothing.to("cuda"))[1].cpu()
    torch.testing.assert_close(eta, model.distribution(2, x, nothing)[1], rtol=0, atol=1e-9)
    assert torch.equal(there.best_guess(far, observed.to("cuda")).cpu(), model.best_guess(x, observed))
    draws = there.sample_given(far, observed.to("cuda"), 3, generator())
    assert torch.equal(draws[:, observed.to("cuda")].cpu(), x[observed].expand(3, -1))
    means = (model.log_prob(x).exp()[:, None] * x).sum(0)
    torch.testing.assert_close(there.sample(100_000, generator()).mean(0).cpu(), means, rtol=0, atol=0.01)


def test_the_partition_function_of_23_hidden_units_is_that_of_the_cpu():
    rbm = RBM(500, 23, scale=0.5, generator=generator(device="cpu"))
    there = copy.deepcopy(rbm).to("cuda")
    assert there.log_partition() == pytest.approx(rbm.log_partition(), rel=1e-12)


def test_learning_goes_as_on_the_cpu():
    x = (torch.rand(300, 20, generator=generator(device="cpu")) < 0.3).to(torch.uint8)
    assert torch.equal(chow_liu(x.to("cuda")).parent.cpu(), chow_liu(x).parent)
    for em in (em_bernoulli, em_trees):
        curves = [
            em(rows, 3, epochs=5, tol=0, generator=generator(device="cpu"), dtype=torch.float64)[1]
            for rows in (x, x.to("cuda"))
        ]
        near, far = ([line["objective"] for line in history.epochs] for history in curves)
        assert near == pytest.approx(far, abs=1e-9)
    rbms = [RBM(20, 5, generator=generator(s, "cpu")).to("cuda") for s in range(2)]
    trained = contrastive_divergence(
        rbms, x, x, learning_rates=[0.1, 0.01], k=3, persistent=True, epochs=10, generator=generator()
    )
    for rbm, (history, _, _) in zip(rbms, trained, strict=True):
        score = rbm.normalised().log_prob(x.to("cuda")).mean().item()
        assert score == pytest.approx(history.best_valid, abs=1e-3)
    estimate = rbms[0].log_partition_ais(200, 200, generator())
    assert abs(estimate.log_z - rbms[0].log_partition()) < 6 * estimate.stderr + 1e-6


@pytest.mark.parametrize("persistent", [False, True])
def test_captured_updates_are_the_eager_ones(persistent, monkeypatch):
    x = (torch.rand(250, 20, generator=generator(device="cpu")) < 0.3).to(torch.uint8).to("cuda")
    options = {
        "learning_rates": [0.1, 0.02],
        "k": 3,
        "epochs": 4,
        "batch_size": 100,
        "persistent": persistent,
    }
    ends = []
    for captured in (True, False):
        rbms = [RBM(20, 5, generator=generator(m, "cpu")).to("cuda") for m in range(2)]
        with monkeypatch.context() as patch:
            if not captured:
                patch.setattr(_Contrastive, "step", lambda self, x, rate, replay: self.update(x, rate))
            contrastive_divergence(rbms, x, generator=generator(), **options)
        ends.append([rbm.W.clone() for rbm in rbms])
    torch.testing.assert_close(*ends, rtol=1e-4, atol=1e-4)
    assert not torch.equal(*ends[0])


def test_chains_in_one_kernel_have_the_distribution_of_chains_in_many():
    machines = [RBM(40, 23, scale=0.7, generator=generator(s, "cpu")).cuda() for s in range(2)]
    for each in machines:
        each.requires_grad_(False)
    rows = torch.zeros(9, 40, dtype=torch.uint8)
    options = (3, False, (2, 1), 1, 9, None, "constant", 1)
    members = _Contrastive(machines, rows, None, [0.1, 0.1], generator(1), *options)
    start = (torch.rand(1, 40, generator=generator(3), device="cuda") < 0.5).float().expand(2, 50_000, 40)
    moved, above = members._sample_chains(start, None, 3)
    v, p = start, members._hidden_probabilities(start)
    for _ in range(3):
        v = members._draw(torch.sigmoid(torch.baddbmm(members.b, members._draw(p), members.W)))
        p = members._hidden_probabilities(v)
    torch.testing.assert_close(above, members._hidden_probabilities(moved), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(moved.mean(1), v.mean(1), rtol=0, atol=0.013)  # four standard errors
    pairs = [(t[0].T @ t[0] / t.shape[1]) for t in (moved, v)]
    torch.testing.assert_close(*pairs, rtol=0, atol=0.015)


def test_the_baselines_are_timed_on_both_devices():
    result = bench_baselines(torch.device("cuda"), QUICK, repeats=3)
    assert "cuda" in result["device"]
    assert len(result["problems"]) == 3
    for entry in result["problems"]:
        assert OURS_ON_CPU in entry["ratios"]
        assert entry["difference"] < 1e-9
