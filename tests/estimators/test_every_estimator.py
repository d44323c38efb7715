"""What holds for every estimator and preset: scikit-learn's checks, questions, files, columns by name."""

import json
import pickle
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from sklearn.base import clone
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import parametrize_with_checks

import pynade
from pynade.estimators.registry import ALIASES, MODELS, estimator_class
from pynade.training.options import Training
from tests.estimators.cases import COMPLETE_ROWS, ESTIMATORS, FIXED, gaps, make, rows, states

every = pytest.mark.parametrize("name", ESTIMATORS)
ANSWERS_ALL = [name for name in ESTIMATORS if name not in FIXED]


@pytest.fixture(scope="module")
def fitted():
    """Each small estimator fitted once; a test must not change it."""
    models = {}

    def get(name):
        if name not in models:
            models[name] = make(name).fit(rows(ESTIMATORS[name][1]))
        return models[name]

    return get


def data(name, n=160, seed=0):
    return rows(ESTIMATORS[name][1], n, seed)


# ------------------------------------------------------------------------------ scikit-learn's conventions


class OneLine:
    """An estimator of images that takes a row of any length as an image of one line."""

    def _net(self, n_variables, family, generator):
        like = type(self).__mro__[2](**self.get_params(deep=False) | {"image_shape": (1, n_variables)})
        return like._net(n_variables, family, generator)


class TargetNADE(pynade.TabularNADE):
    """Predicts its first column: scikit-learn's checks name none."""

    def predict(self, X, target=0):
        return super().predict(X, target)

    @property
    def predict_proba(self):
        raise AttributeError("the first column has no levels")


class OneLineConvNADE(OneLine, pynade.ConvNADE):
    pass


class OneLineImageNADE(OneLine, pynade.ImageNADE):
    pass


def for_checks(name):
    """The estimator of a case as scikit-learn's tables need it: a threshold, any number of columns."""
    model = make(name)
    if name == "tabularnade":
        return TargetNADE(**model.get_params(deep=False))
    if ESTIMATORS[name][1] != "real":
        model.set_params(binarize=0.0)
    if ESTIMATORS[name][1] == "image":
        unet = isinstance(model, pynade.ImageNADE)
        kind = OneLineImageNADE if unet else OneLineConvNADE
        flat = (
            {"multipliers": (1,), "attention": (0,)} if unet else {"blueprint": "2@1x1(valid)->1@1x1(same)"}
        )
        model = kind(**model.get_params(deep=False) | flat | {"image_shape": None, "epochs": 1})
    return model


@parametrize_with_checks([for_checks(name) for name in ESTIMATORS])
def test_scikit_learn_conventions(estimator, check):
    check(estimator)


@every
@pytest.mark.xfail(strict=True, raises=AssertionError, reason="columns are matched by name")
def test_scikit_learn_wants_reordered_columns_to_be_refused(name):
    """The check is not in scikit-learn's list, so it is called here."""
    model = for_checks(name)
    estimator_checks.check_dataframe_column_names_consistency(type(model).__name__, model)


def test_the_list_has_every_model_and_every_preset():
    presets = [name for name, (_, parameters) in ALIASES.items() if parameters]
    assert sorted(ESTIMATORS) == sorted([*MODELS, *presets])
    assert len(ESTIMATORS) == 22
    for name, (factory, _) in ESTIMATORS.items():
        kind, preset = estimator_class(name)
        model = factory()
        assert type(model) is kind
        assert all(name in model.flat_parameters() for name in preset)


@every
def test_the_constructor_only_stores_and_clone_copies(name):
    model = make(name)
    again = clone(model)
    assert again is not model
    assert again.get_params() == model.get_params()
    assert again.flat_parameters() == model.flat_parameters()
    assert "random_state=0" in repr(model)


# ----------------------------------------------------------------------------------------------- questions


@every
def test_fit_score_and_sample(name, fitted):
    X, model = data(name), fitted(name)
    scores = model.score_samples(X)
    assert scores.shape == (len(X),)
    assert scores.dtype == np.float64
    assert model.score(X) == pytest.approx(scores.mean())
    assert model.n_iter_ == len(model.history_.epochs) > 0
    assert model.n_features_in_ == X.shape[1]
    np.testing.assert_allclose(model.score_samples(X[7:8]), scores[7:8], rtol=0, atol=1e-10)
    draws = model.sample(11, random_state=4)
    assert draws.shape == (11, X.shape[1])
    assert draws.dtype == (np.float64 if ESTIMATORS[name][1] == "real" else np.int64)
    assert (draws == model.sample(11, random_state=4)).all()
    if ESTIMATORS[name][1] != "real":
        assert np.exp(model.score_samples(states(X.shape[1]))).sum() == pytest.approx(1, abs=1e-9)


@every
def test_scores_are_those_of_the_density(name, fitted):
    X, model = data(name), fitted(name)
    codes, offsets = model.schema_.encode(X) if name == "tabularnade" else (X, np.zeros(X.shape))
    with torch.no_grad():
        direct = model.density().double().log_prob(torch.as_tensor(codes)).numpy() + offsets.sum(1)
    np.testing.assert_allclose(model.score_samples(X), direct, rtol=0, atol=1e-8)


@pytest.mark.parametrize("threads", [1, 2])
@every
def test_the_score_of_a_row_does_not_depend_on_the_others(name, threads, fitted):
    X, model = data(name), fitted(name)
    together, before = model.score_samples(X), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for chosen in (slice(None, None, -1), slice(None, None, 3), slice(7, 8), slice(1, 3), slice(5, 38)):
            found = model.score_samples(X[chosen])
            np.testing.assert_allclose(found, together[chosen], rtol=1e-12, atol=1e-12)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    "name", [*(name for name in ESTIMATORS if name not in COMPLETE_ROWS), "chowliu", "rbm"]
)
def test_the_score_of_a_row_with_gaps_does_not_depend_on_the_others(name, fitted):
    X, model = gaps(np.asarray(data(name), float)), fitted(name)
    together = model.score_samples(X)
    for chosen in (slice(None, None, -1), slice(None, None, 3), slice(7, 8), slice(1, 3), slice(5, 38)):
        np.testing.assert_allclose(model.score_samples(X[chosen]), together[chosen], rtol=1e-12, atol=1e-12)


@every
def test_the_same_seed_gives_the_same_model(name, fitted):
    X, model = data(name), fitted(name)
    again, other = make(name).fit(X), make(name, random_state=1).fit(X)
    assert (again.score_samples(X) == model.score_samples(X)).all()
    if name not in ("gaussian", "chowliu"):  # where only the rows held out are random, if any
        assert (other.score_samples(X) != model.score_samples(X)).any()


@every
def test_missing_cells_are_filled_and_kept_cells_stay(name, fitted):
    X, model = data(name, 12, seed=3), fitted(name)
    holes = gaps(X)
    known = ~np.isnan(holes)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the gaps of .* rows are filled by an estimate")
        filled, draws = model.impute(holes, random_state=0), model.impute(holes, 3, random_state=0)
        assert (draws == model.impute(holes, 3, random_state=0)).all()
    assert filled.shape == X.shape
    assert draws.shape == (3, *X.shape)
    for each in (filled, *draws):
        assert np.isfinite(each).all()
        assert (each[known] == X[known]).all()


@pytest.mark.parametrize("name", ANSWERS_ALL)
def test_any_conditional_and_any_given_value(name, fitted):
    X, model = data(name), fitted(name)
    value = float(X[0, 2])
    conditional = model.conditional(0, {2: value})
    draws = model.sample(300, random_state=0, given={2: value})
    assert draws.shape == (300, X.shape[1])
    np.testing.assert_allclose(draws[:, 2], value, rtol=1e-12)
    assert draws[:, 0].mean() == pytest.approx(conditional.mean(), abs=0.25 * X[:, 0].std())
    assert conditional.quantile(0.2) <= conditional.quantile(0.8)
    scores = model.score_samples(gaps(X))
    assert np.isfinite(scores).all()
    if ESTIMATORS[name][1] != "real":
        assert conditional.pmf(0) + conditional.pmf(1) == pytest.approx(1)
    if hasattr(model, "chosen_") and ESTIMATORS[name][1] != "real":  # one density, without orderings
        assert (scores >= model.score_samples(X) - 1e-9).all()  # a sum over more states
    with pytest.raises(ValueError, match="both asked for and given"):
        model.conditional(2, {2: value})


@pytest.mark.parametrize("name", FIXED)
def test_what_a_fixed_ordering_cannot_answer_is_refused_with_the_model_that_can(name, fitted):
    X, model = data(name), fitted(name)
    with pytest.raises(ValueError, match="DeepNADE") as error:
        model.score_samples(gaps(X))
    assert "BernoulliMixture" in str(error.value)
    orders = model.density().order.reshape(-1, X.shape[1]).tolist()
    last = next(i for i in range(X.shape[1]) if all(order[0] != i for order in orders))
    given = {last: float(X[0, last])}
    for question in (
        lambda: model.sample(3, given=given),
        lambda: model.conditional(orders[0][0], given),
        lambda: model.estimate(X),
    ):
        with pytest.raises(ValueError, match="DeepNADE"):
            question()
    if len(orders) == 1:
        first, second = orders[0][:2]
        value = float(X[0, first])
        assert np.isfinite(model.conditional(second, {first: value}).mean())
        np.testing.assert_allclose(model.sample(5, 0, given={first: value})[:, first], value)
    if name != "permuted-transformer":
        with pytest.raises(ValueError, match=r"DeepNADE|fixed_order=False"):
            model.orderings()


@pytest.mark.parametrize("name", COMPLETE_ROWS)
def test_missing_cells_that_cannot_be_fitted_are_refused_with_the_model_that_can(name):
    X = data(name)
    for call in (
        lambda: make(name).fit(gaps(X)),
        lambda: make(name).check_request(gaps(X)),
        lambda: make(name).fit(X, X_valid=gaps(X)),
    ):
        with pytest.raises(ValueError, match=r"row \d+, column \d+ is NaN; .*DeepNADE"):
            call()


@pytest.mark.parametrize("name", [name for name in ESTIMATORS if name not in COMPLETE_ROWS])
def test_fitted_to_rows_with_missing_cells(name):
    X = data(name, 400)
    model = make(name).fit(gaps(X, 0.1))
    assert model.score(X) > make(name).fit(X).score(X) - 0.5
    assert np.isfinite(model.history_.train_log_likelihood)


# ----------------------------------------------------------------------------------------- files and copies


@every
def test_pickle_save_and_load(name, fitted, tmp_path):
    X, model = data(name), fitted(name)
    expected = model.score_samples(X)
    model.save(tmp_path / "m.safetensors", note="kept")
    loaded = pynade.load(tmp_path / "m.safetensors")
    for again in (loaded, pickle.loads(pickle.dumps(model))):
        assert type(again) is type(model)
        assert (again.score_samples(X) == expected).all()
        assert (again.sample(5, random_state=1) == model.sample(5, random_state=1)).all()
        assert (again.n_features_in_, again.n_iter_, again.seed_) == (
            model.n_features_in_,
            model.n_iter_,
            model.seed_,
        )
        assert again.history_ == model.history_
        for fact in model._facts:
            assert getattr(again, fact) == getattr(model, fact)
        if name in ANSWERS_ALL:
            holes = gaps(X[:20])
            assert (again.score_samples(holes) == model.score_samples(holes)).all()
            draws = [each.impute(holes, 2, random_state=1) for each in (again, model)]
            assert (draws[0] == draws[1]).all()
            assert again.conditional(1, {0: X[0, 0]}).mean() == model.conditional(1, {0: X[0, 0]}).mean()
    assert json.loads(json.dumps(loaded.flat_parameters())) == json.loads(json.dumps(model.flat_parameters()))
    refit = clone(loaded).fit(X)  # the parameters that were saved are those of the fit
    assert (refit.score_samples(X) == expected).all()


@every
def test_the_history_agrees_with_the_fitted_model(name, tmp_path):
    X, seen = data(name), []
    model = make(name).fit(X[:120], X_valid=X[120:], folder=tmp_path, callbacks=[seen.append])
    history = model.history_
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert model.n_iter_ == len(history.epochs) == len(lines)
    for line, epoch in zip(lines, history.epochs, strict=True):
        assert (line["train"], line["valid"]) == (epoch["train"], epoch["valid"])
    assert history.epochs[history.best_epoch - 1]["best"]
    assert history.best_valid == max(e["valid"] for e in history.epochs if e["valid"] is not None)
    assert history.stopped
    assert history.seconds > 0
    assert seen[-1].best_valid == pytest.approx(history.best_valid, abs=1e-9)
    assert all(now.update <= now.updates for now in seen)
    assert [now.update for now in seen] == sorted(now.update for now in seen)
    exact = hasattr(model, "chosen_") or (name in FIXED and name != "permuted-transformer")
    if exact:  # else the validation score is an estimate
        assert history.best_valid == pytest.approx(model.score(X[120:]), abs=1e-3)


# ---------------------------------------------------------------------------------------- columns by name


FRAMES = pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame], ids=["pandas", "polars"])


def as_frame(frame, X, names):
    return frame({name: X[:, k] for k, name in enumerate(names)})


@every
@FRAMES
def test_columns_are_matched_by_name(name, frame):
    X = data(name)
    names = [f"column-{k}" for k in "cadbe"[: X.shape[1]]]
    table = as_frame(frame, X, names)
    model = make(name, epochs=1).fit(table) if name not in ("chowliu", "gaussian") else make(name).fit(table)
    assert list(model.feature_names_in_) == names
    scores = model.score_samples(table)
    assert (model.score_samples(X) == scores).all()  # an array has no names: taken as it stands
    other = table[sorted(names)]
    assert list(other.columns) != names
    assert (model.score_samples(other) == scores).all()
    assert model.score(other) == model.score(table)
    drawn = model.sample(3, random_state=0)
    assert isinstance(drawn, frame)
    assert list(drawn.columns) == names
    holes = as_frame(frame, gaps(X[:9]), names)
    if name in ANSWERS_ALL:
        filled = model.impute(holes[sorted(names)])
        assert isinstance(filled, frame)  # a frame for a frame, in its own order
        assert list(filled.columns) == sorted(names)
        assert (np.asarray(filled[names]) == np.asarray(model.impute(holes))).all()
        assert [type(one) for one in model.impute(holes, n=2, random_state=0)] == [frame, frame]
        by_name = model.conditional(names[1], {names[0]: float(X[0, 0])}).mean()
        assert by_name == model.conditional(1, {0: float(X[0, 0])}).mean()
    if name == "tabularnade":
        more = as_frame(frame, np.hstack([X, X[:, :1]]), [*names, "more"])
        assert (model.score_samples(more) == scores).all()  # other columns are passed over
        assert list(model.impute(more).columns) == [*names, "more"]
    for wrong, words in (
        (table[names[1:]], f"there is no column {names[0]!r}"),
        (as_frame(frame, np.hstack([X, X[:, :1]]), [*names, "more"]), "'more' is not one of its columns"),
        (as_frame(frame, X, ["other", *names[1:]]), f"no column {names[0]!r}, and 'other' is not one"),
    )[: 1 if name == "tabularnade" else None]:
        with pytest.raises(ValueError, match=words):
            model.score_samples(wrong)
        with pytest.raises(ValueError, match=words):
            model.impute(wrong)
    with pytest.raises(ValueError, match=f"there is no column {names[0]!r}"):
        make(name).fit(table, X_valid=table[names[1:]])
    with pytest.raises(ValueError, match="there is no column 'z'"):
        model.conditional("z")


def test_the_names_of_an_array_can_be_given():
    X = data("fvsbn")
    model = make("fvsbn").fit(X, columns=list("abcde"))
    table = pd.DataFrame(X, columns=list("abcde"))
    assert (model.score_samples(table[list("edcba")]) == model.score_samples(X)).all()


@pytest.mark.parametrize("name", ["deepnade", "rnade", "gaussianmixture"])
def test_a_frame_with_numbers_for_names_comes_back_as_a_frame(name):
    table = pd.DataFrame(data(name)).astype(float)
    model = make(name).fit(table)
    assert list(model.sample(3, random_state=0).columns) == list(table.columns)
    gaps = table.mask(np.eye(*table.shape, dtype=bool))
    pd.testing.assert_frame_equal(model.impute(gaps, random_state=0).where(gaps.notna()), gaps)


@FRAMES
def test_a_column_of_text_or_dates_is_named(frame):
    X = data("nade", 20)
    text = {"a": X[:, 0], "city": ["Rome", "Oslo"] * 10, "c": X[:, 2]}
    days = {"a": X[:, 0], "day": np.arange("2026-01-01", "2026-01-21", dtype="datetime64[D]"), "c": X[:, 2]}
    for columns, words in (
        (text, "^column 'city' holds text such as 'Rome'; expected numbers[^.]*$"),
        (days, "^column 'day' holds dates such as '2026-01-01[^']*'; expected numbers[^.]*$"),
    ):
        with pytest.raises(ValueError, match=words):
            make("nade").fit(frame(columns))
    model = make("nade").fit(frame({"a": X[:, 0], "city": X[:, 1], "c": X[:, 2]}))
    with pytest.raises(ValueError, match=r"^column 'city' holds text"):
        model.score_samples(frame(text))


def test_a_row_of_a_pandas_frame_can_be_given():
    frame = pd.DataFrame(data("gaussianmixture"), columns=["x", "y", "z"])
    model = make("gaussianmixture").fit(frame)
    row = frame.iloc[3].drop("y")
    conditional = model.conditional("y", given=row)
    assert conditional.mean() == model.conditional(1, {0: frame["x"][3], 2: frame["z"][3]}).mean()
    assert (model.sample(4, 0, given=row)[["x", "z"]].to_numpy() == row.to_numpy()).all()
    with pytest.raises(ValueError, match="given is a mapping from columns to values"):
        model.conditional("y", given=[1.0, 2.0])


@every
def test_quantiles_of_several_probabilities(name, fitted):
    model = fitted(name)
    first = int(model.density().order.reshape(-1, model.n_features_in_)[0, 0]) if name in FIXED else 0
    if name in ("made-e", "permuted-transformer"):
        pytest.skip("an average of orderings has no conditional along one of them")
    conditional = model.conditional(first)
    found = conditional.quantile([0.05, 0.5])
    assert isinstance(found, np.ndarray)
    assert found.tolist() == [conditional.quantile(0.05), conditional.quantile(0.5)]
    assert found[0] <= found[1]


def test_options_of_training_are_an_object_or_a_dictionary():
    X = data("nade")
    one = make("nade", momentum=0.5, optimizer="sgd").fit(X)
    assert one.training == {"momentum": 0.5, "optimizer": "sgd"}
    for training in (one.training, Training(momentum=0.5, optimizer="sgd")):
        other = make("nade").set_params(training=training).fit(X)
        assert (one.score_samples(X) == other.score_samples(X)).all()
    routed = make("nade", optimizer="sgd").set_params(momentum=0.5)
    assert routed.options() == one.options()
    assert replace(routed.options(), momentum=0.0) == make("nade", optimizer="sgd").options()
    with pytest.raises(ValueError, match="unknown option 'momentun' of training; known: optimizer, "):
        make("nade").set_params(training={"momentun": 0.5}).fit(X)
    with pytest.raises(ValueError, match="no parameter 'momentun': did you mean 'momentum'"):
        make("nade", momentun=0.5)
