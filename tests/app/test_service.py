"""The recipes of docs/howto/deploy.md: the service runs as it is written, within its limits."""

import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

import pynade

PAGE = Path(__file__).parents[2] / "docs/howto/deploy.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.S | re.M)


def recipe(word):
    (found,) = [block for block in BLOCKS if word in block]
    return found


@pytest.fixture
def folder(runs, tmp_path):
    """What the page has made before: a model, and the module of the service."""
    pynade.load(runs / "penguins").save(tmp_path / "penguins.safetensors")
    limited = recipe("def build").replace("rows=10_000, seconds=10", "rows=20, seconds=600")
    assert limited != recipe("def build")
    (tmp_path / "service.py").write_text("import pynade\n" + limited, encoding="utf-8")
    return tmp_path


def answer(address, table):
    """Status and JSON of a table that is sent."""
    request = urllib.request.Request(f"{address}/api/score", table.write_csv().encode())
    request.add_header("Content-Type", "text/csv")
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as found:
            return found.status, json.load(found)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_the_service_scores_tables_and_refuses_large_ones(folder):
    words = ["-m", "uvicorn", "service:build", "--factory", "--port", "0"]
    source = str(Path(pynade.__file__).parents[1])
    environment = os.environ | {"PYTHONPATH": source, "PYTHONUNBUFFERED": "1"}
    table = pynade.datasets.penguins("polars")
    with subprocess.Popen(
        [sys.executable, *words], cwd=folder, env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            lines = []
            for line in process.stderr:
                lines.append(line)
                if found := re.search(r"running on (http://127\.0\.0\.1:\d+)", line):
                    break
            assert found, "".join(lines)
            status, scored = answer(found[1], table.head(20))
            refused = answer(found[1], table.head(21))
        finally:
            process.terminate()
    expected = pynade.load(folder / "penguins.safetensors").score_samples(table.head(20))
    assert status == 200
    assert scored["log_prob"] == pytest.approx(expected.tolist())
    assert refused == (413, {"error": "a table may have 20 rows at most, not 21"})


@pytest.mark.filterwarnings("ignore")  # of Ray's own imports
def test_the_service_of_ray_is_code_of_this_version(folder, monkeypatch):
    code = compile(recipe("from ray import serve"), "service_ray.py", "exec")
    pytest.importorskip("fastapi", reason="ray[serve] is not installed")
    monkeypatch.syspath_prepend(folder)
    names = {"__name__": "service_ray"}
    exec("from service import build", names)
    exec(code, names)
    assert names["service"] is not None
