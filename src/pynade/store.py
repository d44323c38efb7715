"""Saved models: one safetensors file with the full spec in its metadata.

No pickle: the file holds tensors and JSON. Loading builds only the classes named in `KINDS`, on the meta
device (no memory, no initial weights), and then puts the tensors in; nothing in a file is executed.
"""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from pynade._version import __version__
from pynade.atomic import write_atomically
from pynade.models import RBM, Density, Orderless
from pynade.ordering import Ordering

FORMAT = 1  # of the metadata; raise it when an old reader would misunderstand a new file

KINDS = {
    "Autoregressive": "pynade.models",
    "BernoulliMixture": "pynade.models",
    "ChowLiuTree": "pynade.models",
    "Ensemble": "pynade.models",
    "FactorAnalysers": "pynade.models",
    "GaussianMixture": "pynade.models",
    "Independent": "pynade.models",
    "Mixture": "pynade.models",
    "MultivariateGaussian": "pynade.models",
    "NormalisedRBM": "pynade.models",
    "Orderless": "pynade.models",
    "RBM": "pynade.models",
    "TreeMixture": "pynade.models",
    "NADENet": "pynade.nets",
    "MADENet": "pynade.nets",
    "FVSBNNet": "pynade.nets",
    "MaskedMLP": "pynade.nets",
    "MaskedConv": "pynade.nets",
    "Hybrid": "pynade.nets",
    "UNet": "pynade.nets",
    "Transformer": "pynade.nets",
    "CausalTransformer": "pynade.nets",
    "Bernoulli": "pynade.families",
    "Categorical": "pynade.families",
    "DiscretisedLogistic": "pynade.families",
    "FixedVarianceGaussian": "pynade.families",
    "Gaussian": "pynade.families",
    "Laplace": "pynade.families",
    "MixtureOfGaussians": "pynade.families",
    "MixtureOfLaplaces": "pynade.families",
    "MixtureOfLogistics": "pynade.families",
    "SinhArcsinh": "pynade.families",
    "StudentT": "pynade.families",
    "Transformed": "pynade.families",
    "Affine": "pynade.families",
    "Log": "pynade.families",
    "Logit": "pynade.families",
}


def describe(value: Any) -> Any:
    """The spec of a model: nested JSON with a "kind" for every part and its constructor arguments.

    Example:
        >>> from pynade.families import Bernoulli
        >>> from pynade.models import Independent
        >>> describe(Independent(Bernoulli(), 3))
        {'kind': 'Independent', 'family': {'kind': 'Bernoulli'}, 'n_variables': 3}
    """
    if isinstance(value, Ordering):  # the permutation itself is a buffer of the model, stored as a tensor
        return {"kind": "Ordering", "shape": list(value.order.shape)}
    if isinstance(value, torch.nn.Module):
        name = type(value).__name__
        if name not in KINDS:
            raise TypeError(f"a {name} cannot be saved: it is not a part of pynade")
        return {"kind": name} | {k: describe(v) for k, v in value.config().items()}  # type: ignore[operator]
    if isinstance(value, list | tuple):
        return [describe(v) for v in value]
    return value


def build(spec: Any) -> Any:
    """The object a spec describes, with fresh weights (and natural orderings)."""
    if isinstance(spec, list):
        return [build(v) for v in spec]
    if not (isinstance(spec, dict) and "kind" in spec):
        return spec
    arguments = {k: build(v) for k, v in spec.items() if k != "kind"}
    if spec["kind"] == "Ordering":
        *batch, n = arguments["shape"]
        return Ordering.trusted(torch.arange(n).expand(*batch, n).contiguous())
    if spec["kind"] not in KINDS:
        raise ValueError(f"unknown part {spec['kind']!r} in the spec; it may come from a newer pynade")
    return getattr(import_module(KINDS[spec["kind"]]), spec["kind"])(**arguments)


def save_density(
    model: Density | Orderless | RBM, path: Path | str, extra: dict[str, Any] | None = None
) -> None:
    """Write a density, orderless model or RBM to `path`; `extra` facts (JSON) travel in the metadata."""
    from safetensors.torch import save_file

    path = Path(path)
    if not path.parent.is_dir():
        raise ValueError(f"cannot write {path.name}: the folder {path.parent} does not exist")
    header = {"format": FORMAT, "version": __version__, "spec": describe(model)} | (extra or {})
    tensors = {n: t.detach().cpu().contiguous().clone() for n, t in model.state_dict().items()}
    write_atomically(path, lambda p: save_file(tensors, p, {"pynade": json.dumps(header)}))


def load_density(path: Path | str) -> tuple[Density | Orderless | RBM, dict[str, Any]]:
    """Read a density (or orderless model, or RBM) and the metadata it was saved with.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged, is no pynade model, or was written by a newer pynade.
    """
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no model file at {path}")
    try:
        with safe_open(path, framework="pt") as f:
            metadata = f.metadata() or {}
            tensors = {name: f.get_tensor(name) for name in f.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is damaged or no model file: {error}") from None
    if "pynade" not in metadata:
        raise ValueError(f"{path} is a safetensors file, but not one that pynade wrote")
    try:
        header = json.loads(metadata["pynade"])
        number = int(header["format"])
        header.setdefault("version", "unknown")
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"the metadata of {path} is damaged: {error}") from None
    if number > FORMAT:
        raise ValueError(
            f"{path} has format {number}, written by pynade {header.get('version')}; this is pynade "
            f"{__version__}, which reads up to format {FORMAT}: update pynade to load it"
        )
    try:
        with torch.device("meta"):
            model = build(header["spec"])
        if not isinstance(model, Density | Orderless | RBM):
            raise ValueError("it describes no model")
        model.load_state_dict(_laid_out(tensors, model.state_dict()), assign=True)
        for name, tensor in tensors.items():
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                raise ValueError(f"its weights {name!r} are not finite")
        for name, buffer in model.named_buffers():
            if name.split(".")[-1] == "order":
                Ordering(buffer)  # a permutation, or a clear error
    except (ValueError, TypeError, KeyError, RuntimeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} cannot be loaded: {str(error).splitlines()[0]}") from None
    return model, header


def _laid_out(tensors: dict[str, torch.Tensor], like: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copies with the order in memory that the model's own tensors have, and with their alignment.

    A file holds tensors row by row and one right after the other; matrix products of the same numbers can
    differ in the last bit with where these lie.
    """
    return {n: _like(t, like[n]) if n in like and like[n].shape == t.shape else t for n, t in tensors.items()}


def _like(t: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(own.shape, own.stride(), dtype=t.dtype).copy_(t)
