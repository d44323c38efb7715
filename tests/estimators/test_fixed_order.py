"""NADE, MADE and FVSBN: input, validation rows, orderings, mistakes."""

from dataclasses import fields

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import pynade
from pynade.ordering import Ordering
from pynade.training import Gradient


@pytest.fixture
def X():
    rng = np.random.default_rng(0)
    base = rng.integers(0, 2, (120, 1))
    return np.where(rng.random((120, 5)) < 0.8, base, 1 - base)


def test_booleans_and_floats_are_zeros_and_ones_too(X):
    scores = [
        pynade.FVSBN(epochs=2, random_state=0).fit(X.astype(t)).score(X) for t in (int, bool, float, np.uint8)
    ]
    assert len(set(scores)) == 1


def test_binarize_thresholds_as_in_naive_bayes(X):
    noisy = np.where(X == 1, 0.9, 0.2)
    plain = pynade.FVSBN(epochs=2, random_state=0).fit(X)
    cut = pynade.FVSBN(epochs=2, random_state=0, binarize=0.5).fit(noisy)
    assert (cut.score_samples(noisy) == plain.score_samples(X)).all()


def test_the_validation_rows_given_are_used(X):
    model = pynade.NADE(hidden=4, epochs=2, random_state=0).fit(X[:80], X_valid=X[80:])
    assert model.history_.best_valid == pytest.approx(
        max(e["valid"] for e in model.history_.epochs), abs=1e-12
    )
    nothing_held_out = pynade.NADE(hidden=4, epochs=2, validation_fraction=0).fit(X)
    assert nothing_held_out.history_.best_valid is None


def test_works_in_a_pipeline_and_a_grid_search(X):
    model = make_pipeline(FunctionTransformer(np.asarray), pynade.NADE(hidden=4, epochs=2, random_state=0))
    search = GridSearchCV(model, {"nade__learning_rate": [1e-9, 0.05]}, cv=2).fit(X)
    assert search.best_params_ == {"nade__learning_rate": 0.05}


def test_orderings(X):
    for ordering in ("natural", [4, 3, 2, 1, 0]):
        model = pynade.NADE(hidden=4, epochs=1, ordering=ordering, random_state=0).fit(X)
        expected = [0, 1, 2, 3, 4] if ordering == "natural" else ordering
        assert model.model_.ordering.order.tolist() == expected
        both = pynade.MADE(hidden=4, epochs=1, ordering=ordering, n_orderings=2, random_state=0).fit(X)
        assert both.model_.orderings[0].order.tolist() == expected


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda X: X * 2, "zeros and ones, but row .* is 2"),
        (lambda X: np.where(X == 1, np.nan, 0), "row .* is NaN; orderless models"),
        (lambda X: np.where(X == 1, np.inf, 0), "is inf"),
        (lambda X: X[:0], "0 sample"),
        (lambda X: X[:, :0], "0 feature"),
        (lambda X: X[:, :1], "1 feature"),
        (lambda X: X[0], "Expected 2D array"),
        (lambda X: [["a", "b"], ["c", "d"]], "column 0 holds text such as 'a'; expected numbers"),
    ],
)
def test_bad_input_is_one_clear_sentence(X, change, words):
    with pytest.raises(ValueError, match=words):
        pynade.NADE(hidden=4, epochs=1).fit(change(X))


def test_bad_input_at_scoring(X):
    model = pynade.NADE(hidden=4, epochs=1, random_state=0).fit(X)
    with pytest.raises(ValueError, match="X has 4 features, but NADE is expecting 5 features"):
        model.score_samples(X[:, :4])
    with pytest.raises(ValueError, match="zeros and ones"):
        model.score_samples(X + 0.5)
    with pytest.raises(ValueError, match="n_samples must be at least 1"):
        model.sample(0)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"ordering": "sideways"}, "'random', 'natural' or a permutation"),
        ({"ordering": [0, 0, 1, 2, 3]}, "permutation"),
        ({"ordering": [0, 1]}, "ordering has 2 variables"),
        ({"device": "toaster"}, "unknown device 'toaster'"),
        ({"validation_fraction": 1.0}, "validation_fraction"),
        ({"learning_rate": -1}, "learning_rate must be positive"),
    ],
)
def test_bad_parameters_are_found_by_fit(X, parameters, words):
    model = pynade.NADE(hidden=4, epochs=1, **parameters)  # the constructor only stores
    with pytest.raises(ValueError, match=words):
        model.fit(X)


@pytest.mark.parametrize("model", [pynade.MADE(n_orderings=2), pynade.DeepNADE(), pynade.EoNADE()])
@pytest.mark.parametrize(
    ("ordering", "message"),
    [([0, 1], "ordering has 2 variables"), (Ordering.random(5, 2), "one permutation, not a batch of 2")],
)
def test_an_ordering_of_another_size_is_refused(X, model, ordering, message):
    with pytest.raises(ValueError, match=message):
        clone(model).set_params(ordering=ordering).fit(X)


def test_n_orderings_must_be_positive(X):
    with pytest.raises(ValueError, match="n_orderings"):
        pynade.MADE(n_orderings=0).fit(X)


def test_training_parameters_are_those_of_the_option_object():
    """Declared once for scikit-learn, once for torch: same names, same defaults unless a model has others."""
    flat = pynade.FVSBN().flat_parameters()
    assert {field.name: flat[field.name] for field in fields(Gradient)} == vars(Gradient())
    assert pynade.FVSBN().options() == Gradient()
    options = vars(pynade.ImageNADE().options())
    assert (options["optimizer"], options["ema"], options["precision"]) == ("adamw", 0.999, "bf16")


def test_what_was_trained_on_a_gpu_is_loaded_without_one(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    x = np.eye(6)
    model = pynade.NADE(hidden=3, epochs=1, random_state=0).fit(x)
    scores = model.score_samples(x)
    model.set_params(device="cuda").save(tmp_path / "m.safetensors")
    np.testing.assert_array_equal(pynade.load(tmp_path / "m.safetensors").score_samples(x), scores)
