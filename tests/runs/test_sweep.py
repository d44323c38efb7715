"""Sweeps: chosen on validation, retrained by the paper's rule, resumable."""

import json

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from pynade.classical import em_factors
from pynade.estimators import MFA, load
from pynade.estimators.classical import fit_folds
from pynade.estimators.registry import estimator_named
from pynade.runs import sweep as populations
from pynade.runs.sweep import Sweep, by_setting
from pynade.tables import Dataset, Schema

KNOWN = {}  # the registry of these tests


def run_sweep(*args, **options):
    return Sweep(*args, known=KNOWN, **options).run()


FIXED = {
    "hidden": 8,
    "epochs": 6,
    "batch_size": 20,
    "updates_per_epoch": 4,
    "patience": None,
    "schedule": "linear",
    "device": "cpu",
}
GRID = {"family": ["gaussian", "mog"], "learning_rate": [0.01, 0.1], "n_components": [2]}
DEEP = {"hidden": [(6,), (4, 4)], "dropout": [0.0, 0.2]}


def fold(seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(120, 1))
    rows = np.hstack([x, np.sin(2 * x), x**2]) + 0.1 * rng.normal(size=(120, 3))
    return Dataset(f"f{seed}", rows[:80], rows[80:100], rows[100:], Schema.uniform("real", 3))


class Toy:
    """A named data set with the given folds, or without folds if there is one."""

    def __init__(self, *parts):
        self.parts = {"": parts[0]} if len(parts) == 1 else {str(n + 1): p for n, p in enumerate(parts)}
        self.variants = tuple(self.parts)

    def load(self, variant="", data_dir=None, download=True, progress=None):
        return self.parts[variant]


@pytest.fixture
def registered(monkeypatch):
    """Registers data as "toy" for the time of a test."""
    return lambda *parts: monkeypatch.setitem(KNOWN, "toy", Toy(*parts))


@pytest.fixture
def folds(registered):
    made = [fold(1), fold(2)]
    registered(*made)
    return made


def test_the_best_on_validation_is_chosen_on_each_fold_and_the_test_asked_once(folds, tmp_path):
    record = run_sweep(tmp_path / "s", "rnade", "toy", FIXED, GRID, seed=3)
    assert len(record["validation_grid"]) == 4
    for number, chosen in enumerate(record["chosen"]):
        best = max(record["validation_grid"], key=lambda line: line["valid"][number])
        assert all(chosen[name] == best[name] for name in GRID)
    models = [load(tmp_path / "s" / f"fold-{k}.safetensors") for k in (1, 2)]
    means = [model.score(part.test) for model, part in zip(models, folds, strict=True)]
    np.testing.assert_allclose(record["test"]["folds"], means, rtol=1e-12)
    assert record["test"]["mean"] == pytest.approx(np.mean(means))
    assert record["test"]["stderr"] == pytest.approx(np.std(means, ddof=1) / np.sqrt(2))
    assert record["test"]["n"] == 40
    assert "--grid learning_rate=0.01,0.1" in record["commands"][0]
    for model in models:  # stopped by the rule, or at the end
        assert model.history_.stopped in ("training likelihood reached the given value", "all epochs done")


def test_a_member_of_the_grid_is_what_the_estimator_alone_would_be(folds, tmp_path):
    record = run_sweep(tmp_path / "s", "rnade", "toy", FIXED, {"learning_rate": [0.02, 0.1]}, seed=3)
    for line in record["validation_grid"]:
        alone = estimator_named("rnade", FIXED | {"learning_rate": line["learning_rate"], "random_state": 3})
        alone.fit(folds[1].train, X_valid=folds[1].valid)
        assert alone.history_.best_valid == pytest.approx(line["valid"][1], abs=2e-3)


def test_an_interrupted_sweep_goes_on_to_the_same_record(folds, tmp_path):
    class Killed(Exception):
        pass

    def kill(p):
        if p.phase == "grid" and p.part == 2:
            raise Killed

    whole = run_sweep(tmp_path / "a", "rnade", "toy", FIXED, GRID)
    with pytest.raises(Killed):
        run_sweep(tmp_path / "b", "rnade", "toy", FIXED, GRID, report=kill)
    parts = []
    again = run_sweep(
        tmp_path / "b", "rnade", "toy", FIXED, GRID, report=lambda p: parts.append((p.phase, p.part))
    )
    assert ("grid", 1) not in parts  # the first population was finished and is not trained again
    same = ("test", "chosen", "validation_grid")
    assert json.dumps({k: whole[k] for k in same}) == json.dumps({k: again[k] for k in same})
    assert [len(record["sessions"]) for record in (whole, again)] == [1, 2]
    times = [moment for session in again["sessions"] for moment in session]
    assert times == sorted(times)


def test_another_sweep_does_not_go_into_the_same_folder(folds, tmp_path):
    run_sweep(tmp_path / "s", "rnade", "toy", FIXED, {"learning_rate": [0.1]})
    with pytest.raises(ValueError, match="other settings"):
        run_sweep(tmp_path / "s", "rnade", "toy", FIXED, {"learning_rate": [0.2]})


def test_quick_says_so_and_is_smaller(folds, tmp_path):
    record = run_sweep(
        tmp_path / "s", "rnade", "toy", {**FIXED, "epochs": 50}, {"learning_rate": [0.1]}, quick=True
    )
    assert record["quick"] is True
    assert record["spec"]["fixed"]["epochs"] == 5
    assert "test" not in record
    assert record["valid"]["n"] == sum(len(part.valid) for part in folds)


def test_several_layers_and_dropout_may_vary(folds, tmp_path):
    fixed = {k: v for k, v in FIXED.items() if k != "hidden"} | {"n_components": 2, "learning_rate": 0.01}
    record = run_sweep(tmp_path / "s", "deep-rnade", "toy", fixed, DEEP)
    assert [line["hidden"] for line in record["validation_grid"]] == [[6], [6], [4, 4], [4, 4]]
    assert np.isfinite(record["test"]["mean"])


def test_a_setting_that_diverges_in_its_last_training_gives_way_to_the_next(folds, tmp_path, monkeypatch):
    real, grid = populations.fit_population, {"learning_rate": [0.05, 0.1]}

    def fragile(members, **options):
        histories = real(members, **options)
        if members[0].options.stop_at_train is not None and not fragile.fallen:
            histories[0].stopped = "diverged"
            fragile.fallen = True
        return histories

    fragile.fallen = False
    untouched = run_sweep(tmp_path / "a", "rnade", "toy", FIXED, grid)
    monkeypatch.setattr(populations, "fit_population", fragile)
    record = run_sweep(tmp_path / "b", "rnade", "toy", FIXED, grid)
    first, before = record["chosen"][0], untouched["chosen"][0]
    assert first["diverged_before"] == 1
    assert first["learning_rate"] != before["learning_rate"]
    assert record["chosen"][1] == untouched["chosen"][1]


def test_baselines_choose_among_their_own_settings_on_each_fold(folds, tmp_path):
    grid = {"n_components": [1, 3], "n_factors": [1, 2]}
    record = run_sweep(tmp_path / "s", "mfa", "toy", {"epochs": 20}, grid)
    for number, chosen in enumerate(record["chosen"]):
        best = max(record["validation_grid"], key=lambda line: line["valid"][number])
        assert all(chosen[name] == best[name] for name in grid)
    means = [load(tmp_path / "s" / f"fold-{k}.safetensors").score(folds[k - 1].test) for k in (1, 2)]
    np.testing.assert_allclose(record["test"]["folds"], means, rtol=1e-9)
    plain = run_sweep(tmp_path / "g", "gaussian", "toy", {}, {})
    assert plain["test"]["mean"] < record["test"]["mean"]
    both = np.concatenate([folds[0].train, folds[0].valid])
    alone = multivariate_normal(both.mean(0), np.cov(both.T, bias=True)).logpdf(folds[0].test).mean()
    assert plain["test"]["folds"][0] == pytest.approx(alone, rel=1e-9)


@pytest.fixture
def gappy(registered):
    """Three folds of different sizes, with missing values."""
    made = []
    for seed in (1, 2, 3):
        whole, rng = fold(seed), np.random.default_rng(seed)
        cuts = [np.where(rng.random(x.shape) < [0.2, 0.1, 0], np.nan, x) for x in (whole.train, whole.valid)]
        made.append(Dataset(whole.name, cuts[0][: 80 - 9 * seed], cuts[1], whole.test, whole.schema))
    registered(*made)
    return made


FACTORS = {"n_components": [1, 3, 2], "n_factors": [1, 2]}


@pytest.mark.parametrize("retrain", [True, False], ids=["retrain", "keep"])
def test_folds_of_mfa_are_one_em_and_each_what_it_would_be_alone(gappy, tmp_path, monkeypatch, retrain):
    sizes = []

    def counted(tasks, **options):
        sizes.append(len(tasks))
        return em_factors(tasks, **options)

    monkeypatch.setattr("pynade.classical.em_factors", counted)
    fixed = {"epochs": 25, "patience": 4, "tol": 1e-3}
    record = run_sweep(tmp_path / "s", "mfa", "toy", fixed, FACTORS, seed=5, retrain=retrain)
    assert sizes == [3 * 6, 3]  # the grid, and the chosen ones
    assert len({(line["n_components"], line["n_factors"]) for line in record["chosen"]}) > 1
    for number, (part, chosen) in enumerate(zip(gappy, record["chosen"], strict=True)):
        alone = MFA(**fixed, **FACTORS, random_state=5).fit(part.train, X_valid=part.valid)
        assert alone.chosen_ == {name: chosen[name] for name in FACTORS}
        assert alone.history_.best_epoch == chosen["best_epoch"]
        lines = json.loads((tmp_path / f"s/choices-{number + 1}.json").read_text())["outcomes"]
        reached = alone.history_.train_log_likelihood
        assert lines[0]["train"] == pytest.approx(reached, abs=1e-9)
        scores = [line["valid"] for line in lines]
        np.testing.assert_allclose(scores, [c["valid"] for c in alone.choices_], rtol=0, atol=1e-9)
        if retrain:
            alone = MFA(**fixed | alone.chosen_ | {"patience": None}, validation_fraction=0, random_state=5)
            alone.set_params(stop_at_train=reached).fit(np.concatenate([part.train, part.valid]))
        model = load(tmp_path / f"s/fold-{number + 1}.safetensors")
        assert model.history_.stopped == alone.history_.stopped
        np.testing.assert_allclose(model.score_samples(part.test), alone.score_samples(part.test), atol=1e-9)
        for name, own in alone.model_.state_dict().items():
            np.testing.assert_allclose(model.model_.state_dict()[name], own, rtol=1e-8, atol=1e-9)


def test_estimators_that_stop_by_other_rules_are_not_one_em(gappy):
    made = [MFA(2, 1, epochs=n, tol=0, random_state=0) for n in (2, 6, 6)]
    fit_folds(made, [part.train for part in gappy], [part.valid for part in gappy])
    assert [len(model.history_.epochs) for model in made] == [3, 7, 7]


def test_an_interrupted_sweep_of_mfa_goes_on_with_the_folds_that_are_left(gappy, tmp_path, monkeypatch):
    class Killed(Exception):
        pass

    def kill(p):
        if p.part == 3:
            raise Killed

    monkeypatch.setattr(MFA, "_folds_at_once", 2)
    whole, parts = run_sweep(tmp_path / "a", "mfa", "toy", {"epochs": 9}, FACTORS), []
    with pytest.raises(Killed):
        run_sweep(tmp_path / "b", "mfa", "toy", {"epochs": 9}, FACTORS, report=kill)
    done = sorted((tmp_path / "b").glob("choices-*.json"))
    assert [file.name for file in done] == ["choices-1.json", "choices-2.json"]
    first, second = (json.loads(file.read_text())["seconds"] for file in done)
    assert first == second > 0
    again = run_sweep(
        tmp_path / "b",
        "mfa",
        "toy",
        {"epochs": 9},
        FACTORS,
        report=lambda p: parts.append((p.phase, p.part, p.parts)),
    )
    assert list(dict.fromkeys(parts)) == [("grid", 3, 3), ("final", 1, 3), ("final", 3, 3)]
    assert [again[k] for k in ("test", "chosen")] == [whole[k] for k in ("test", "chosen")]


def test_other_baselines_go_fold_by_fold(gappy, tmp_path):
    parts = []
    run_sweep(
        tmp_path / "s",
        "mog",
        "toy",
        {"epochs": 4},
        {"n_components": [1, 2]},
        report=lambda p: parts.append((p.phase, p.part)),
    )
    assert list(dict.fromkeys(parts)) == [(what, part) for what in ("grid", "final") for part in (1, 2, 3)]


def test_an_interruption_in_the_second_round_of_the_last_training_changes_nothing(
    folds, tmp_path, monkeypatch
):
    real, grid = populations.fit_population, {"learning_rate": [0.05, 0.1]}
    monkeypatch.setattr("pynade.training.checkpoint.CHECKPOINT_SECONDS", 0.0)

    def fragile(members, **options):
        histories = real(members, **options)
        if (
            members[0].options.stop_at_train is not None and len(members) == 2
        ):  # the first round has both folds
            histories[0].stopped = "diverged"
        return histories

    class Killed(Exception):
        pass

    def kill(p):
        if p.phase == "final" and len(p.settings) == 1 and p.now.epoch == 1:
            raise Killed

    monkeypatch.setattr(populations, "fit_population", fragile)
    fixed = FIXED | {"epochs": 12}
    whole = run_sweep(tmp_path / "a", "rnade", "toy", fixed, grid)
    with pytest.raises(Killed):
        run_sweep(tmp_path / "b", "rnade", "toy", fixed, grid, report=kill)
    again = run_sweep(tmp_path / "b", "rnade", "toy", fixed, grid)
    assert whole["chosen"][0]["diverged_before"] == 1
    assert again["test"] == whole["test"]
    assert again["chosen"] == whole["chosen"]


def test_the_grid_names_what_diverged_after_a_good_epoch():
    tried = [{"rate": 1}, {"rate": 2}]
    outcomes = [
        {"setting": tried[0], "fold": 0, "valid": -1.0, "stopped": "diverged"},
        {"setting": tried[0], "fold": 1, "valid": None, "stopped": "diverged"},
        {"setting": tried[1], "fold": 0, "valid": -2.0, "stopped": "all epochs done"},
        {"setting": tried[1], "fold": 1, "valid": -3.0, "stopped": "all epochs done"},
    ]
    assert by_setting(outcomes, tried, 2) == [
        {"rate": 1, "valid": [-1.0, None], "diverged_on_folds": [1]},
        {"rate": 2, "valid": [-2.0, -3.0]},
    ]


def test_seeds_may_be_varied_and_other_things_are_refused_before_anything_is_written(folds, tmp_path):
    record = run_sweep(tmp_path / "s", "rnade", "toy", FIXED, {"random_state": [0, 1]})
    first, second = record["validation_grid"]
    assert first["valid"] != second["valid"]
    for fixed, grid, words in (
        ({"learning_rate": 0.1}, {"learning_rate": [0.1]}, "both fixed and varied"),
        ({}, {"validation_fraction": [0.1, 0.2]}, "cannot be varied"),
        ({"n_components": 2.5}, {}, "whole number"),
        ({}, {"learning_rate": ["fast"]}, "wrong kind"),
    ):
        with pytest.raises(ValueError, match=words):
            run_sweep(tmp_path / "x", "rnade", "toy", FIXED | fixed, grid)
        assert not (tmp_path / "x").exists()
    with pytest.raises(ValueError, match="does not choose among values of standardise"):
        run_sweep(tmp_path / "y", "mog", "toy", {}, {"standardise": [True, False]})


def test_the_readmes_sweep_works_on_folds_of_different_sizes(tmp_path, registered):
    made = [fold(1), fold(2)]
    made[1] = Dataset("f", made[1].train[:-7], made[1].valid, made[1].test, made[1].schema)
    registered(*made)
    grid = {"learning_rate": [0.01, 0.003], "n_components": [2, 3]}
    record = run_sweep(tmp_path / "s", "rnade", "toy", {"epochs": 2, "hidden": 4, "device": "cpu"}, grid)
    assert np.isfinite(record["test"]["mean"])


def test_a_sweep_of_ensembles_keeps_the_smaller_ones(folds, tmp_path):
    fixed = FIXED | {"family": "gaussian", "n_orderings": 4, "hidden": [6]}
    record = run_sweep(tmp_path / "s", "deep-rnade", "toy", fixed, {"learning_rate": [0.01]}, retrain=False)
    assert list(record["ensembles"]) == ["1", "2", "4"]
    assert record["ensembles"]["4"]["mean"] == record["test"]["mean"]
    models = [load(tmp_path / f"s/fold-{n}.safetensors") for n in range(1, len(folds) + 1)]
    rows = [model.score_samples(part.test).mean() for model, part in zip(models, folds, strict=True)]
    np.testing.assert_allclose(record["test"]["folds"], rows, rtol=1e-12)
    pairs = [m.score_samples(p.test, orderings=2).mean() for m, p in zip(models, folds, strict=True)]
    np.testing.assert_allclose(record["ensembles"]["2"]["mean"], np.mean(pairs), rtol=1e-12)
    assert record["ordering_std"] > 0


def test_ensembles_of_as_many_orderings_are_one_population(registered, tmp_path):
    rows = (np.random.default_rng(0).random((120, 5)) < [0.1, 0.3, 0.5, 0.7, 0.9]).astype(np.uint8)
    part = Dataset("bits", rows[:80], rows[80:100], rows[100:], Schema.uniform("binary", 5))
    registered(part)
    fixed = FIXED | {"hidden": [6]}
    grid = {"n_orderings": [2, 3], "learning_rate": [0.01, 0.05]}
    reports = []
    record = run_sweep(tmp_path / "s", "made-e", "toy", fixed, grid, seed=3, report=reports.append)
    assert {(p.part, len(p.settings)) for p in reports if p.phase == "grid"} == {(1, 2), (2, 2)}
    assert record["test"]["orderings"] == record["chosen"][0]["n_orderings"]
    for line in record["validation_grid"]:
        own = {name: line[name] for name in grid}
        alone = estimator_named("made", fixed | own | {"random_state": 3}).fit(part.train, X_valid=part.valid)
        assert alone.history_.best_valid == pytest.approx(line["valid"][0], abs=1e-4)


@pytest.fixture
def split(registered):
    made = fold(1)
    registered(made)
    return made


@pytest.mark.parametrize("retrain", [False, True])
def test_repeats_are_what_the_estimators_alone_would_be_with_those_seeds(split, tmp_path, retrain):
    grid = {"learning_rate": [0.02, 0.1]}
    record = run_sweep(tmp_path / "s", "rnade", "toy", FIXED, grid, seed=3, retrain=retrain, repeats=3)
    once = run_sweep(tmp_path / "o", "rnade", "toy", FIXED, grid, seed=3, retrain=retrain)
    many, rate = record["repeats"], record["chosen"][0]["learning_rate"]
    assert many["seeds"] == [3, 4, 5]
    assert many["means"][0] == record["test"]["mean"] == pytest.approx(once["test"]["mean"], abs=2e-3)
    assert many["mean"] == pytest.approx(np.mean(many["means"]), rel=1e-12)
    assert many["std"] == pytest.approx(np.std(many["means"], ddof=1), rel=1e-12)
    assert many["stderr_of_std"] == pytest.approx(many["std"] / 2, rel=1e-12)  # sqrt(2 (3 - 1))
    assert "diverged" not in many
    if not retrain:
        alone = [
            estimator_named("rnade", FIXED | {"learning_rate": rate, "random_state": seed}).fit(
                split.train, X_valid=split.valid
            )
            for seed in many["seeds"]
        ]
        assert len({tuple(model.model_.ordering.order.tolist()) for model in alone}) > 1
        means = [model.score(split.test) for model in alone]
        np.testing.assert_allclose(many["means"], means, atol=2e-3)
        assert many["std"] == pytest.approx(np.std(means, ddof=1), abs=2e-3)
    assert many["std"] > 0.01  # seeds differ by more than these tolerances
    assert record["spec"] == once["spec"] | {"repeats": 3}
    assert "--repeats 3 --seed 3" in record["commands"][0]
    assert "trained with 3 seeds" in record["protocol"]
    assert set(record) == set(once) | {"repeats"}  # without repeats nothing is said of them
    assert not any("repeats" in str(once[name]) for name in ("spec", "commands", "protocol"))


@pytest.mark.parametrize("epoch", [1, 4], ids=["before", "within"])
def test_a_sweep_interrupted_before_or_within_its_repeats_goes_on(split, tmp_path, monkeypatch, epoch):
    monkeypatch.setattr("pynade.training.checkpoint.CHECKPOINT_SECONDS", 0.0)
    options = {"retrain": False, "repeats": 3}

    class Killed(Exception):
        pass

    def kill(p):
        if p.phase == "final" and p.now.epoch == epoch:
            raise Killed

    whole = run_sweep(tmp_path / "a", "rnade", "toy", FIXED, GRID, **options)
    with pytest.raises(Killed):
        run_sweep(tmp_path / "b", "rnade", "toy", FIXED, GRID, report=kill, **options)
    reports = []
    again = run_sweep(tmp_path / "b", "rnade", "toy", FIXED, GRID, report=reports.append, **options)
    assert {(p.phase, len(p.settings)) for p in reports} == {("final", 2)}  # the first seed is the grid's
    assert again["repeats"] == whole["repeats"]
    assert again["test"] == whole["test"]
    with pytest.raises(ValueError, match="other settings"):
        run_sweep(tmp_path / "b", "rnade", "toy", FIXED, GRID, retrain=False, repeats=2)
    with pytest.raises(ValueError, match="other settings"):
        run_sweep(tmp_path / "b", "rnade", "toy", FIXED, GRID, retrain=False)


def test_without_retraining_the_validated_weights_are_scored_as_they_are(split, tmp_path):
    reports = []
    grid = {"learning_rate": [0.02, 0.1], "hidden": [4, 8]}
    fixed = {name: value for name, value in FIXED.items() if name != "hidden"}
    record = run_sweep(tmp_path / "s", "rnade", "toy", fixed, grid, retrain=False, report=reports.append)
    model = load(tmp_path / "s" / "fold-1.safetensors")
    assert {p.phase for p in reports} == {"grid"}
    assert model.hidden == record["chosen"][0]["hidden"]
    best = max(line["valid"][0] for line in record["validation_grid"])
    assert model.score(split.valid) == pytest.approx(record["chosen"][0]["valid"], rel=1e-6)
    assert record["chosen"][0]["valid"] == pytest.approx(best, abs=1e-4)
    assert model.score(split.test) == pytest.approx(record["test"]["mean"], rel=1e-12)


def test_an_architecture_that_diverges_leaves_the_others_and_lost_weights_are_made_again(
    split, tmp_path, monkeypatch
):
    real = populations.fit_population

    def fragile(members, **options):
        histories = real(members, **options)
        if members[0].model.net.hidden == 8:
            for history in histories:
                history.best_epoch, history.best_valid, history.stopped = 0, None, "diverged"
        return histories

    monkeypatch.setattr(populations, "fit_population", fragile)
    fixed = {name: value for name, value in FIXED.items() if name != "hidden"}
    options = {"fixed": fixed, "grid": {"hidden": [8, 4]}, "retrain": False}
    record = run_sweep(tmp_path / "s", "rnade", "toy", **options)
    assert record["chosen"][0]["hidden"] == 4
    assert record["valid"]["mean"] == pytest.approx(record["chosen"][0]["valid"], rel=1e-6)
    (weights,) = (tmp_path / "s").glob("population-*.safetensors")
    weights.unlink()
    assert run_sweep(tmp_path / "s", "rnade", "toy", **options)["test"] == record["test"]
    assert weights.is_file()


def test_all_shares_of_dropout_are_one_population(folds, tmp_path):
    reports = []
    fixed = FIXED | {"n_components": 2}
    run_sweep(tmp_path / "s", "deep-rnade", "toy", fixed, {"dropout": [0.0, 0.2, 0.5]}, report=reports.append)
    assert {(p.parts, len(p.settings)) for p in reports if p.phase == "grid"} == {(1, 6)}


def test_repeats_of_ensembles_are_scored_as_ensembles_and_name_those_that_diverged(
    split, tmp_path, monkeypatch
):
    real = populations.fit_population

    def fragile(members, **options):
        histories = real(members, **options)
        if len(members) == 2:  # the seeds after the grid's
            histories[1].stopped = "diverged"
        return histories

    monkeypatch.setattr(populations, "fit_population", fragile)
    fixed = FIXED | {"family": "gaussian", "n_orderings": 2, "hidden": [6], "learning_rate": 0.01}
    record = run_sweep(tmp_path / "s", "deep-rnade", "toy", fixed, {}, retrain=False, repeats=3)
    assert record["repeats"]["means"][0] == record["test"]["mean"] == record["ensembles"]["2"]["mean"]
    assert record["repeats"]["diverged"] == [2]
    assert np.isfinite(record["repeats"]["std"])


def test_repeats_of_folds_baselines_and_given_seeds_are_refused(split, tmp_path):
    for model, fixed, options, words in (
        ("rnade", FIXED, {"repeats": 0}, "at least 1, not 0"),
        ("mog", {}, {"repeats": 2}, "'mog' is not"),
        ("rnade", FIXED, {"repeats": 2, "folds": 3}, "not for 3 folds"),
        ("rnade", FIXED | {"random_state": 1}, {"repeats": 2}, "leave random_state out"),
    ):
        with pytest.raises(ValueError, match=words) as error:
            run_sweep(tmp_path / "x", model, "toy", fixed, {}, **options)
        assert "\n" not in str(error.value)
        assert not (tmp_path / "x").exists()
    with pytest.raises(ValueError, match="leave random_state out"):
        run_sweep(tmp_path / "x", "rnade", "toy", FIXED, {"random_state": [0, 1]}, repeats=2)
