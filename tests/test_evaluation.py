"""Exact scores of nets that run whole, estimates with honest error bars, and work shared by processes."""

import subprocess
import sys
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import torch

import pynade
from pynade.evaluation import control_variate_ensemble, score_orderings
from pynade.families import Bernoulli
from pynade.likelihood import estimate_rows, orderless_estimate
from pynade.models import Orderless
from pynade.nets import (
    CausalTransformer,
    Hybrid,
    MaskedConv,
    MaskedMLP,
    NADENet,
    Transformer,
    UNet,
)
from pynade.ordering import Ordering
from tests.contracts.cases import generator, net

WHOLE = ["conv", "hybrid", "unet", "transformer"]
CPU = torch.device("cpu")


def orderless(name="conv", D=6, seed=0, scale=0.4):
    model = Orderless(net(name, D, seed), Bernoulli())
    for p in model.parameters():
        p.data *= scale
    return model


def rows(n, D=6, seed=1):
    base = torch.rand(n, 1, generator=generator(seed)) < 0.5
    flip = torch.rand(n, D, generator=generator(seed + 1)) < 0.2
    return (base ^ flip).double()


@pytest.mark.parametrize("name", WHOLE)
def test_scores_do_not_depend_on_the_chunks(name):
    model, x = orderless(name), rows(7)
    orderings = Ordering.random(6, k=3, generator=generator(2))
    whole = score_orderings(model, x, orderings).log_probs
    for at_once in (1, 4, 7, 15):
        part = score_orderings(model, x, orderings, rows_at_once=at_once).log_probs
        np.testing.assert_allclose(part, whole, rtol=0, atol=1e-10)
    each = [model.under(o).log_prob(x).detach().numpy() for o in orderings]
    np.testing.assert_allclose(whole.T, each, rtol=0, atol=1e-10)


def test_rows_at_once_follow_the_memory_a_net_needs():
    small, large = UNet((28, 28), width=16), UNet((28, 28), width=64)
    assert 1 <= large.rows_at_once(CPU) < small.rows_at_once(CPU) < 4000
    assert MaskedMLP(784).rows_at_once(CPU) == NADENet(784).rows_at_once(CPU) == 4000
    conv, deep = MaskedConv((28, 28)), MaskedMLP(784, hidden=(500, 500))
    parts = conv.row_floats
    assert Hybrid(conv, deep).row_floats > parts
    assert Transformer(63, 60).rows_at_once(CPU) < 4000
    assert CausalTransformer(63, 60).rows_at_once(CPU) < 4000
    huge = UNet((512, 512), width=64, multipliers=(1,), attention=())
    assert huge.rows_at_once(CPU) == 1


@pytest.mark.parametrize("name", WHOLE)
def test_the_estimate_agrees_with_exact_scores_within_its_error_bars(name):
    model, x = orderless(name, D=4), rows(40, D=4)
    exact = score_orderings(model, x, Ordering(list(permutations(range(4))))).log_probs.mean(1)
    z = []
    for seed in range(12):
        estimate = orderless_estimate(model, x, draws=8, seed=seed, batch_size=100)
        assert not estimate.exact
        assert estimate.n == 40
        assert estimate.mc_stderr > 0
        z.append((estimate.mean - exact.mean()) / estimate.mc_stderr)
    assert np.abs(z).max() < 4
    assert 0.2 < np.std(z) < 1.6  # strata make it smaller than 1
    means, variances = estimate_rows(model, x, 400, 1, None, "float32", None)
    assert np.abs((means - exact) / np.sqrt(variances)).max() < 5


def test_batches_of_an_estimate_only_decide_which_prefixes_are_drawn():
    model, x = orderless("conv"), rows(30)
    seen = []
    a = orderless_estimate(model, x, draws=2, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (30, 30)
    assert a == orderless_estimate(model, x, draws=2)
    assert a != orderless_estimate(model, x, draws=2, batch_size=7)


def test_the_control_variate_ensemble_is_the_ensemble_within_its_error_bars():
    model = orderless("mlp-norm", scale=1.0)
    orderings = Ordering.random(6, k=5, generator=generator(3))
    z, second, single = [], [], []
    for seed in range(25):
        x = rows(200, seed=10 * seed)
        whole = score_orderings(model, x, orderings)
        made = control_variate_ensemble(model, x, orderings, every=10, draws=8, seed=seed)
        assert made.subset.log_probs.shape == (20, 5)
        np.testing.assert_allclose(made.subset.log_probs, whole.log_probs[::10], rtol=0, atol=1e-12)
        number, exact = made.ensemble, whole.ensemble()
        assert (number.n, number.exact) == (200, False)
        z.append((number.mean - exact.mean) / number.mc_stderr)
        opinion = made.by_exact_means()
        second.append((opinion.mean - exact.mean) / opinion.mc_stderr)
        single.append((made.typical.mean - exact.mean) / number.mc_stderr)
        assert number.stderr >= number.mc_stderr
        assert number.stderr == pytest.approx(np.hypot(exact.stderr, number.mc_stderr), rel=0.5)
    assert abs(np.mean(z)) < 1
    assert abs(np.mean(second)) < 2  # the same five orderings every time
    assert np.std(second) < 1.5
    assert 0.6 < np.std(z) < 1.5
    assert (
        np.mean(single) < -0.5
    )  # the typical ordering is worse than the ensemble: there is something to correct
    everything = control_variate_ensemble(model, x, orderings, every=1, draws=2)
    assert everything.ensemble.mean == pytest.approx(exact.mean, abs=1e-9)
    assert everything.ensemble.mc_stderr == 0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m, x, o: control_variate_ensemble(m, x, o, every=0), "every must be at least 1"),
        (lambda m, x, o: control_variate_ensemble(m, x, o, every=99), "leaves 1 of 7 rows"),
        (lambda m, x, o: score_orderings(m, x, o, precision="int8"), "unknown precision 'int8'"),
    ],
)
def test_bad_requests(call, words):
    with pytest.raises(ValueError, match=words):
        call(orderless(), rows(7), Ordering.random(6, k=2))


WORKER = """
import sys
from pathlib import Path
import numpy as np
import torch
torch.set_num_threads(1)
from pynade.evaluation import score_orderings
from pynade.likelihood import orderless_estimate
from pynade.ordering import Ordering
from pynade.processes import rank_and_size, together
from pynade.store import load_density

folder = Path(sys.argv[1])
model, _ = load_density(folder / "m.safetensors")
x = torch.from_numpy(np.load(folder / "x.npy"))
orderings = Ordering(torch.from_numpy(np.load(folder / "orders.npy")))
with together() as rank:
    assert rank_and_size() == (rank, 2)
    done = []
    own = sys.argv[2] == "own"  # disks of their own, and chunks of the usual size
    place = folder / (f"chunks-{rank}" if own else "chunks")
    how = {"rows_at_once": None if own else 4, "progress": lambda d, t: done.append(d)}
    scores = score_orderings(model, x, orderings, folder=place, **how)
    estimate = orderless_estimate(model, x, draws=4, seed=3, batch_size=8)
    mine = done[-1] if done else 0
    np.savez(folder / f"{rank}.npz", scores=scores.log_probs, mean=estimate.mean, mine=mine)
"""


def test_two_processes_share_the_work_and_both_have_all_of_it(tmp_path):
    from pynade.store import save_density

    model, x = orderless("conv"), rows(10)
    orderings = Ordering.random(6, k=4, generator=generator(2))
    save_density(model, tmp_path / "m.safetensors")
    np.save(tmp_path / "x.npy", x.numpy())
    np.save(tmp_path / "orders.npy", orderings.order.numpy())
    (tmp_path / "worker.py").write_text(WORKER)
    expected = score_orderings(model, x, orderings).log_probs

    def torchrun(disks):
        words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        words += ["worker.py", ".", disks]
        done = subprocess.run(
            [sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return [np.load(tmp_path / f"{rank}.npz") for rank in (0, 1)]

    # chunks of an earlier, killed call by one process on its own
    class Killed(Exception):
        pass

    def kill(done, total):
        if done >= 16:
            raise Killed

    with pytest.raises(Killed):
        score_orderings(model, x, orderings, folder=tmp_path / "chunks", rows_at_once=4, progress=kill)
    kept = {p: p.stat().st_mtime_ns for p in tmp_path.glob("chunks-*/*.safetensors")}
    assert len(kept) == 4
    both = torchrun("one")
    for result in both:
        np.testing.assert_allclose(result["scores"], expected, rtol=0, atol=1e-12)
        alone = orderless_estimate(model, x, draws=4, seed=3, batch_size=8).mean
        assert float(result["mean"]) == pytest.approx(alone, abs=1e-12)
    assert sum(int(r["mine"]) for r in both) == expected.size
    assert all(int(r["mine"]) > 0 for r in both)
    for file, time in kept.items():
        assert file.stat().st_mtime_ns == time
    assert len({file.parent for file in tmp_path.glob("chunks-*/*")}) == 1

    for again in range(2):  # machines that share no disk: from nothing, then from what each of them has
        both = torchrun("own")
        for result in both:
            np.testing.assert_allclose(result["scores"], expected, rtol=0, atol=1e-12)
        shares = [int(r["mine"]) for r in both]
        assert shares == ([expected.size // 2] * 2 if again == 0 else [expected.size, 0])
        if again == 0:
            next(tmp_path.glob("chunks-1-*/*.safetensors")).unlink()


def test_smaller_corrected_ensembles_follow_from_the_largest():
    source = torch.Generator().manual_seed(0)
    model = Orderless(MaskedMLP(5, hidden=(6,), generator=source), Bernoulli()).double()
    rows = torch.randint(0, 2, (60, 5), generator=source).double()
    orderings = Ordering.random(5, 4, source)
    largest = control_variate_ensemble(model, rows, orderings, every=3)
    for k in (1, 2, 4):
        alone = control_variate_ensemble(model, rows, orderings[:k], every=3).ensemble
        assert largest.of(k).mean == pytest.approx(alone.mean, abs=1e-12)
    assert largest.of(4) == largest.ensemble


@pytest.mark.parametrize("name", ["NADE", "MADE", "DeepNADE", "BinaryTransformerNADE"])
def test_at_most_four_calls_lead_from_score_samples_to_the_arithmetic(name, monkeypatch):
    small = {"width": 8, "depth": 1, "heads": 2} if "Transformer" in name else {"hidden": 3}
    model = getattr(pynade, name)(**small, epochs=1, random_state=0)
    x = np.random.default_rng(0).integers(0, 2, (20, 4)).astype(float)
    kind, depths = type(model.fit(x).model_.net), []
    method = "predict" if isinstance(model.model_, Orderless) else "parallel"
    original = getattr(kind, method)

    def counted(*arguments, **options):
        frame, own = sys._getframe(1), []
        while frame.f_code.co_name != "score_samples":
            own += [frame.f_code.co_name] if "pynade" in Path(frame.f_code.co_filename).parts else []
            frame = frame.f_back
        depths.append(len(own) + 1)  # and the net's own method
        return original(*arguments, **options)

    monkeypatch.setattr(kind, method, counted)
    assert np.isfinite(model.score_samples(x)).all()
    assert max(depths) <= 4
