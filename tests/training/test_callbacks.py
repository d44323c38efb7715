"""Callbacks for TensorBoard and MLflow log what the history says."""

import sys
import types

import numpy as np
import pytest

import pynade
from pynade.training import Progress, to_mlflow, to_tensorboard


@pytest.fixture(params=["gradient", "settings"])
def fitted(request):
    """Fits a model with these callbacks: by gradient descent, or two settings by EM in turn."""
    X = np.random.default_rng(0).integers(0, 2, (60, 5)).astype(float)
    if request.param == "gradient":
        model = pynade.NADE(hidden=4, epochs=4, random_state=0)
    else:
        model = pynade.BernoulliMixture(n_components=(2, 3), epochs=4, tol=1e-12, random_state=0)
    return lambda *callbacks: model.fit(X, callbacks=callbacks)


class Kept:
    """A callback that keeps the ends of epochs; what it was called with is what the others should log."""

    def __init__(self):
        self.ends = []

    def __call__(self, now):
        self.ends += [now] if now.epoch_done else []

    def check(self, logged):
        """The logged pairs of step and value, by name, are those of the epochs."""
        steps = [now.update for now in self.ends]
        assert steps == sorted(set(steps))  # also where settings are learned one after the other
        wanted = {"train": [now.train for now in self.ends], "epoch": [now.epoch for now in self.ends]}
        wanted |= {"valid": [now.valid.mean for now in self.ends]}
        wanted |= {"best_valid": [now.best_valid for now in self.ends]}
        if np.isfinite(self.ends[0].learning_rate):
            wanted["learning_rate"] = [now.learning_rate for now in self.ends]
        assert set(logged) == set(wanted)
        for name, values in wanted.items():
            assert [step for step, _ in logged[name]] == steps
            assert [value for _, value in logged[name]] == pytest.approx(values)
        assert len(self.ends) >= 4


def test_tensorboard_reads_what_was_written(fitted, tmp_path):
    pytest.importorskip("tensorboard", reason="the package tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    kept = Kept()
    fitted(kept, to_tensorboard(tmp_path / "new" / "logs"))
    found = EventAccumulator(str(tmp_path / "new" / "logs")).Reload()
    logged = {tag: [(e.step, e.value) for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]}
    kept.check(logged)


def test_mlflow_reads_what_was_logged(fitted, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")  # no test uses a network
    mlflow = pytest.importorskip("mlflow", reason="the package mlflow is not installed")
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    try:
        kept, named = Kept(), Kept()
        with mlflow.start_run() as run:
            fitted(kept, to_mlflow())
        client = mlflow.MlflowClient()
        other = client.create_run(run.info.experiment_id).info.run_id
        fitted(named, to_mlflow(other))
        for callback, run_id in ((kept, run.info.run_id), (named, other)):
            names = client.get_run(run_id).data.metrics
            history = {name: client.get_metric_history(run_id, name) for name in names}
            callback.check({name: [(m.step, m.value) for m in lines] for name, lines in history.items()})
        assert mlflow.active_run() is None
    finally:
        mlflow.set_tracking_uri(before)


def test_mlflow_gets_the_metrics_of_every_epoch(fitted, monkeypatch):
    """Without the package: what is passed to it."""
    logged: dict[str, list] = {}

    def log_metrics(metrics, step, run_id):
        assert run_id == "mine"
        for name, value in metrics.items():
            logged.setdefault(name, []).append((step, value))

    monkeypatch.setitem(sys.modules, "mlflow", types.SimpleNamespace(log_metrics=log_metrics))
    kept = Kept()
    fitted(kept, to_mlflow("mine"))
    kept.check(logged)


def test_nothing_is_logged_within_an_epoch_or_that_is_not_a_number(monkeypatch):
    calls = []
    stub = types.SimpleNamespace(log_metrics=lambda metrics, step, run_id: calls.append((step, metrics)))
    monkeypatch.setitem(sys.modules, "mlflow", stub)
    callback = to_mlflow()
    callback(Progress(None, 1, 2, 5, 20, 0.1, -3.0, epoch_done=False))
    callback(Progress(None, 1, 2, 10, 20, np.nan, -2.0, epoch_done=True))
    assert calls == [(10, {"train": -2.0, "epoch": 1})]


@pytest.mark.parametrize(("make", "module"), [(to_mlflow, "mlflow"), (to_tensorboard, "tensorboard")])
def test_a_missing_package_is_named_before_training(make, module, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    with pytest.raises(
        ImportError, match=rf"needs the package {module}: `pip install 'pynade\[{module}\]'`$"
    ):
        make(tmp_path / "logs")
    assert list(tmp_path.iterdir()) == []
