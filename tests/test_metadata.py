"""What the files around the code say of the project: they parse, and agree with each other."""

import json
import re
import tomllib
from importlib import resources
from pathlib import Path

import pytest
import yaml

import pynade

ROOT = Path(__file__).parents[1]
FORMS = [p for p in sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")) if p.name != "config.yml"]


def text(name):
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def project():
    return tomllib.loads(text("pyproject.toml"))["project"]


@pytest.fixture(scope="module")
def citation():
    return yaml.safe_load(text("CITATION.cff"))


@pytest.fixture(scope="module")
def workflow():
    return yaml.safe_load(text(".github/workflows/test.yml"))


def test_one_version(citation):
    assert re.fullmatch(r"\d+\.\d+\.\d+", pynade.__version__)
    assert str(citation["version"]) == pynade.__version__
    assert f"\n## {pynade.__version__} (" in text("CHANGELOG.md")
    for package in ("paper", "benchmarks"):
        settings = tomllib.loads(text(f"{package}/pyproject.toml"))["project"]
        assert settings["version"] == pynade.__version__


def test_one_licence(project, citation):
    assert project["license"] == citation["license"] == "MIT"
    assert text("LICENSE").startswith("MIT License")
    assert project["authors"][0]["name"] == citation["authors"][0]["name"]
    assert project["authors"][0]["name"] in text("LICENSE")


def test_one_list_of_python_versions(project, workflow):
    tested = workflow["jobs"]["test"]["strategy"]["matrix"]["python"]
    words = "Programming Language :: Python :: 3."
    named = [c.removeprefix(words) for c in project["classifiers"] if c.startswith(words)]
    assert tested == [f"3.{minor}" for minor in named] == ["3.11", "3.12", "3.13"]
    assert project["requires-python"] == f">={tested[0]}"
    for package in ("paper", "benchmarks"):
        settings = tomllib.loads(text(f"{package}/pyproject.toml"))["project"]
        assert settings["requires-python"] == project["requires-python"]


def test_the_workflow_runs_the_commands_of_the_readme(workflow):
    (commands,) = [b for b in re.findall(r"```sh\n(.*?)```", text("README.md"), flags=re.S) if "make" in b]
    shown = [line.split("#")[0].strip() for line in commands.splitlines()]
    run = [step["run"] for step in workflow["jobs"]["test"]["steps"] if "run" in step]
    assert run[:2] == shown == ["make demo", "make test"]
    assert text(".ci/run").splitlines()[-1] in shown
    assert True in workflow or "on" in workflow  # (YAML 1.1 reads the key `on` as true)


def test_the_readme_says_whether_there_is_a_release():
    unreleased = f"## {pynade.__version__} (unreleased)" in text("CHANGELOG.md")
    for name in ("README.md", "docs/start.md"):
        assert ("not on PyPI yet" in text(name)) == unreleased, name


COMPARED = [  # the lines of the README's comparison: a system and a measure of the record
    ("gaussian-mixture", "log_density"),
    ("mostlyai", "log_density"),
    ("forests", "rmse_30"),
    ("knn", "rmse_30"),
    ("boosting", "target_error_30"),
    ("boosting", "target_error_complete"),
    ("sdv-copula", "two_sample_auc"),
]


def test_comparisons_are_those_of_the_record(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    from table_measures import summarised

    tables = summarised(json.loads(text("paper/results/benchmarks/tables.json")))["tables"]
    head, _, *lines = text("README.md").partition("\n| tool ")[2].partition("\n\n")[0].splitlines()
    shown = re.findall(r"(\w+), (\d+) rows", head)
    assert len(lines) == len(COMPARED) + 1  # the last one did not run
    for line, (system, measure) in zip(lines, COMPARED, strict=False):
        for cell, (name, rows) in zip(line.split("|")[3:-1], shown, strict=True):
            found = tables[name]["systems"][system]
            assert tables[name]["rows"]["train"] == int(rows)
            if measure == "log_density":
                found = found[measure]
                expected = f"{found['to_pynade']:.2f} ± {found['to_pynade_stderr']:.2f}"
                if found["scored"] < 0.5:
                    expected += f" ({round(found['scored'] * tables[name]['rows']['test'])} rows)"
            else:
                expected = "{:.3f} ({:.3f})".format(*found[f"{measure}_paired"])
            assert cell.strip() == expected, (system, measure, name)
    section = text("docs/choose.md").partition("| table | training rows")[2].partition("\n\n")[0]
    for line in section.splitlines()[2:]:
        name, size, *cells = (
            cell.strip() for cell in re.sub(r"\[(.*?)\]\(.*?\)", r"\1", line).split("|")[1:-1]
        )
        found = tables[name]["systems"]
        assert size == f"{tables[name]['rows']['train']:,} × {tables[name]['columns']}"
        both = [found[system] for system in ("pynade", "gaussian-mixture")]
        expected = [(f"{s['log_density']['mean']:.2f}", f"{s['fit_seconds']:.0f}") for s in both]
        assert cells == [*expected[0], *expected[1]], name


def test_the_readme_is_short_and_its_picture_small():
    assert len(text("README.md").splitlines()) <= 150
    (picture,) = re.findall(r"!\[[^\]]*\]\((.*?)\)", text("README.md"))
    assert (ROOT / picture).stat().st_size < 150_000


def test_the_paper_and_the_software_can_be_cited(citation):
    wanted = {"cff-version", "message", "title", "type", "authors"}
    assert wanted <= set(citation)
    (paper,) = citation["references"]
    names = [author["family-names"] for author in paper["authors"]]
    assert names == ["Uria", "Côté", "Gregor", "Murray", "Larochelle"]
    facts = {"year": 2016, "volume": 17, "issue": 205, "start": 1, "end": 37}
    assert {name: paper[name] for name in facts} == facts


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_issue_forms_have_what_they_need(path):
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert {"name", "description", "body"} <= set(form)
    asked = [part for part in form["body"] if part["type"] != "markdown"]
    assert {part["type"] for part in asked} <= {"textarea", "input", "dropdown", "checkboxes"}
    assert all(part["attributes"]["label"] for part in asked)
    ids = [part["id"] for part in asked]
    assert len(set(ids)) == len(ids) > 0
    assert any(part.get("validations", {}).get("required") for part in asked)


def test_there_are_three_issue_forms():
    assert [path.stem for path in FORMS] == ["bug", "feature", "question"]


def test_type_checkers_find_the_types(project):
    assert resources.files("pynade").joinpath("py.typed").is_file()
    assert "Typing :: Typed" in project["classifiers"]


def test_extras_of_callbacks_are_those_that_their_errors_name(project):
    assert {"tensorboard", "mlflow"} <= set(project["optional-dependencies"])
