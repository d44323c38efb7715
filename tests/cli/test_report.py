"""`pynade report`: one self-contained page about a run."""

import re
import shutil
from html.parser import HTMLParser

import pytest

from tests.estimators.cases import rows
from tests.estimators.mixed import table, with_gaps

SMALL = ["--hidden", "8", "--epochs", "2", "--device", "cpu"]
SECTIONS = ["Columns and missing cells", "Training", "Held-out score and baselines", "Real and sampled rows"]
SECTIONS += ["Dependence", "Calibration", "Most surprising rows and cells", "Disagreement of orderings"]
SECTIONS += ["Provenance", "Commands"]


class Page(HTMLParser):
    """Checks that elements are closed in turn; keeps their attributes and the text."""

    def __init__(self, path):
        super().__init__()
        self.open, self.found, self.text = [], [], ""
        self.feed(path.read_text(encoding="utf-8"))
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data

    def check_contents(self):
        ids = {facts["id"] for tag, facts in self.found if tag == "h2"}
        links = [facts["href"] for tag, facts in self.found if tag == "a"]
        assert {f"#{name}" for name in ids} == set(links)

    def check_self_contained(self):
        for _, facts in self.found:
            assert facts.get("src", "data:image/png;base64,").startswith("data:image/png;base64,")
            assert facts.get("href", "#").startswith("#")
            assert not {"onclick", "srcset"} & set(facts)
        assert not {"script", "link", "iframe"} & {tag for tag, _ in self.found}
        assert "url(" not in self.text
        assert "@import" not in self.text
        assert all(facts.get("alt") for tag, facts in self.found if tag == "img")


@pytest.fixture
def mixed(run, tmp_path):
    with_gaps(table(120), 0.05).to_csv(tmp_path / "people.csv", index=False)
    assert run("fit", "people.csv", *SMALL, "--out", "people")[0] == 0


def test_a_mixed_table(run, mixed, tmp_path):
    code, out, err = run("report", "people")
    assert code == 0, err
    assert "held-out log-likelihood" in out
    assert "Next: pynade score people" in out
    page = Page(tmp_path / "report.html")
    page.check_self_contained()
    text = (tmp_path / "report.html").read_text()
    assert re.findall(r"<h2[^>]*>(.*?)</h2>", text) == SECTIONS
    page.check_contents()
    assert "mixture of Gaussians with levels" in text
    assert "12 validation rows" in text
    assert "prefers-color-scheme: dark" in text
    assert "Scroll this table sideways" in text
    assert text.count("<img ") == 6
    spec_checksum = re.search(r"<td>data checksum</td><td>(\w{64})</td>", text)[1]
    assert f"<td>checksum of this table</td><td>{spec_checksum}</td>" in text


def test_other_data_and_data_that_are_gone(run, mixed, tmp_path):
    shutil.move(tmp_path / "people.csv", tmp_path / "moved.csv")
    code, _, err = run("report", "people")
    assert code == 1
    assert "are no longer at" in err
    assert "--data" in err
    assert run("report", "people", "--data", "moved.csv", "--out", "same.html")[0] == 0
    assert "12 validation rows" in (tmp_path / "same.html").read_text()
    table(50, seed=9).to_csv(tmp_path / "new.csv", index=False)
    assert run("report", "people", "--data", "new.csv", "--out", "new.html")[0] == 0
    text = (tmp_path / "new.html").read_text()
    assert "50 rows of new.csv, which are not those of the training" in text
    assert "independent columns" in text
    assert "mixture of Gaussians" not in text
    code, _, err = run("report", "people/model.safetensors")
    assert code == 1
    assert "give --data" in err
    assert run("report", "people/model.safetensors", "--data", "moved.csv", "--out", "file.html")[0] == 0
    assert "must be .html" in run("report", "people", "--data", "moved.csv", "--out", "x.pdf")[2]


@pytest.mark.parametrize(("model", "kind"), [("rnade", "real"), ("deepnade", "binary"), ("gaussian", "real")])
def test_tables_of_numbers(run, tmp_path, model, kind):
    lines = [",".join(f"{v:.17g}" for v in row) for row in rows(kind).tolist()]
    names = ",".join(f"n{i}" for i in range(len(lines[0].split(","))))
    (tmp_path / "t.csv").write_text("\n".join([names, *lines]) + "\n")
    small = [] if model == "gaussian" else SMALL
    assert run("fit", "t.csv", "--model", model, *small, "--out", "r")[0] == 0
    code, _, err = run("report", "r")
    assert code == 0, err
    page = Page(tmp_path / "report.html")
    page.check_self_contained()
    assert re.findall(r"<h2[^>]*>(.*?)</h2>", (tmp_path / "report.html").read_text()) == SECTIONS
    assert ("Gaussian" if kind == "real" else "mixture of Bernoullis") in page.text


def test_images(run, tmp_path):
    assert run("fit", "digits", "--model", "nade", *SMALL, "--out", "r")[0] == 0
    code, out, err = run("report", "r")
    assert code == 0, err
    assert "held-out log-likelihood (nats per image)" in out
    page = Page(tmp_path / "report.html")
    page.check_self_contained()
    assert "mixture of Bernoullis" in page.text
    headings = re.findall(r"<h2[^>]*>(.*?)</h2>", (tmp_path / "report.html").read_text())
    parts = ["Held-out score and baselines", "Calibration", "Least and most likely images"]
    last = ["Provenance", "Commands"]
    assert headings == ["Samples", "Training", *parts, "Disagreement of orderings", *last]
    assert "[]" not in page.text  # facts that are not there


def test_images_of_a_convolutional_net(run, tmp_path):
    net = ["--epochs", "1", "--blueprint", "4@3x3(same)->1@3x3(same)"]
    assert run("fit", "digits", "--model", "convnade", *net, "--out", "r")[0] == 0
    code, out, err = run("report", "r")
    assert code == 0, err
    assert "validation log-likelihood (nats per image)" in out
    page = Page(tmp_path / "report.html")
    page.check_self_contained()
    assert "mixture of Bernoullis" in page.text
    headings = re.findall(r"<h2[^>]*>(.*?)</h2>", (tmp_path / "report.html").read_text())
    assert headings == ["Samples", "Training", "Score", "Provenance", "Commands"]


def test_many_numbers_have_no_mixture_as_baseline(run, mixed, tmp_path, monkeypatch):
    """A mixture of Gaussians of hundreds of columns takes minutes; TabularNADE makes none either."""
    monkeypatch.setattr("pynade.runs.report.MOST_NUMBERS", 1)
    assert run("report", "people")[0] == 0
    text = Page(tmp_path / "report.html").text
    assert "one Gaussian, independent levels" in text
    assert "mixture of Gaussians" not in text
