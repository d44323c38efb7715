import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import pynade
from pynade import store
from pynade.families import Bernoulli
from pynade.models import Autoregressive, Independent
from pynade.nets import NADENet
from pynade.ordering import Ordering
from pynade.store import FORMAT, _registered, build, describe, load_density, register, save_density
from tests.families.own import Exponential


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
        (lambda h: h.pop("spec"), "metadata .* damaged"),
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

    with pytest.raises(
        TypeError, match=r"a Odd cannot be saved unless it is registered \(pynade\.register\)"
    ):
        save_density(Odd(Bernoulli(), 2), tmp_path / "m.safetensors")
    with pytest.raises(ValueError, match="does not exist"):
        save_density(Independent(Bernoulli(), 2), tmp_path / "nowhere" / "m.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_loading_takes_no_code_from_the_file(file):
    """A kind is looked up in a fixed table; a dotted path is just an unknown name."""
    rewrite(file, lambda h: h["spec"].update(kind="os.system"))
    with pytest.raises(ValueError, match=r"unknown part 'os\.system'"):
        load_density(file)


# classes of a user


class Halves(NADENet):
    """A net whose input is halved."""

    def __init__(self, n_variables: int, factor: float = 0.5, generator=None) -> None:
        super().__init__(n_variables, hidden=2, generator=generator)
        self.factor = factor

    def parallel(self, features, ordering):
        return super().parallel(self.factor * features, ordering)

    def observe(self, state, i, features):
        return super().observe(state, i, self.factor * features)


class Pair(Independent):
    """A density of two variables that holds a net as well."""

    def __init__(self, family, net, names=("a", "b"), options=None) -> None:
        super().__init__(family, net.n_variables)
        self.net, self.names, self.options = net, list(names), options or {}

    def _log_prob(self, x):
        return super()._log_prob(x) + self.net.bias.sum().double()


@pytest.fixture
def registered():
    """These three classes, registered for one test."""
    parts = [Exponential, Halves, Pair]
    yield [register(part) for part in parts]
    for part in parts:
        _registered.pop(part.__name__, None)


def own_model():
    net = Halves(2, factor=0.25, generator=torch.Generator().manual_seed(0))
    return Pair(Exponential(0.7), net, ("age", "pay"), {"depth": {"most": 3}})


def test_a_registered_family_net_and_density_are_saved_and_loaded(registered, tmp_path):
    model, path = own_model(), tmp_path / "m.safetensors"
    save_density(model, path)
    loaded, header = load_density(path)
    assert [type(part) for part in (loaded.family, loaded.net, loaded)] == registered
    assert header["spec"]["net"] == {"kind": "Halves", "n_variables": 2, "factor": 0.25}
    assert (loaded.names, loaded.options, loaded.family.shrink) == (
        ["age", "pay"],
        {"depth": {"most": 3}},
        0.7,
    )
    x = torch.rand(5, 2)
    assert torch.equal(loaded.log_prob(x), model.log_prob(x))


FRESH = """
import sys
from pynade.store import load_density, register
import torch
path, first = sys.argv[1:]
if first == "register":
    from tests.families.own import Exponential
    from tests.test_store import Halves, Pair
    for part in (Exponential, Halves, Pair):
        register(part)
try:
    print(load_density(path)[0].log_prob(torch.ones(1, 2)).item())
except ValueError as error:
    print(error)
print("tests.families.own" in sys.modules)
"""


def test_a_fresh_process_loads_after_registering_and_refuses_before(registered, tmp_path):
    path = tmp_path / "m.safetensors"
    save_density(own_model(), path)

    def run(first):
        command = [sys.executable, "-c", FRESH, str(path), first]
        root = Path(__file__).parents[1]
        out = subprocess.run(command, capture_output=True, text=True, cwd=root, check=True, env=None)
        return out.stdout.splitlines()

    refusal, imported = run("nothing")
    assert "unknown part 'Exponential'" in refusal
    assert "pynade.register" in refusal
    assert imported == "False"  # the file names a class, and names import nothing
    assert float(run("register")[0]) == own_model().log_prob(torch.ones(1, 2)).item()


def test_names_must_be_free(registered):
    class Bernoulli(Exponential):
        pass

    class Ordering(Exponential):
        pass

    taken = type("Halves", (Exponential,), {})
    for part in (Bernoulli, Ordering):
        with pytest.raises(ValueError, match=f"{part.__name__} is the name of a part of pynade"):
            register(part)
    with pytest.raises(ValueError, match=r"Halves is already registered, as tests\.test_store\.Halves"):
        register(taken)
    register(Halves)  # once more is no clash, nor is the same class defined again, as in a notebook
    with pytest.raises(TypeError, match="only classes of nets, families and densities"):
        register(print)
    with pytest.raises(TypeError, match="only classes of nets, families and densities"):
        register(dict)


def test_what_cannot_be_saved_is_refused_in_one_sentence(registered):
    class Careless(Exponential):
        def __init__(self, rate=1.0):
            super().__init__()

    model = own_model()
    for value in (torch.ones(2), print, {"kind": "Pair"}):
        model.options = value
        with pytest.raises(TypeError, match="cannot be saved"):
            describe(model)
    register(Careless)
    try:
        with pytest.raises(TypeError, match="does not store its constructor argument 'rate'"):
            describe(Careless())
    finally:
        _registered.pop("Careless")


def test_building_executes_nothing_but_constructors_of_known_classes():
    for kind in ("print", "builtins.print", "__import__", "Density", "standardised", "ancestral", ""):
        with pytest.raises((ValueError, TypeError)):
            build({"kind": kind})
    assert build({"plain": [1, {"nested": "text"}]}) == {"plain": [1, {"nested": "text"}]}


# sizes, types and places of files


DEEP = {"kind": "TransformerNet", "n_variables": 4, "depth": 10**7}
CONVOLUTIONS = {"kind": "MaskedConv", "image_shape": [2, 2], "blueprint": "1@1x1(same)->" * 10**5}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda h: h["spec"]["net"].update(hidden=float("inf")), "up to 16,777,216, not inf"),
        (lambda h: h["spec"]["net"].update(hidden=10**30), r"hidden = 1e\+30, too large for its \d+ tensors"),
        (lambda h: h["spec"]["ordering"].update(shape=[10**30]), r"shape = 1e\+30, too large"),
        (lambda h: h["spec"].update(net=DEEP), r"depth = 1e\+07, too large for its \d+ tensors"),
        (lambda h: h["spec"].update(net={"kind": "MADENet", "hidden": [10**7] * 3}), r"hidden = 1e\+07"),
        (
            lambda h: h["spec"].update(net={"kind": "MADENet", "hidden": [1] * 10**5}),
            "100,000 numbers as",
        ),
        (lambda h: h["spec"].update(net=CONVOLUTIONS), r"100,000 layers as blueprint, too many for"),
        (lambda h: h["spec"]["net"].update(hidden=-1), "cannot be loaded"),
        (lambda h: h["spec"]["ordering"].pop("shape"), "KeyError: 'shape'"),
        (lambda h: h["spec"].update(net={"kind": "TableBlend", "parts": [], "weights": []}), "IndexError"),
    ],
)
def test_sizes_that_the_file_cannot_fill_are_refused_before_building(file, change, words, monkeypatch):
    rewrite(file, change)
    if "too large" in words or "hidden = " in words or "100,000" in words:
        monkeypatch.setattr("pynade.store.build", lambda spec: pytest.fail("built"))
    with pytest.raises(ValueError, match=words) as error:
        load_density(file)
    assert str(file) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "tensor", "words"),
    [
        ("net.bias", None, r"it has no tensor 'net\.bias'"),
        ("other", torch.zeros(2), "its tensor 'other' is none of the model's"),
        ("net.bias", torch.zeros(7), r"size mismatch of 'net\.bias': \(7,\), expected \("),
        (
            "net.bias",
            torch.zeros(4, 1, dtype=torch.int8),
            r"'net\.bias' is of torch\.int8, expected torch\.float32",
        ),
        ("net.bias", torch.zeros(4, 1, dtype=torch.complex64), r"is of torch\.complex64"),
        ("net.bias", torch.zeros(4, 1, dtype=torch.float8_e4m3fn), r"is of torch\.float8_e4m3fn"),
        ("order", torch.tensor([0.0, 1, 2, 3]), r"'order' is of torch\.float32, expected torch\.int64"),
        ("order", torch.ones(4, dtype=torch.bool), r"'order' is of torch\.bool"),
    ],
)
def test_tensors_that_do_not_fit_the_spec_are_named(file, name, tensor, words):
    tensors = {n: t.clone() for n, t in load_density(file)[0].state_dict().items()}
    if tensor is None:
        tensors.pop(name)
    else:
        tensors[name] = tensor.reshape(tensors[name].shape) if tensor.numel() == 4 else tensor
    rewrite(file, lambda h: None, tensors)
    with pytest.raises(ValueError, match=words) as error:
        load_density(file)
    assert str(error.value).startswith(f"{file} cannot be loaded: ")
    assert "\n" not in str(error.value)


def test_finite_weights_whose_sum_overflows_are_loaded(file):
    tensors = {n: t.clone() for n, t in load_density(file)[0].state_dict().items()}
    tensors["net.bias"].fill_(3e38)
    rewrite(file, lambda h: None, tensors)
    assert (load_density(file)[0].net.bias == 3e38).all()
    tensors["net.bias"][0] = -torch.inf
    rewrite(file, lambda h: None, tensors)
    with pytest.raises(ValueError, match=r"'net\.bias' are not finite"):
        load_density(file)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_of_other_widths_are_loaded(file, dtype):
    tensors = {
        n: t.to(dtype) if t.is_floating_point() else t for n, t in load_density(file)[0].state_dict().items()
    }
    rewrite(file, lambda h: None, tensors)
    assert load_density(file)[0].net.bias.dtype == dtype


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), PermissionError(13, "Permission denied")]
)
def test_a_full_disk_names_the_file(file, monkeypatch, error):
    whole = file.read_bytes()

    def fail(path, content):
        path.write_text("half")
        raise error

    monkeypatch.setattr(store, "write_with_digest", fail)
    with pytest.raises(OSError, match=rf"^cannot write {file}: (No space|Permission denied)") as found:
        save_density(Independent(Bernoulli(), 2), file)
    assert type(found.value) is type(error)
    assert file.read_bytes() == whole
    assert list(file.parent.iterdir()) == [file]
