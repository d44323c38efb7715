"""Saved models: one safetensors file with the full spec in its metadata.

Loading builds a model from classes of pynade and registered classes only, on the meta device, and then
assigns the tensors; nothing in a file is executed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from pynade._version import __version__
from pynade.atomic import write_atomically
from pynade.digest import BLANK, FORMAT, Damaged, read_entries, read_header, verify_digest, write_with_digest
from pynade.models.density import Model
from pynade.ordering import Ordering

LAYERS = ("depth", "blocks")  # entries of a spec that are numbers of layers, each with its own tensors
LISTED = ("hidden", "hybrid", "multipliers")  # entries of a spec that are lists with an item for each layer
WEIGHTS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
MODULES = ("pynade.models", "pynade.classical", "pynade.nets", "pynade.families")
Part = TypeVar("Part", bound=type[torch.nn.Module])
_registered: dict[str, type[torch.nn.Module]] = {}


def register(part: Part) -> Part:
    """Register a user's net, family or density, so that it can be saved and loaded; usable as a decorator.

    Its constructor arguments must be JSON or parts of a model, and it must store them under their names or
    have a `config` method that returns them. The class must be registered before a file is loaded.

    Args:
        part: the class; its name must differ from those in pynade and of other registered classes.

    Example:
        >>> from pynade.families import Bernoulli
        >>> @register
        ... class Coin(Bernoulli):
        ...     pass
        >>> describe(Coin())
        {'kind': 'Coin'}
    """
    if not (isinstance(part, type) and issubclass(part, torch.nn.Module)):
        raise TypeError(f"only classes of nets, families and densities can be registered, not {part!r}")
    name, known = part.__name__, _registered.get(part.__name__)
    if name == "Ordering" or (known is None and _find_class(name) is not None):
        raise ValueError(f"{name} is the name of a part of pynade; give your class another name")
    if known is not None and (known.__module__, known.__qualname__) != (part.__module__, part.__qualname__):
        raise ValueError(f"{name} is already registered, as {known.__module__}.{known.__qualname__}")
    _registered[name] = part
    return part


def _find_class(name: str) -> type[torch.nn.Module] | None:
    """The class of pynade, or the registered class, with this name; None if there is none."""
    if name in _registered:
        return _registered[name]
    part = next((getattr(m, name) for m in map(import_module, MODULES) if name in m.__all__), None)
    return part if isinstance(part, type) and issubclass(part, torch.nn.Module) else None


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
        if _find_class(name) is not type(value):
            raise TypeError(f"a {name} cannot be saved unless it is registered (pynade.register)")
        return {"kind": name} | {k: describe(v) for k, v in value.config().items()}  # type: ignore[operator]
    if isinstance(value, list | tuple):
        return [describe(v) for v in value]
    if isinstance(value, dict) and "kind" not in value:
        return {name: describe(v) for name, v in value.items()}
    if value is None or isinstance(value, str | int | float):
        return value
    raise TypeError(
        f"a constructor argument is {value!r}, which cannot be saved: it is neither JSON nor a part"
    )


def build(spec: Any) -> Any:
    """The object that a spec describes, with new weights (and natural orderings)."""
    if isinstance(spec, list):
        return [build(v) for v in spec]
    if not isinstance(spec, dict):
        return spec
    if "kind" not in spec:
        return {name: build(v) for name, v in spec.items()}
    arguments = {k: build(v) for k, v in spec.items() if k != "kind"}
    if spec["kind"] == "Ordering":
        *batch, n = arguments["shape"]
        return Ordering.trusted(torch.arange(n).expand(*batch, n).contiguous())
    kind = _find_class(spec["kind"])
    if kind is None:
        raise ValueError(
            f"unknown part {spec['kind']!r} in the spec: a newer pynade, or a class that must be registered "
            "before loading (pynade.register)"
        )
    return kind(**arguments)


def save_density(model: Model, path: Path | str, extra: dict[str, Any] | None = None) -> None:
    """Write a density, orderless model or RBM to `path`, with `extra` entries (JSON) in the metadata."""
    path = Path(path)
    if not path.parent.is_dir():
        raise ValueError(f"cannot write {path.name}: the folder {path.parent} does not exist")
    header = {"format": FORMAT, "version": __version__, "spec": describe(model)} | (extra or {})
    write_tensors(path, model.state_dict(), {"pynade": json.dumps(header)})


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor], metadata: dict[str, str]) -> None:
    """Write a safetensors file with its digest in the metadata."""
    flat = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    content = save(flat, metadata | {"digest": BLANK.decode()})
    write_atomically(path, lambda p: write_with_digest(p, content))


def read_tensors(path: Path, kind: str, description: str) -> tuple[dict[str, torch.Tensor], Any]:
    """Tensors and the JSON metadata `kind` of a file of `write_tensors`, named by `description` in errors."""
    try:
        facts = json.loads(read_entries(path, kind)[0][kind])
        return load_file(path), facts
    except (SafetensorError, KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged(f"{path} is damaged or no {description}: {error}") from None


def load_density(path: Path | str) -> tuple[Model, dict[str, Any]]:
    """A density (or orderless model, or RBM) from a file, and its metadata; errors as in `read_header`."""
    with verify_digest(Path(path)):
        return load_unverified(Path(path))


def load_unverified(path: Path) -> tuple[Model, dict[str, Any]]:
    """`load_density` without a comparison with the digest, for blocks of `verify_digest`."""
    header, shapes, _ = read_header(path, verify=False)
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        raise Damaged(f"{path} is damaged or no model file: {error}") from None
    try:
        _check_sizes(header["spec"], shapes)
        with torch.device("meta"):
            model = build(header["spec"])
        if not isinstance(model, Model):
            raise ValueError("it describes no model")
        for name in tensors.keys() - (state := model.state_dict()).keys():
            raise ValueError(f"its tensor {name!r} is none of the model's")
        for name, target in state.items():
            if name not in tensors:
                raise ValueError(f"it has no tensor {name!r}")
            shape, dtype = tensors[name].shape, tensors[name].dtype
            if target.shape != shape:
                raise ValueError(f"size mismatch of {name!r}: {tuple(shape)}, expected {tuple(target.shape)}")
            if dtype not in (WEIGHTS if target.is_floating_point() else (target.dtype,)):
                raise ValueError(f"its tensor {name!r} is of {dtype}, expected {target.dtype}")
            # (a finite sum, which is quicker, implies that all numbers are finite)
            if not (tensors[name].sum().isfinite() or tensors[name].isfinite().all()):
                raise ValueError(f"its weights {name!r} are not finite")
            if name.split(".")[-1] == "order":
                Ordering(tensors[name])  # a permutation, or a clear error
            # (files have contiguous tensors, but the last bit of matrix products can depend on the strides)
            tensors[name] = torch.empty_strided(shape, target.stride(), dtype=dtype).copy_(tensors[name])
        model.load_state_dict(tensors, assign=True)
    except (ValueError, TypeError, LookupError, RuntimeError, AttributeError, ArithmeticError) as error:
        message = f"{type(error).__name__}: " * isinstance(error, LookupError) + str(error).partition("\n")[0]
        raise ValueError(f"{path} cannot be loaded: {message}") from None
    return model, header


def _check_sizes(spec: Any, shapes: Mapping[str, Any], name: str = "") -> None:
    """Raise a ValueError for a size in a spec that is too large for the tensors of the file."""
    if isinstance(spec, Mapping):
        is_registered = spec.get("kind") in _registered  # its numbers may have any meaning
        for key, value in spec.items():
            if not is_registered or isinstance(value, Mapping | list):
                _check_sizes(value, shapes, key)
    elif isinstance(spec, list):
        if name in LISTED and len(spec) > len(shapes):
            raise ValueError(f"its spec has {len(spec):,} numbers as {name}, too many for its tensors")
        for value in spec:
            _check_sizes(value, shapes, name)
    elif isinstance(spec, str) and (n := spec.count("->") + spec.count("→")) > len(shapes):  # a blueprint
        raise ValueError(f"its spec has {n:,} layers as {name}, too many for its tensors")
    elif isinstance(spec, int):
        n_numbers = sum(math.prod(shape) for _, shape in shapes.values())
        limit = len(shapes) if name in LAYERS else max(1 << 20, n_numbers)
        if spec > limit:
            raise ValueError(f"its spec has {name} = {spec:.3g}, too large for its {len(shapes)} tensors")
