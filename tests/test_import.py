"""`import pynade` and the commands that do not compute import no large library."""

import json
import subprocess
import sys

import numpy as np
import pytest

HEAVY = ("sklearn", "numba", "matplotlib", "pooch", "typer", "rich", "scipy", "pandas", "polars", "triton")
NOT_FOR_HELP = ("torch", "sklearn", "numba", "matplotlib", "scipy", "pandas", "polars", "narwhals", "h5py")
NOT_FOR_HELP += ("starlette", "uvicorn", "anyio")

COMMANDS = f"""
import contextlib, io, json, sys
from pynade.cli.main import app, main

def names(app):
    found = [[command.name or command.callback.__name__] for command in app.registered_commands]
    for group in app.registered_groups:
        found += [[group.name, *name] for name in names(group.typer_instance)]
    return found

imported = {{}}
for words in [["--help"], *([*name, "--help"] for name in names(app)), *json.loads(sys.argv[1])]:
    sys.argv = ["pynade", *words]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        main()
    imported[" ".join(words)] = [name for name in {NOT_FOR_HELP} if name in sys.modules]
print(json.dumps(imported))
"""


def python(code, *words):
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_import_is_lazy():
    assert python(f"import sys, pynade; print([m for m in {HEAVY!r} if m in sys.modules])") == "[]"


def test_help_info_and_the_list_of_data_sets_import_no_large_library(tmp_path):
    import pynade

    pynade.NADE(hidden=2, epochs=1).fit(np.eye(6)).save(tmp_path / "model.safetensors")
    spec = {"model": "nade", "parameters": {}, "data": "digits", "data_checksum": "0123456789abcdef"}
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    runs = [["info", str(tmp_path)], ["info", str(tmp_path / "model.safetensors")], ["data", "list"]]
    imported = json.loads(python(COMMANDS, json.dumps(runs)))
    assert {"--help", "score --help", "sweep --help", "data info --help", "data list"} <= set(imported)
    assert {words: found for words, found in imported.items() if found} == {}


def test_exports_resolve():
    import pynade

    for name in pynade.__all__:
        assert getattr(pynade, name) is not None
        assert name in dir(pynade)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = pynade.nonsense
