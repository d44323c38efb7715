"""Every estimator with every family on a GPU: captured updates, scores, samples, gaps, files for the CPU."""

import copy

import numpy as np
import pandas
import pytest
import torch

import pynade
from pynade.estimators import ClassicalEstimator, estimator_named
from pynade.estimators.cells import PIXEL_FAMILIES, REAL_FAMILIES
from pynade.estimators.registry import ALIASES, MODELS
from pynade.particles import complete_rows
from pynade.training import step
from pynade_benchmarks.per_step import block_sampling_gap
from tests.contracts.cases import DENSITIES, all_states

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

DEVICE = "cuda"
SIDE = 4
D = SIDE * SIDE
SMALL = {  # parameters of whichever estimator has them
    "activation": "tanh",
    "ais_chains": 20,
    "ais_steps": 20,
    "batch_size": 50,
    "blocks": 1,
    "blueprint": "4@2x2(full)->1@2x2(valid)",
    "depth": 1,
    "epochs": 3,
    "gibbs_steps": 20,
    "groups": 4,
    "heads": 2,
    "hidden": 8,
    "image_shape": (SIDE, SIDE),
    "levels": 5,
    "multipliers": (1, 2),
    "n_components": 2,
    "warm_up": 2,
    "width": 16,
}
MORE = {"dropout": 0.2, "weight_decay": 0.01, "clip": 1.0, "ema": 0.9, "optimizer": "adamw"}
NAMES = [*MODELS, *(alias for alias, (_, preset) in ALIASES.items() if preset)]  # the others mean the same


def entry(name):
    return MODELS[ALIASES.get(name, (name, {}))[0]]


def cases():
    """Names of cases -> (name of the estimator, its parameters, what the cells hold)."""
    found = {}
    for name in NAMES:
        known = estimator_named(name, {}).flat_parameters()
        small = {k: v for k, v in SMALL.items() if k in known} | (
            {"hybrid": (8,)} if name == "hybrid" else {}
        )
        kind = "real" if entry(name).data.startswith("real") else "binary"
        families = (REAL_FAMILIES if kind == "real" else PIXEL_FAMILIES) if "family" in known else ("",)
        for family in families:
            cells = "grey" if kind == "binary" and family not in ("", "bernoulli") else kind
            chosen = small | ({"family": family} if family else {})
            found[f"{name}-{family}".rstrip("-")] = name, chosen, cells
        if "dropout" in known:
            found[f"{name}, all options"] = name, small | MORE, kind
        if "minibatch" in known:
            found[f"{name}, in minibatches"] = name, small | {"minibatch": True}, kind
        if "persistent" in known:
            found[f"{name}, persistent"] = name, small | {"persistent": True}, kind
    return found


CASES = cases()


def rows(cells, n=300):
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(n, 1))
    x = shared * np.where(np.arange(D) % 2, 1, -1) + rng.normal(size=(n, D))
    return {"real": 3 + 2 * x, "binary": (x > 0.3).astype(int), "grey": np.clip(np.round(x + 2), 0, 4)}[cells]


def test_every_estimator_is_tried():
    assert {type(estimator_named(name, {})).__name__ for name, *_ in CASES.values()} == {
        known.kind for known in MODELS.values()
    }


@pytest.mark.parametrize("case", CASES)
def test_fit_score_sample_impute_save_and_load_on_the_cpu(case, monkeypatch, tmp_path):
    name, parameters, cells = CASES[case]
    graphs = []
    capture = step.capture_graph
    monkeypatch.setattr(step, "capture_graph", lambda *args: graphs.append(capture(*args)) or graphs[-1])
    X = rows(cells)
    if name == "tabularnade":  # tables come as frames; arrays would need polars
        X = pandas.DataFrame(X, columns=[f"v{i}" for i in range(D)])
    model = estimator_named(name, parameters | {"device": DEVICE, "random_state": 0}).fit(X)
    assert bool(graphs) == (not isinstance(model, ClassicalEstimator) and DEVICE == "cuda")

    scores = model.score_samples(X[:20])
    assert np.isfinite(scores).all()
    draws = model.sample(30, random_state=0)
    assert draws.shape == (30, D)
    assert np.isfinite(model.score_samples(draws)).all()
    if entry(name).data == "images":
        assert model.sample(4, per_step=8).shape == (4, D)
    gaps = np.array(X[:4], dtype=float)
    gaps[:, ::3] = np.nan
    given = gaps if isinstance(X, np.ndarray) else pandas.DataFrame(gaps, columns=X.columns)
    filled = np.asarray(model.impute(given, random_state=0), dtype=float)
    assert np.isfinite(filled).all()
    np.testing.assert_array_equal(filled[~np.isnan(gaps)], gaps[~np.isnan(gaps)])

    model.save(tmp_path / "model.safetensors")
    here = pynade.load(tmp_path / "model.safetensors").set_params(device="cpu")
    np.testing.assert_allclose(here.score_samples(X[:20]), scores, rtol=1e-3, atol=0.1)
    np.testing.assert_allclose(here.score(X), model.score(X), rtol=1e-3, atol=0.02)


@pytest.mark.parametrize("name", ["rnade", "deeprnade", "nade", "made-e", "imagenade"])
def test_captured_updates_learn_what_eager_updates_learn(name, monkeypatch):
    _, parameters, cells = next(CASES[k] for k in (f"{name}-mog", f"{name}-bernoulli", name) if k in CASES)
    X, more = rows(cells), {"epochs": 10, "learning_rate": 0.01, "device": DEVICE, "random_state": 0}
    model = estimator_named(name, parameters | more)
    captured = copy.deepcopy(model).fit(X)
    start = step.Step.__init__
    eager = lambda self, *args, **options: start(self, *args, **options | {"capture": False})  # noqa: E731
    monkeypatch.setattr(step.Step, "__init__", eager)
    assert captured.score(X) == pytest.approx(model.fit(X).score(X), abs=0.1)


def test_gaps_are_filled_with_what_the_other_cells_tell():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 1)) * [1, -1, 1] + 0.2 * rng.normal(size=(400, 3)) + 1e5
    model = pynade.RNADE(hidden=16, family="gaussian", epochs=40, learning_rate=0.01, random_state=0).fit(X)
    gaps = np.array([[1.0, np.nan, np.nan], [np.nan, -1.0, np.nan]]) + 1e5
    filled = model.impute(gaps, random_state=0)
    assert np.abs(filled - 1e5 - [[1, -1, 1], [1, -1, 1]]).max() < 0.4
    assert model.impute(gaps, 5, random_state=0).shape == (5, 2, 3)


@pytest.mark.parametrize("name", ["nade-sigmoid", "made-3", "ensemble-made", "causal-transformer"])
def test_particles_agree_with_enumeration(name):
    model, states = DENSITIES[name](6), all_states(6)
    observed = torch.tensor([False, True, False, True, False, True])
    fits = ((states == states[21]) | ~observed).all(-1)
    joint = model.log_prob(states[fits]).detach()
    x = torch.where(observed, states[21], torch.nan)[None].cuda()
    generator = torch.Generator("cuda").manual_seed(0)
    particles = complete_rows(model.float().cuda(), x, ~x.isnan(), 50_000, generator)
    assert particles.log_prob.item() == pytest.approx(joint.logsumexp(0).item(), abs=0.05)
    weights, found = particles.log_weights.exp()[0].cpu(), particles.x[0].cpu()
    shares = ((found[:, None] == states[fits]).all(-1) * weights[:, None]).sum(0)
    torch.testing.assert_close(shares, joint.softmax(0), atol=0.02, rtol=0)


def test_standardised_rows_of_the_host_are_scored():
    X = rows("real", 60)
    small = {"width": 16, "heads": 2, "depth": 1, "epochs": 2, "random_state": 0}
    model = pynade.TransformerNADE(**small, device=DEVICE).fit(X)
    gaps = block_sampling_gap(model.model_, torch.as_tensor(X[:10]), (1, 2))
    assert gaps[1].mean == 0
    assert np.isfinite(gaps[2].mean)
    there = model.score_samples(X[:10], orderings=3)
    here = model.set_params(device="cpu").score_samples(X[:10], orderings=3)
    np.testing.assert_allclose(there, here, rtol=0, atol=0.01)
