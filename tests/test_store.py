import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import pynade
from pynade.families import Bernoulli
from pynade.models import Autoregressive, Independent
from pynade.nets import NADENet
from pynade.ordering import Ordering
from pynade.store import FORMAT, load_density, save_density


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "model.safetensors"
    save_density(Autoregressive(NADENet(4, hidden=3), Bernoulli(), Ordering([3, 1, 0, 2])), path)
    return path


def rewrite(path, change, tensors=None):
    """The same file with its metadata changed by `change(header)`."""
    with safe_open(path, framework="pt") as f:
        header = json.loads(f.metadata()["pynade"])
        old = {n: f.get_tensor(n) for n in f.keys()}  # noqa: SIM118
    change(header)
    save_file(tensors or old, path, {"pynade": json.dumps(header)})


def test_the_file_is_plain_safetensors_with_the_spec_in_its_metadata(file):
    with safe_open(file, framework="pt") as f:
        header = json.loads(f.metadata()["pynade"])
        assert f.get_tensor("order").tolist() == [3, 1, 0, 2]
    assert header["format"] == FORMAT
    assert header["version"] == pynade.__version__
    assert header["spec"]["net"] == {
        "kind": "NADENet",
        "n_variables": 4,
        "n_params": 1,
        "hidden": 3,
        "n_features": 1,
        "activation": "sigmoid",
    }


def test_truncated_at_every_kind_of_place(file):
    whole = file.read_bytes()
    for size in (0, 1, 7, 8, 20, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:size])
        with pytest.raises(ValueError, match="damaged"):
            load_density(file)


def test_garbage_and_foreign_files(file, tmp_path):
    file.write_bytes(b"not a model" * 100)
    with pytest.raises(ValueError, match="damaged or no model file"):
        load_density(file)
    save_file({"w": torch.zeros(2)}, file)
    with pytest.raises(ValueError, match="not one that pynade wrote"):
        load_density(file)
    with pytest.raises(FileNotFoundError, match="no model file"):
        load_density(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="no finished run folder"):
        pynade.load(tmp_path / "empty")


def test_a_newer_file_says_so(file):
    rewrite(file, lambda h: h.update(format=FORMAT + 1, version="9.9"))
    with pytest.raises(ValueError, match=r"written by pynade 9\.9.*update pynade"):
        load_density(file)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda h: h["spec"].update(kind="Telescope"), "unknown part 'Telescope'"),
        (lambda h: h["spec"]["net"].update(hidden=5), "size mismatch|Error"),
        (lambda h: h["spec"]["net"].update(colour="red"), "colour"),
        (lambda h: h["spec"].update(kind="Bernoulli"), "cannot be loaded"),
        (lambda h: h.pop("spec"), "cannot be loaded"),
        (lambda h: h.pop("format"), "metadata .* damaged"),
        (lambda h: h["spec"]["net"].update(hidden=10**9), "cannot be loaded"),
    ],
)
def test_damaged_specs_build_nothing(file, change, words):
    rewrite(file, change)
    with pytest.raises(ValueError, match=words):
        load_density(file)


def test_an_order_that_is_no_permutation_is_refused(file):
    model, _ = load_density(file)
    tensors = {n: t.clone() for n, t in model.state_dict().items()}
    tensors["order"][0] = 1
    rewrite(file, lambda h: None, tensors)
    with pytest.raises(ValueError, match="permutation"):
        load_density(file)


def test_weights_that_are_not_finite_are_refused(file):
    model, _ = load_density(file)
    tensors = {n: t.clone() for n, t in model.state_dict().items()}
    tensors["net.bias"][0] = float("nan")
    rewrite(file, lambda h: None, tensors)
    with pytest.raises(ValueError, match="not finite"):
        load_density(file)


def test_absurd_metadata_is_one_sentence(file):
    for text in ('{"format": Infinity}', '{"format": 1, "spec": ' + "[" * 100_000 + "]" * 100_000 + "}"):
        save_file({"w": torch.zeros(1)}, file, {"pynade": text})
        with pytest.raises(ValueError, match=r"damaged|cannot be loaded"):
            load_density(file)


def test_only_parts_of_pynade_can_be_saved(tmp_path):
    class Odd(Independent):
        pass

    with pytest.raises(TypeError, match="a Odd cannot be saved"):
        save_density(Odd(Bernoulli(), 2), tmp_path / "m.safetensors")
    with pytest.raises(ValueError, match="does not exist"):
        save_density(Independent(Bernoulli(), 2), tmp_path / "nowhere" / "m.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_loading_takes_no_code_from_the_file(file):
    """A kind is looked up in a fixed table; a dotted path is just an unknown name."""
    rewrite(file, lambda h: h["spec"].update(kind="os.system"))
    with pytest.raises(ValueError, match=r"unknown part 'os\.system'"):
        load_density(file)
