"""Every parameter is documented where a user reads, and the package shows its public names only."""

import inspect
from dataclasses import fields

import pytest

import pynade
from pynade.cli.fit import attribute_texts, model_options
from pynade.estimators.parameters import DOCS, parameter_text
from pynade.estimators.registry import MODELS, estimator_class
from pynade.training.options import Gradient
from tests.estimators.cases import ESTIMATORS

CLASSES = {name: estimator_class(name)[0] for name in MODELS}
OPTIONS = sorted({kind._options for kind in CLASSES.values()} - {None}, key=lambda kind: kind.__name__)


@pytest.mark.parametrize("name", CLASSES)
def test_every_parameter_is_in_the_docstring_with_its_text_and_default(name):
    kind = CLASSES[name]
    documented = (kind.__doc__ or "").partition("\nArgs:\n")[2].splitlines()
    signature = inspect.signature(kind).parameters
    assert len(signature) > 3
    for parameter in signature.values():
        text = parameter_text(kind, parameter.name)
        assert len(text) > 10, f"{kind.__name__}.{parameter.name} has no text"
        assert text.endswith("."), f"{kind.__name__}.{parameter.name}: {text}"
        assert "{" not in text, f"{kind.__name__}.{parameter.name}: {text}"
        line = f"    {parameter.name}: {text} Default: {parameter.default!r}."
        assert line in documented, f"{kind.__name__}.{parameter.name} is not documented as {line!r}"
    if "training" in signature:
        assert kind._options.__name__ in parameter_text(kind, "training")


def test_no_text_is_left_over():
    """A parameter that is gone takes its text with it."""
    used = {name for kind in CLASSES.values() for name in inspect.signature(kind).parameters}
    known = {kind.__name__: set(inspect.signature(kind).parameters) for kind in CLASSES.values()}
    for key in DOCS:
        owner, _, name = key.rpartition(".")
        if not owner:
            assert name in used, key
        elif hasattr(pynade, owner):  # else a class of another test
            assert name in known[owner], key


@pytest.mark.parametrize("kind", [*OPTIONS, Gradient], ids=lambda kind: kind.__name__)
def test_every_option_of_training_has_a_text(kind):
    texts = attribute_texts(kind)
    inherited = attribute_texts(kind.__mro__[1]) if kind is Gradient else {}
    names = [field.name for field in fields(kind)]
    assert sorted(texts | inherited) == sorted(names)
    assert all(len(text) > 10 and text.endswith(".") for text in texts.values())


@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_parameter_is_an_option_of_the_command_line(name):
    kind, preset = estimator_class(name)
    options = {option.name: option for option in model_options(name)}
    own = set(inspect.signature(kind).parameters) - {"training"}
    further = set() if kind._options is None else {field.name for field in fields(kind._options)}
    assert set(options) == own | further
    assert not own & further
    assert all(option.text for option in options.values())
    assert all(options[parameter].default == value for parameter, value in preset.items())


def test_dir_shows_exactly_the_public_names():
    assert dir(pynade) == sorted(pynade.__all__)
    assert [name for name in dir(pynade) if name.startswith("_")] == ["__version__"]
    assert all(getattr(pynade, name) is not None for name in dir(pynade))
    estimators = {estimator_class(name)[0].__name__ for name in MODELS}
    others = {"Estimate", "Ordering", "__version__", "datasets", "load", "plots", "register", "stream"}
    assert set(pynade.__all__) == estimators | others
