"""A family, a net and an estimator defined outside the package: contracts, files, command line."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import pynade
from pynade.models import Autoregressive, Orderless
from pynade.ordering import Ordering
from tests.contracts.cases import all_states, generator, shaken

MODULE = Path(__file__).with_name("own_classes.py")


@pytest.fixture(scope="module")
def own():
    from tests.estimators import own_classes

    return own_classes


def test_the_family_and_the_net_keep_the_contracts(own):
    D = 3
    net = shaken(own.SharedNet(D, n_params=own.Trinary().n_params, n_features=3))
    density = Autoregressive(net, own.Trinary(), Ordering([2, 0, 1]))
    states = torch.cartesian_prod(*[torch.arange(3.0, dtype=torch.float64)] * D)
    assert torch.isclose(density.log_prob(states).exp().sum(), torch.tensor(1.0).double())
    orderless = Orderless(net, own.Trinary())
    for order in ([0, 1, 2], [1, 2, 0]):
        log_p = orderless.under(Ordering(order)).log_prob(states)
        assert torch.isclose(log_p.exp().sum(), torch.tensor(1.0).double())
    drawn = density.sample(4000, generator())
    shares = torch.stack([(drawn == k).double().mean(0) for k in range(3)], -1)
    exact = torch.stack([density.log_prob(states).exp() @ (states == k).double() for k in range(3)], -1)
    assert torch.allclose(shares, exact, atol=0.05)
    assert len(all_states(D)) == 8


def test_the_estimator_fits_scores_samples_fills_saves_and_loads(own, tmp_path):
    X = np.random.default_rng(0).integers(0, 3, (300, 1)).repeat(3, axis=1).astype(float)
    model = own.TrinaryNADE(width=16, epochs=60, learning_rate=0.02, random_state=0).fit(X)
    assert model.score(X) > -2.5  # independent columns: 3 log 3 = 3.3; the entropy is 1.1
    assert set(np.unique(model.sample(50, random_state=0))) <= {0.0, 1.0, 2.0}
    gaps = X[:20].copy()
    gaps[:, 1] = np.nan
    assert (model.impute(gaps)[:, 1] == X[:20, 1]).mean() > 0.9
    model.save(tmp_path / "own.safetensors")
    again = pynade.load(tmp_path / "own.safetensors")
    assert type(again) is own.TrinaryNADE
    assert np.array_equal(again.score_samples(X), model.score_samples(X))
    assert "width: numbers in the shared layer" in own.TrinaryNADE.__doc__


def test_loading_needs_the_classes_to_be_registered(own, tmp_path):
    X = np.random.default_rng(0).integers(0, 3, (40, 2)).astype(float)
    own.TrinaryNADE(epochs=1, random_state=0).fit(X).save(tmp_path / "own.safetensors")
    code = "import sys, pynade; pynade.load(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "own.safetensors")], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "register" in done.stderr.splitlines()[-1]


def test_the_command_line_knows_a_registered_estimator(tmp_path):
    rows = np.random.default_rng(0).integers(0, 3, (60, 3))
    np.savetxt(tmp_path / "rows.csv", rows, "%d", ",", header="a,b,c", comments="")
    (tmp_path / "own_classes.py").write_text(MODULE.read_text(encoding="utf-8"), encoding="utf-8")

    def pynade_command(*words):
        code = "from pynade.cli.main import main; main()"
        line = [sys.executable, "-c", code, "--import", "own_classes", *words]
        return subprocess.run(line, capture_output=True, text=True, cwd=tmp_path, check=True).stdout

    help_ = pynade_command("fit", "--model", "trinarynade", "--help").replace("│", " ")
    assert "Numbers in the shared layer" in " ".join(help_.split())
    fitted = pynade_command("fit", "rows.csv", "--model", "trinarynade", "--width", "4", "--epochs", "2")
    assert "runs/rows-trinarynade: 2 epochs" in fitted.replace("\n", " ")
    assert "nats (n = 60, exact)" in pynade_command("score", "runs/rows-trinarynade", "rows.csv")
    assert len(pynade_command("sample", "runs/rows-trinarynade", "-n", "5").splitlines()) >= 5
