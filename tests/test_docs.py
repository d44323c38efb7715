"""The pages of documentation: they build without a warning, lead nowhere wrong, and are complete."""

import dataclasses
import inspect
import os
import pkgutil
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote

import pytest
import typer
from filelock import FileLock

import pynade
import pynade.app
from pynade.cli.fit import model_options
from pynade.cli.main import app
from pynade.estimators import answers
from pynade.estimators.registry import MODELS

DOCS = Path(__file__).parents[1] / "docs"
INTERNAL = {"pynade.cli"}  # its reference is that of the commands
LINK = re.compile(r'<(?:a|link|img|script)\b[^>]*?\b(?:href|src)="([^"]*)"')
SOURCE = r'<(?:img|script)\b[^>]*\bsrc="([^"]*)"'
SHEET = r'<link\b(?=[^>]*stylesheet|[^>]*icon)[^>]*\bhref="([^"]*)"'
OBJECT = re.compile(r'<dt class="sig[^"]*" id="(pynade[^"]*)">(.*?)</dt>', re.S)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built pages by path, without running the notebooks; warnings are errors."""
    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder  # all workers share one build
    root = folder / "site"
    words = ["-W", "-n", "-q", "-D", "nb_execution_mode=off", "-d", str(folder / "site-read")]
    with FileLock(folder / "site.lock"):
        if not (root / "searchindex.js").exists():  # the last file that is written
            command = [sys.executable, "-m", "sphinx", "-b", "html", *words, str(DOCS), str(root)]
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
    pages = {path: path.read_text(encoding="utf-8") for path in sorted(root.rglob("*.html"))}
    objects = {}
    for page in pages.values():
        for name, signature in OBJECT.findall(page):
            objects[name] = re.sub(r"<[^>]*>", "", signature)
    return SimpleNamespace(root=root, pages=pages, objects=objects)


def test_links_within_the_pages_lead_somewhere(site):
    assert len(site.pages) > 50
    ids = {path: {*re.findall(r'\bid="([^"]*)"', page)} for path, page in site.pages.items()}
    for path, page in site.pages.items():
        for link in {*LINK.findall(page)}:
            if re.match(r"[a-z]+:", link):
                continue  # to another site, or an image within the page
            file, _, anchor = unquote(link).partition("#")
            target = (path.parent / file.partition("?")[0]).resolve() if file else path
            assert target.exists(), (path.name, link)
            assert not anchor or anchor in ids.get(target, {anchor}), (path.name, link)


def test_pages_need_nothing_from_another_site(site):
    for path, page in site.pages.items():
        for found in re.findall(f"{SOURCE}|{SHEET}", page):
            assert not "".join(found).startswith(("http", "//")), (path.name, found)
    for sheet in site.root.rglob("*.css"):
        text = sheet.read_text(encoding="utf-8")
        assert not re.search(r"(url\(|@import\s*)[\"']?(https?:)?//", text), sheet


def test_the_search_knows_the_pages_and_the_names(site):
    index = (site.root / "searchindex.js").read_text(encoding="utf-8")
    assert index.startswith("Search.setIndex(")
    assert all(f'"{page}"' in index for page in ("tutorials/gaps", "howto/deploy", "concepts/cells"))
    assert all(name in index for name in ("TabularNADE", "surpris", "dequantis"))


def test_notebooks_show_their_figures():
    """A figure that is made without pyplot is shown as text, unless pyplot has made one before."""
    for path in DOCS.rglob("*.md"):
        text = path.read_text(encoding="utf-8")
        if "file_format: mystnb" in text and (
            bare := re.search(r"^(image_panels|tree_figure)\(", text, re.M)
        ):
            assert "pyplot.subplots(" in text[: bare.start()], path.name


def public_modules():
    for found in pkgutil.iter_modules(pynade.__path__, "pynade."):
        if not found.name.rpartition(".")[2].startswith("_") and found.name not in INTERNAL:
            module = import_module(found.name)
            if found.ispkg and not hasattr(module, "__all__"):  # runs: its modules are the public ones
                inner = pkgutil.iter_modules(module.__path__, f"{found.name}.")
                yield from (import_module(each.name) for each in inner)
            else:
                yield module


def public_objects():
    """Name (as imported) and object of everything that is public."""
    for name in {*pynade.__all__, *dir(pynade)} - {"__version__", "datasets", "plots", "stream"}:
        yield f"pynade.{name}", getattr(pynade, name)
    for module in public_modules():
        own = [n for n, o in vars(module).items() if getattr(o, "__module__", None) == module.__name__]
        for name in getattr(module, "__all__", [n for n in own if not n.startswith("_")]):
            found = getattr(module, name)
            if inspect.isclass(found) or inspect.isroutine(found):
                yield f"{module.__name__}.{name}", found


def places(name, found):
    """The names under which an object may stand in the reference: an estimator once, as `pynade.NAME`."""
    return [name, f"{found.__module__}.{found.__qualname__}", f"pynade.{found.__qualname__}"]


def test_every_public_name_and_parameter_is_in_the_reference(site):
    documented = dict(site.objects)
    for page in site.pages.values():  # the place where an object is defined, beside that where it is imported
        for name in re.findall(r'<span id="(pynade[^"]*)">', page):
            documented.setdefault(name, "")
    seen = 0
    for name, found in public_objects():
        where = [place for place in places(name, found) if place in documented]
        assert where, f"{name} is not in the reference"
        members = {"": found}
        if inspect.isclass(found):
            own = {n: o for n, o in vars(found).items() if inspect.isfunction(o) and not n.startswith("_")}
            members |= {f".{n}": o for n, o in own.items() if o.__doc__}
        for member, value in members.items():
            signatures = [documented[p + member] for p in where if documented.get(p + member)]
            if not signatures or (inspect.isclass(value) and "(" not in signatures[0]):
                assert not member or any(p + member in documented for p in where), f"{name}{member}"
                continue
            for parameter in list(inspect.signature(value).parameters)[bool(member) :]:
                assert re.search(rf"\b{parameter}\b", signatures[0]), (name + member, parameter)
                seen += 1
    assert seen > 1000


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_of_an_estimator_is_described(site, name):
    kind = MODELS[name].kind
    (page,) = [page for page in site.pages.values() if f'id="pynade.{kind}"' in page]
    start = page.index(f'id="pynade.{kind}"')
    described = page[start : page.index("<dl", page.index('class="field-list', start) + 1)]
    for field in dataclasses.fields(getattr(pynade, kind)):
        assert not field.init or f"<strong>{field.name}</strong>" in described, field.name
    for method in ("fit", "score_samples", "sample", "impute", "conditional", "save"):
        assert f'id="pynade.{kind}.{method}"' in page


INNER = {"build", "adopt", "check_request"}  # what runs ask of an estimator


def asked_functions():
    """What users call: methods of estimators and of their answers, figures, what pynade exports."""
    kinds = [getattr(pynade, entry.kind) for entry in MODELS.values()]
    for kind in {*kinds, answers.ColumnConditional, answers.JointConditional}:
        for name, found in inspect.getmembers(kind, inspect.isfunction):
            if not name.startswith("_") and found.__module__.startswith("pynade") and name not in INNER:
                yield found, list(inspect.signature(found).parameters)[1:]
    for module in (pynade, pynade.plots, pynade.datasets, pynade.app):
        for found in (getattr(module, name) for name in getattr(module, "__all__", dir(module))):
            if inspect.isfunction(found) or found is pynade.app.Limits:
                yield found, list(inspect.signature(found).parameters)


def test_every_parameter_of_what_users_call_is_described():
    seen = 0
    for function, parameters in asked_functions():
        text = inspect.getdoc(function) or ""
        for parameter in parameters:
            described = rf"^\s+[^:\n]*\b{parameter}\b[^:\n]*:"
            assert re.search(described, text, re.M), (function.__qualname__, parameter)
            seen += 1
    assert seen > 300


def commands(command, name="pynade"):
    yield name, command
    for inner, part in getattr(command, "commands", {}).items():
        yield from commands(part, f"{name} {inner}")


def test_every_command_and_option_is_in_the_reference(site):
    page = (site.root / "reference/command-line.html").read_text(encoding="utf-8")
    sections = dict(re.findall(r"<h2>(pynade[^<]*)<a(.*?)(?=<h2>|<footer)", page, re.S))
    for name, command in commands(typer.main.get_command(app)):
        text = re.sub(r"<[^>]*>", "", sections[name])
        for parameter in (p for p in command.params if p.name != "help"):
            words = [*parameter.opts, *parameter.secondary_opts]
            wanted = words if words[0].startswith("-") else [parameter.metavar or parameter.name.upper()]
            assert all(word in text for word in wanted), (name, wanted)
    page = (site.root / "reference/fit-options.html").read_text(encoding="utf-8")
    sections = dict(re.findall(r"<h2>(\w+)<a(.*?)(?=<h2>|<footer)", page, re.S))
    for model in MODELS:
        text = re.sub(r"<[^>]*>", "", sections[model])
        assert all(option.word in text for option in model_options(model)), model
