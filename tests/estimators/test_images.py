"""ConvNADE, ImageNADE and TransformerNADE: small, on a CPU, through the doors that users take."""

import itertools

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.utils.estimator_checks import parametrize_with_checks

import pynade
from pynade.estimators import ImageDensity
from pynade.likelihood import orderless_estimate
from pynade.nets.base import stepwise
from pynade.ordering import Ordering
from pynade_paper.data.patches import Patches

TINY_UNET = {"width": 8, "multipliers": (1, 2), "blocks": 1, "groups": 4, "heads": 2, "warm_up": 5}
TINY_UNET |= {"ema": None, "learning_rate": 0.003}
TINY = {"width": 8, "depth": 1, "heads": 2, "n_components": 2}
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
def test_two_epochs_teach_something_and_scores_are_what_they_say(name, fitted):
    model, X = fitted[name], data(name)
    untrained = model.build(model._rows(X, fitting=False), seed=0).double()  # knows the marginals
    before = orderless_estimate(untrained, model._rows(X[:20], fitting=False), draws=32)
    estimate = model.estimate(X[:20], draws=32)  # on the same prefixes
    assert estimate.mean > before.mean + 0.3
    assert not estimate.exact
    scores = model.score_orderings(X[:20], 2)
    assert scores.log_probs.shape == (20, 2)
    assert abs(scores.mean().mean - estimate.mean) < 5 * estimate.mc_stderr
    np.testing.assert_allclose(model.score_samples(X[:3]), scores.log_probs[:3, 0], rtol=0, atol=1e-9)
    corrected = model.control_variate_ensemble(X[:20], 2, draws=8, every=2)
    assert abs(corrected.ensemble.mean - scores.ensemble().mean) < 5 * corrected.ensemble.mc_stderr


@every_image
def test_samples_and_completions(name, fitted):
    model, X = fitted[name], data(name)
    levels = model.white + 1
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
    law = model.conditional(20, given={12: 1})
    assert sum(law.pmf(v) for v in range(levels)) == pytest.approx(1, abs=1e-9)
    with pytest.raises(ValueError, match="one pixel at a time"):
        model.sample(2, given={10: 1}, per_step=4)


@every_image
def test_save_and_load(name, fitted, tmp_path):
    model, X = fitted[name], data(name)
    model.save(tmp_path / "m.safetensors")
    again = pynade.load(tmp_path / "m.safetensors")
    assert type(again) is type(model)
    assert (again.sample(3, random_state=1, per_step=8) == model.sample(3, random_state=1, per_step=8)).all()
    assert again.estimate(X[:20]) == model.estimate(X[:20])
    assert isinstance(again, ImageDensity)


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
    how = {"blueprint": "2@3x3(same)->1@3x3(same)", "epochs": 1, "device": "cpu", "random_state": 0}
    model = pynade.ConvNADE(image_shape=(3, 4), **how).fit(stack)
    same = pynade.ConvNADE(image_shape=(3, 4), **how).fit(stack.reshape(40, 12))
    np.testing.assert_array_equal(
        model.score_samples(stack[:5]), same.score_samples(stack[:5].reshape(5, 12))
    )
    with pytest.raises(ValueError, match=r"images \(3, 4\) need image_shape=\(3, 4\)"):
        pynade.ConvNADE(image_shape=(4, 3), **how).fit(stack)


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
        (pynade.ImageNADE(precision="tf16"), DIGITS > 7, "unknown precision"),
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


SMALL = [
    pynade.TransformerNADE(**TINY, epochs=1, random_state=0),
    pynade.TransformerNADE(**TINY, fixed_order=True, epochs=1, random_state=0),
    pynade.TransformerNADE(**TINY, causal=True, n_orderings=2, epochs=1, random_state=0),
    pynade.BinaryTransformerNADE(width=8, depth=1, heads=2, binarize=0.0, epochs=1, random_state=0),
]


@parametrize_with_checks(SMALL)
def test_scikit_learn_conventions(estimator, check):
    check(estimator)


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 1))
    return np.hstack([x, -x, 3 * x + 5]) + 0.2 * rng.normal(size=(300, 3))


@pytest.mark.parametrize("family", ["mog", "mologistic"])
def test_transformers_learn_a_table_and_only_the_any_order_one_answers_everything(table, family, tmp_path):
    options = {**TINY, "family": family, "epochs": 25, "learning_rate": 0.01, "random_state": 0}
    deep = pynade.TransformerNADE(**options, n_orderings=2).fit(table)
    fixed = pynade.TransformerNADE(**options, fixed_order=True, dropout=0.1).fit(table)
    baseline = -sum(0.5 * np.log(2 * np.pi * np.e * table[:, d].var()) for d in range(3))
    for model in (deep, fixed):
        assert model.score(table) > baseline + 1
        assert model.sample(4, random_state=0).shape == (4, 3)
        model.save(tmp_path / "m.safetensors")
        assert pynade.load(tmp_path / "m.safetensors").score(table[:9]) == model.score(table[:9])
    assert deep.score_orderings(table[:5], 4).log_probs.shape == (5, 4)
    gaps = np.array([[1.0, np.nan, 8.0]])
    assert abs(deep.impute(gaps)[0, 1] + 1) < 0.8
    assert not deep.estimate(table[:20]).exact
    for call in (lambda: fixed.score_orderings(table, 2), lambda: fixed.estimate(table)):
        with pytest.raises(ValueError, match="one ordering only"):
            call()
    with pytest.raises(ValueError, match=r"not causal \(nor fixed_order\) takes missing values"):
        fixed.score_samples(gaps)


def test_a_causal_transformer_learns_all_orderings(table, tmp_path):
    options = {**TINY, "epochs": 60, "learning_rate": 0.01, "random_state": 0}
    model = pynade.TransformerNADE(**options, causal=True, n_orderings=2, dropout=0.05).fit(table)
    baseline = -sum(0.5 * np.log(2 * np.pi * np.e * table[:, d].var()) for d in range(3))
    every = Ordering(list(itertools.permutations(range(3))))
    scores = model.score_orderings(table, every)
    assert (scores.ordering_means() > baseline + 1).all()  # those it was not to be scored under as well
    alone = model.density().under(every).double().member_log_probs(torch.as_tensor(table))
    np.testing.assert_allclose(scores.log_probs, alone.detach(), atol=1e-9)
    walked = torch.stack([stepwise_log_prob(model.density().double(), table, o) for o in every], -1)
    np.testing.assert_allclose(scores.log_probs, walked, atol=1e-9)
    np.testing.assert_allclose(model.score_samples(table, every), scores.ensemble_rows(), atol=1e-9)
    model.save(tmp_path / "m.safetensors")
    assert pynade.load(tmp_path / "m.safetensors").score(table[:9]) == model.score(table[:9])
    assert abs(model.impute(np.array([[1.0, np.nan, 8.0]]), random_state=0)[0, 1] + 1) < 0.8
    assert model.sample(4, random_state=0).shape == (4, 3)
    with pytest.raises(ValueError, match="scored along orderings"):
        model.estimate(table)
    with pytest.raises(ValueError, match="not both"):
        pynade.TransformerNADE(**TINY, causal=True, fixed_order=True).fit(table)


def test_a_causal_transformer_has_one_list_of_orderings_whose_number_may_change(table, tmp_path):
    model = pynade.TransformerNADE(**TINY, causal=True, n_orderings=3, epochs=1, random_state=0).fit(table)
    assert model.orderings() == model.model_.orderings == model.density().orderings
    np.testing.assert_allclose(model.score_samples(table), model.score_samples(table, 3), atol=1e-9)
    model.set_params(n_orderings=2)
    assert model.density().orderings == model.orderings(5)[:2]
    np.testing.assert_allclose(model.score_samples(table), model.score_samples(table, 2), atol=1e-9)
    model.save(tmp_path / "m.safetensors")
    assert pynade.load(tmp_path / "m.safetensors").score(table) == model.score(table)
    model.set_params(n_orderings=1)
    first = int(model.orderings().order[0, 0])
    assert (model.sample(3, 0, given={first: 1.0})[:, first] == 1).all()


def test_several_orderings_of_a_transformer_with_one_are_refused(table):
    with pytest.raises(ValueError, match="fixed_order=True has one ordering, so n_orderings is 1, not 2"):
        pynade.TransformerNADE(**TINY, fixed_order=True, n_orderings=2).fit(table)


@pytest.mark.parametrize("kind", [{}, {"causal": True, "n_orderings": 2}, {"fixed_order": True}])
def test_binary_transformers(kind, tmp_path):
    X = np.random.default_rng(0).integers(0, 2, (300, 1)).repeat(4, axis=1)
    small = {"width": 16, "depth": 1, "heads": 2, "epochs": 40, "learning_rate": 0.01, "random_state": 0}
    model = pynade.BinaryTransformerNADE(**small, **kind).fit(X)
    assert model.score(X) > -1  # independent columns: -2.8
    states = np.array(list(itertools.product([0, 1], repeat=4)))
    assert abs(np.exp(model.score_samples(states)).sum() - 1) < 1e-9
    gaps = np.array([[1.0, np.nan, np.nan, 1.0]])
    assert model.impute(gaps, random_state=0).tolist() == [[1, 1, 1, 1]]
    model.save(tmp_path / "m.safetensors")
    assert pynade.load(tmp_path / "m.safetensors").score(X[:9]) == model.score(X[:9])
    if kind:
        with pytest.raises(ValueError, match="takes missing values"):
            model.score_samples(gaps)
    else:
        assert model.score_samples(gaps).shape == (1,)
    with pytest.raises(ValueError, match="0"):
        model.score_samples(0.5 * X)


def stepwise_log_prob(density, table, ordering):
    x = torch.as_tensor(table)
    law, y, log_slope = density.family.unwrap(x, torch.float64)
    eta = stepwise(density.net, law.encode(y), ordering)
    return (law.log_prob(y, eta) + log_slope).sum(-1).detach()


@pytest.mark.parametrize("fixed_order", [False, True])
def test_transformers_train_from_a_source_of_rows(fixed_order):
    pictures = [np.random.default_rng(0).integers(0, 256, (30, 30), dtype=np.uint8)]
    source = Patches.of(pictures, 4)
    rows = source.draw(200, torch.Generator().manual_seed(1)).numpy()
    model = pynade.TransformerNADE(
        **TINY, fixed_order=fixed_order, epochs=2, updates_per_epoch=4, batch_size=20, random_state=0
    )
    model.fit(rows, X_valid=rows[:50], source=source)
    assert len(model.history_.epochs) == 2
    assert np.isfinite(model.score(rows[:10]))


def test_one_ordering_for_all_rows_is_still_there(fitted):
    """`density` is the model along its own first ordering, whose scores `score_samples` gives."""
    model, X = fitted["conv"], data("conv")[:4]
    density = model.density().double()
    assert density.ordering == Ordering(model.orderings(1).order[0])
    np.testing.assert_allclose(
        density.log_prob(torch.as_tensor(X)).detach(), model.score_samples(X), atol=1e-9
    )
