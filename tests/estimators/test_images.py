"""ConvNADE and ImageNADE, small and on a CPU."""

import itertools

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from sklearn.base import clone
from sklearn.datasets import load_digits

import pynade
from pynade.estimators import ImageEstimator
from pynade.likelihood import orderless_estimate
from pynade.ordering import Ordering

TINY_UNET = {"width": 8, "multipliers": (1, 2), "blocks": 1, "groups": 4, "heads": 2}
TINY_UNET |= {"training": {"warm_up": 5, "ema": None}, "learning_rate": 0.003}
BLUEPRINT = "8@3x3(valid)->8@3x3(full)->1@3x3(same)"
IMAGES = {
    "conv": pynade.ConvNADE(blueprint=BLUEPRINT, epochs=2, learning_rate=0.003, random_state=0),
    "hybrid": pynade.ConvNADE(
        blueprint=BLUEPRINT, hybrid=(16,), epochs=2, learning_rate=0.003, random_state=0
    ),
    "unet": pynade.ImageNADE(**TINY_UNET, epochs=2, random_state=0),
    "grey": pynade.ConvNADE(
        blueprint=BLUEPRINT, family="categorical", levels=17, epochs=2, learning_rate=0.003, random_state=0
    ),
    "logistic": pynade.ImageNADE(
        **TINY_UNET, family="discretised-logistic", levels=17, n_components=3, epochs=2, random_state=0
    ),
}
every_image = pytest.mark.parametrize("name", IMAGES)
DIGITS = load_digits().data


def data(name):
    return DIGITS[:500] if name in ("grey", "logistic") else (DIGITS[:500] > 7).astype(np.uint8)


@pytest.fixture(scope="module")
def fitted():
    return {name: clone(model).set_params(batch_size=20).fit(data(name)) for name, model in IMAGES.items()}


@every_image
def test_two_epochs_improve_the_model_and_estimates_agree_with_exact_scores(name, fitted):
    model, X = fitted[name], data(name)
    untrained = model.build(model._rows(X), seed=0).double()  # knows the marginals
    before = orderless_estimate(untrained, model._rows(X[:20]), draws=32)
    estimate = model.estimate(X[:20], draws=32)  # on the same prefixes
    assert estimate.mean > before.mean + 0.3
    assert not estimate.exact
    scores = model.score_orderings(X[:20], 2)
    assert scores.log_probs.shape == (20, 2)
    assert abs(scores.mean().mean - estimate.mean) < 5 * estimate.mc_stderr
    np.testing.assert_allclose(model.score_samples(X[:3]), scores.log_probs[:3, 0], rtol=0, atol=1e-9)
    controlled = model.control_variate_ensemble(X[:20], 2, draws=8, every=2)
    assert abs(controlled.ensemble.mean - scores.ensemble().mean) < 5 * controlled.ensemble.mc_stderr


@every_image
def test_samples_and_completions(name, fitted):
    model, X = fitted[name], data(name)
    levels = model._cells().white + 1
    for per_step in (1, 16):
        draws = model.sample(5, random_state=0, per_step=per_step)
        assert draws.shape == (5, 64)
        assert draws.dtype == np.int64
        assert ((draws >= 0) & (draws < levels)).all()
        assert (draws == model.sample(5, random_state=0, per_step=per_step)).all()
    given = model.sample(3, random_state=0, given={10: 1, 20: 0})
    assert (given[:, [10, 20]] == [1, 0]).all()
    gaps = X[:2].astype(float)
    gaps[:, 18:22] = np.nan
    filled = model.impute(gaps, 2, random_state=0)
    assert filled.shape == (2, 2, 64)
    kept = ~np.isnan(gaps)
    assert (filled[:, kept] == X[:2][kept]).all()
    assert (model.impute(gaps)[kept] == X[:2][kept]).all()
    assert (model.score_samples(gaps) > model.score_samples(X[:2])).all()  # a marginal of fewer pixels
    conditional = model.conditional(20, given={12: 1})
    assert sum(conditional.pmf(v) for v in range(levels)) == pytest.approx(1, abs=1e-9)
    with pytest.raises(ValueError, match="one pixel at a time"):
        model.sample(2, given={10: 1}, per_step=4)
    with pytest.raises(ValueError, match="along the model's own orderings"):
        model.sample(2, given={10: 1}, fresh_orderings=True)


@pytest.mark.parametrize("n_orderings", [1, 3])
def test_what_is_scored_is_what_is_sampled(n_orderings):
    """Frequencies of all 16 images of 2 × 2 pixels against exp(score_samples); fresh orderings are another
    density, the mean over all 24 orderings."""
    rng = np.random.default_rng(0)
    first = rng.integers(0, 2, (300, 1))
    X = np.hstack([first, first ^ (rng.random((300, 3)) < 0.2)])
    small = {"blueprint": "4@2x2(valid)->4@2x2(full)->1@1x1(same)", "epochs": 15, "batch_size": 20}
    model = pynade.ConvNADE(**small, learning_rate=0.03, random_state=1).fit(X)
    model._n_orderings = lambda: n_orderings  # images have one by default
    states = np.array(list(itertools.product(range(2), repeat=4)))
    every = Ordering(list(itertools.permutations(range(4))))
    scored, mixed = (np.exp(model.score_samples(states, orderings=o)) for o in (None, every))
    n = 20_000

    def p_value(expected, **options):
        drawn = model.sample(n, random_state=0, **options) @ (8, 4, 2, 1)
        return chisquare(np.bincount(drawn, minlength=16), n * expected).pvalue

    assert p_value(scored) > 0.001
    assert p_value(mixed, fresh_orderings=True) > 0.001
    if n_orderings == 1:  # the two can be told apart
        assert p_value(mixed) < 1e-6
        assert p_value(scored, fresh_orderings=True) < 1e-6


@every_image
def test_save_and_load(name, fitted, tmp_path):
    model, X = fitted[name], data(name)
    model.save(tmp_path / "m.safetensors")
    again = pynade.load(tmp_path / "m.safetensors")
    assert type(again) is type(model)
    assert (again.sample(3, random_state=1, per_step=8) == model.sample(3, random_state=1, per_step=8)).all()
    assert again.estimate(X[:20]) == model.estimate(X[:20])
    assert isinstance(again, ImageEstimator)


def test_probabilities_of_all_small_images_sum_to_one():
    X = np.random.default_rng(0).integers(0, 3, (50, 4))
    model = pynade.ImageNADE(
        **TINY_UNET, family="categorical", levels=3, image_shape=(2, 2), epochs=1, random_state=0
    ).fit(X)
    states = np.array(list(itertools.product(range(3), repeat=4)))
    for k in (1, 3):
        assert np.exp(model.score_samples(states, orderings=k)).sum() == pytest.approx(1, abs=1e-9)


def test_stacks_are_rows():
    stack = np.random.default_rng(0).integers(0, 2, (40, 3, 4))
    small = {"blueprint": "2@3x3(same)->1@3x3(same)", "epochs": 1, "device": "cpu", "random_state": 0}
    model = pynade.ConvNADE(image_shape=(3, 4), **small).fit(stack)
    same = pynade.ConvNADE(image_shape=(3, 4), **small).fit(stack.reshape(40, 12))
    np.testing.assert_array_equal(
        model.score_samples(stack[:5]), same.score_samples(stack[:5].reshape(5, 12))
    )
    with pytest.raises(ValueError, match=r"images \(3, 4\) need image_shape=\(3, 4\)"):
        pynade.ConvNADE(image_shape=(4, 3), **small).fit(stack)


def test_missing_pixels_in_training():
    X = DIGITS[:200].copy()
    X[np.random.default_rng(0).random(X.shape) < 0.2] = np.nan
    model = clone(IMAGES["grey"]).set_params(epochs=1).fit(X)
    assert np.isfinite(model.estimate(X[:20]).mean)


@pytest.mark.parametrize(
    ("model", "X", "words"),
    [
        (pynade.ConvNADE(), DIGITS[:, :60] > 7, "60 pixels are no square images"),
        (pynade.ConvNADE(image_shape=(7, 9)), DIGITS > 7, r"with 64 pixels, not \(7, 9\)"),
        (pynade.ConvNADE(blueprint="4@9x9(valid)->1@9x9(full)"), DIGITS > 7, "for images of 8x8: layer 1"),
        (pynade.ConvNADE(), DIGITS, "zeros and ones"),
        (pynade.ConvNADE(family="gaussian"), DIGITS, "unknown family 'gaussian'"),
        (pynade.ConvNADE(family="categorical", levels=10), DIGITS, "whole numbers from 0 to 9"),
        (pynade.ConvNADE(family="categorical", binarize=3.0), DIGITS, "is for grey levels"),
        (pynade.ConvNADE(binarize="random"), DIGITS, "binarize is a number, the threshold, not 'random'"),
        (pynade.ImageNADE(width=12), DIGITS > 7, "larger multiple of groups"),
        (pynade.ImageNADE(training={"precision": "tf16"}), DIGITS > 7, "unknown precision"),
    ],
)
def test_mistakes_are_found_before_training(model, X, words):
    with pytest.raises(ValueError, match=words):
        model.check_request(X)


def test_colour_images_and_default_blueprints():
    X = np.random.default_rng(0).integers(0, 256, (30, 3 * 4 * 5))
    grey = {"family": "discretised-logistic", "n_components": 2, "epochs": 1, "random_state": 0}
    model = pynade.ConvNADE(image_shape=(3, 4, 5), **grey).fit(X)
    assert model.model_.net.channels == 3
    assert model.sample(2, random_state=0, per_step=20).max() <= 255
    large = pynade.ConvNADE(image_shape=(22, 22)).build(np.zeros((2, 484), dtype=np.uint8), 0)
    assert "8x8(valid)" in large.net.config()["blueprint"]


def test_the_density_has_one_ordering_for_all_rows(fitted):
    """`density` is the model along its own first ordering, whose scores `score_samples` gives."""
    model, X = fitted["conv"], data("conv")[:4]
    density = model.density().double()
    assert density.ordering == Ordering(model.orderings(1).order[0])
    np.testing.assert_allclose(
        density.log_prob(torch.as_tensor(X)).detach(), model.score_samples(X), atol=1e-9
    )
