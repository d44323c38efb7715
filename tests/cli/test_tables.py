"""Tables of mixed columns with gaps on the command line, from the file to every answer."""

from __future__ import annotations

import json
import re
from datetime import date, timedelta

import numpy as np
import polars
import pytest

import pynade
from pynade.cli.arguments import comma_separated, parse_given, parse_question
from pynade.runs.run import as_command
from pynade.tables import resolve
from pynade.tables.files import read_frame, write_table

SMALL = ["--epochs", "2", "--hidden", "16"]


def people(n=120):
    """A table of every kind of column, with gaps, an identifier and a constant."""
    rng = np.random.default_rng(0)
    city = rng.choice(["Paris", "Rome", "Paris, Texas"], n)
    age = rng.integers(18, 80, n)
    income = np.where(age > 40, ">50K", "<=50K")
    frame = polars.DataFrame(
        {
            "id": [f"p{i:04}" for i in range(n)],
            "age": age,
            "city": city,
            "income": income,
            "hours per week": rng.integers(10, 60, n),
            "height": rng.normal(170, 10, n),
            "born": [date(2000, 1, 1) + timedelta(days=int(d)) for d in rng.integers(0, 900, n)],
            "member": rng.random(n) < 0.5,
            "country": ["EU"] * n,
        }
    )
    for name in ("age", "city", "height", "born", "member"):
        gaps = polars.Series(rng.random(n) < 0.1)
        frame = frame.with_columns(polars.when(~gaps).then(polars.col(name)).alias(name))
    return frame


@pytest.fixture
def table(tmp_path):
    frame = people()
    frame.write_csv(tmp_path / "people.csv", null_value="NA")
    frame.write_parquet(tmp_path / "people.parquet")
    return frame


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A small model of the table, fitted once."""
    folder = tmp_path_factory.mktemp("model")
    write_table(folder / "people.csv", None, people())
    estimator = pynade.TabularNADE(hidden=16, epochs=2, drop=("id",), random_state=0)
    estimator.fit(read_frame(folder / "people.csv"))
    estimator.save(folder / "m.safetensors")
    return folder / "m.safetensors"


def test_a_table_alone_is_enough(run, table, tmp_path):
    code, out, err = run("fit", "people.csv", *SMALL)
    assert code == 0, err
    words = " ".join(out.split())
    for column, kind in (("age", "integer"), ("income", "binary"), ("height", "real"), ("born", "date")):
        assert re.search(rf"\b{column} {kind} ", words), (column, kind)
    assert "column 'id' is left out: 120 different texts" in words
    assert "--column zip=category; to leave one out: --drop id" in words
    assert words.count("is left out") == 1
    assert "runs/people-tabularnade: 2 epochs" in words
    assert "gain over independent columns" in words
    assert "pynade surprise runs/people-tabularnade people.csv" in words
    assert "Warning" not in err
    result = json.loads((tmp_path / "runs/people-tabularnade/result.json").read_text())
    assert result["gain"]["n"] == result["valid"]["n"] == 12
    assert result["disagreement"] > 0
    shown = " ".join(run("info", "runs/people-tabularnade")[1].split())
    assert "hours per week integer" in shown
    assert "gain" in shown


def test_a_run_is_the_same_from_csv_parquet_and_python(run, table, tmp_path):
    for name in ("people.csv", "people.parquet"):
        assert run("fit", name, *SMALL, "--drop", "id", "--out", name[7:])[0] == 0
    folders = [tmp_path / "csv", tmp_path / "parquet"]
    specs = [json.loads((folder / "spec.json").read_text()) for folder in folders]
    assert specs[0]["data_checksum"] == specs[1]["data_checksum"]
    models = [pynade.load(folder) for folder in folders]
    own = pynade.TabularNADE(hidden=16, epochs=2, drop=("id",), random_state=0).fit(table)
    scores = [m.score_samples(table) for m in (*models, own)]
    np.testing.assert_array_equal(scores[0], scores[1])
    np.testing.assert_allclose(scores[0], scores[2], rtol=1e-9)


def test_what_a_column_is_and_what_is_missing_can_be_said(run, tmp_path):
    lines = [f"{n % 4},{n % 7},{'unknown' if n % 5 == 0 else n},{n * 0.37}" for n in range(80)]
    (tmp_path / "t.csv").write_text("\n".join(["postal code,b,c,d", *lines]) + "\n")
    words = ["--column", "postal code=category", "--column", "b=integer", "--drop", "d"]
    code, out, err = run("fit", "t.csv", *SMALL, *words, "--missing", "unknown", "--out", "r")
    assert code == 0, err
    assert "column 'd' is left out: left out as asked" in out
    fitted = pynade.load(tmp_path / "r")
    assert dict(zip(fitted.schema_.names, fitted.schema_.kinds, strict=True)) == {
        "postal code": "category",
        "b": "integer",
        "c": "integer",
    }
    spec = json.loads((tmp_path / "r/spec.json").read_text())
    again = as_command(spec, "r")
    assert "--column 'postal code=category' --column b=integer" in again
    assert "--drop d" in again
    assert "--missing unknown" in again
    assert run("score", "r", "t.csv")[0] == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["fit", "people.csv", "--column", "age"], "--column takes NAME=KIND"),
        (["fit", "people.csv", "--column", "age=number"], "expected one of: binary, real, category"),
        (
            ["fit", "people.csv", "--column", "agee=real"],
            "names a column 'agee' that the table does not have",
        ),
        (["fit", "people.csv", "--drop", "agee"], "'agee'"),
        (["fit", "people.csv", "--column", "city=real"], "column 'city' cannot be real"),
        (["fit", "digits", "--column", "a=real"], "model 'nade' has no option --column"),
        (["fit", "people.csv", "--model", "rnade"], "people.csv, line 2, column 'id': expected a number"),
        (["fit", "empty.csv"], "empty.csv is empty"),
        (["fit", "head.csv"], "head.csv has column names but no rows"),
        (["fit", "twice.csv"], "twice.csv: column name 'a' occurs more than once"),
        (["fit", "long.csv"], "long.csv, line 3: expected 2 columns, but 3 were found"),
        (["fit", "short.csv"], "short.csv, line 3: expected 2 columns, but 1 were found"),
        (["fit", "bad.parquet"], "bad.parquet could not be read as a parquet file"),
        (["fit", "bad.csv.gz"], "bad.csv.gz is damaged"),
        (["fit", "latin.csv"], "latin.csv is no UTF-8 text"),
        (["fit", "inf.csv"], "column 'b' holds an infinite value"),
        (["fit", "one.csv"], "at least 2 rows"),
        (["score", "MODEL", "less.csv"], "there are no columns 'age', 'income'"),
        (["score", "MODEL", "nowhere.csv"], "no file 'nowhere.csv' exists"),
        (["score", "MODEL", "people.csv", "--estimate", "3"], "are exact: leave --estimate out"),
        (["score", "MODEL", "people.csv", "--rows", "x.txt"], "ending must be"),
        (
            ["sample", "MODEL", "--given", "city=London"],
            "column 'city' has no level 'London'; its levels are: ",
        ),
        (["sample", "MODEL", "--given", "town=Rome"], "there is no column 'town'"),
        (
            ["sample", "MODEL", "--given", "id=p0001"],
            "column 'id' is not part of the model: left out as asked",
        ),
        (["sample", "MODEL", "--given", "age=old"], "column 'age' is given as 'old', which is no number"),
        (["sample", "MODEL", "--given", "city"], "written like age=40, city=Paris, not 'city'"),
        (["sample", "MODEL", "--given", "age=1,age=2"], "variable 'age' is given twice"),
        (["sample", "MODEL", "--out", "x.npy"], "ending must be .csv or .parquet"),
        (["sample", "MODEL", "--per-step", "2"], "--per-step is for"),
        (["impute", "MODEL", "less.csv", "--out", "x.csv"], "there are no columns 'age', 'income'"),
        (["impute", "MODEL", "people.csv", "--draws", "0", "--out", "x.csv"], "at least 1"),
        (["impute", "MODEL", "people.csv", "--particles", "9", "--out", "x.csv"], "without particles"),
        (["predict", "MODEL", "people.csv", "--target", "pay", "--out", "x.csv"], "no column 'pay'"),
        (["predict", "MODEL", "people.csv", "--target", "age", "--proba", "--out", "x.csv"], "has no levels"),
        (["predict", "MODEL", "people.csv", "--target", "age", "--out", "x.npy"], "ending must be"),
        (["surprise", "MODEL", "people.csv", "--top", "0"], "--top must be at least 1"),
        (["surprise", "MODEL", "people.csv", "--out", "no/x.csv"], "does not exist"),
        (["surprise", "MODEL", "people.csv", "--folds", "1"], "folds must be at least 2"),
        (["surprise", "MODEL", "people.csv", "--folds", "2", "--workers", "2"], "leave out --engine"),
        (["query", "MODEL", "pay"], "there is no column 'pay'"),
        (["query", "MODEL", "| age=3"], "a question is written like"),
        (["query", "MODEL", "age, age"], "asked about twice"),
        (["query", "MODEL", "age | age=3"], "both asked for and given"),
        (["query", "MODEL", "age | city=London"], "no level 'London'"),
        (["query", "MODEL", "age", "--plot", "x.doc"], "cannot write a plot"),
        (["query", "nade", "age"], "this command is for models of tables of mixed columns"),
    ],
    ids=lambda v: "-".join(v).replace("/", "_")[:60] if isinstance(v, list) else "",
)
def test_a_mistake_gets_one_sentence(run, table, tmp_path, model, words, says):
    files = {"empty.csv": "", "head.csv": "a,b\n", "twice.csv": "a,a\n1,2\n", "long.csv": "a,b\n1,2\n1,2,3\n"}
    files |= {"short.csv": 'a,b\n"x, y",1\n2\n', "bad.parquet": "no", "bad.csv.gz": "no", "one.csv": "a\n1\n"}
    files |= {"less.csv": "city,height\nRome,170\n", "inf.csv": "a,b\n" + "1,2.5\n2,inf\n" * 9}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "latin.csv").write_bytes("a,b\nK\xf6ln,1\n".encode("latin-1"))
    if "nade" in words:
        assert run("fit", "digits", "--model", "fvsbn", "--epochs", "1", "--out", "nade")[0] == 0
    before = sorted(tmp_path.rglob("*"))
    code, out, err = run(*(str(model) if word == "MODEL" else word for word in words))
    assert code == (2 if "has no option" in says else 1)
    assert out == ""
    assert says in err
    assert err.startswith("Error: ")
    assert len(err.strip().splitlines()) == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_score_says_what_it_adds_up_and_the_gain(run, table, tmp_path, model):
    code, out, err = run("score", model, "people.parquet", "--rows", "rows.csv")
    assert code == 0, err
    rows = polars.read_csv(tmp_path / "rows.csv")["log_prob"].to_numpy()
    fitted = pynade.load(model)
    np.testing.assert_allclose(rows, fitted.score_samples(table))
    assert f"people all: {rows.mean():.3f} ± " in out
    assert f"gain over independent columns: {fitted.gain(table).mean():.3f} ± " in out
    assert "log-probabilities of 7 discrete columns and log-densities of 1 column (height)" in out
    code, out, _ = run("score", model, "people.csv", "--density", "--rows", "rows.csv", "--orderings", "2")
    assert code == 0
    rows = polars.read_csv(tmp_path / "rows.csv")["log_prob"].to_numpy()
    np.testing.assert_allclose(rows, fitted.score_samples(table, 2, density=True))
    assert "log-densities of 4 columns" in out


def test_a_record_of_a_score(run, table, tmp_path):
    assert run("fit", "people.csv", *SMALL, "--out", "r")[0] == 0
    code, _, err = run("score", "r", "people.csv", "--record", "record.json")
    assert code == 0, err
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["all"]["exact"] is True
    assert record["gain"]["n"] == 120
    assert record["data_checksum"] == json.loads((tmp_path / "r/spec.json").read_text())["data_checksum"]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_samples_are_a_table_with_its_types(run, table, tmp_path, model, kind):
    given = 'city="Paris, Texas",income=<=50K, hours per week=40'
    code, _, err = run("sample", model, "-n", 20, "--given", given, "--out", f"new.{kind}")
    assert code == 0, err
    drawn = read_frame(tmp_path / f"new.{kind}")
    assert drawn.columns == [name for name in table.columns if name != "id"]
    assert drawn.dtypes == table.drop("id").dtypes
    assert drawn["city"].unique().to_list() == ["Paris, Texas"]
    assert drawn["income"].unique().to_list() == ["<=50K"]
    assert drawn["hours per week"].unique().to_list() == [40]
    assert run("sample", model, "-n", 9, "--plot", "s.png")[0] == 0
    assert (tmp_path / "s.png").read_bytes().startswith(b"\x89PNG")
    lines = run("sample", model, "-n", 3)[1].splitlines()
    assert lines[0] == "age,city,income,hours per week,height,born,member,country"
    assert len(lines) == 4


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_impute_keeps_everything_that_is_known(run, table, tmp_path, model, kind):
    mixed = table.select("height", polars.lit("x").alias("extra"), polars.exclude("height"))
    write_table(tmp_path / f"gaps.{kind}", None, mixed)
    code, out, err = run("impute", model, f"gaps.{kind}", "--out", f"filled.{kind}")
    assert code == 0, err
    gaps = sum(mixed.null_count().row(0))
    assert f"{gaps} gaps in 120 rows filled -> filled.{kind}" in out
    filled = read_frame(tmp_path / f"filled.{kind}")
    assert filled.columns == mixed.columns
    assert filled.dtypes == mixed.dtypes
    assert sum(filled.null_count().row(0)) == 0
    for name in mixed.columns:
        known = mixed[name].is_not_null()
        assert filled[name].filter(known).to_list() == mixed[name].filter(known).to_list()
    assert run("impute", model, f"gaps.{kind}", "--draws", 3, "--out", f"draws.{kind}")[0] == 0
    draws = read_frame(tmp_path / f"draws.{kind}")
    assert draws.columns == ["draw", *mixed.columns]
    assert draws["draw"].value_counts().sort("draw").rows() == [(0, 120), (1, 120), (2, 120)]


def test_predict(run, table, tmp_path, model):
    table.drop("income").write_csv(tmp_path / "new.csv")
    code, _, err = run("predict", model, "new.csv", "--target", "income", "--out", "p.csv")
    assert code == 0, err
    assert set(read_frame(tmp_path / "p.csv")["income"]) <= {"<=50K", ">50K"}
    assert run("predict", model, "new.csv", "--target", "income", "--proba", "--out", "p.parquet")[0] == 0
    p = read_frame(tmp_path / "p.parquet")
    assert p.columns == ["<=50K", ">50K"]
    np.testing.assert_allclose(p.sum_horizontal().to_numpy(), 1, atol=1e-6)
    assert run("predict", model, "people.csv", "--target", "age", "--out", "a.csv")[0] == 0
    assert read_frame(tmp_path / "a.csv")["age"].dtype == polars.Int64
    assert run("predict", model, "people.csv", "--target", "born", "--out", "b.parquet")[0] == 0
    assert read_frame(tmp_path / "b.parquet")["born"].dtype.is_temporal()


def test_surprise(run, table, tmp_path, model):
    odd = table.with_columns(
        polars.when(polars.int_range(120) == 7).then(500.0).otherwise("height").alias("height")
    )
    odd.write_csv(tmp_path / "odd.csv")
    code, out, err = run("surprise", model, "odd.csv", "--top", 5, "--out", "cells.csv")
    assert code == 0, err
    cells = read_frame(tmp_path / "cells.csv")
    assert cells.height == 5
    assert cells.row(0)[:2] == (7, "height")
    assert re.search(r"7 +height +500 ", out)
    code, out, err = run("surprise", model, "odd.csv", "--top", 3, "--folds", 2, "--out", "folds.csv")
    assert code == 0, err
    assert read_frame(tmp_path / "folds.csv").row(0)[:2] == (7, "height")


def test_query(run, tmp_path, model):
    code, out, err = run("query", model, "age | city=Rome, income=<=50K", "--plot", "age.png")
    assert code == 0, err
    for word in ("mean", "median", "90 % interval", "disagreement", "█"):
        assert word in out
    assert (tmp_path / "age.png").read_bytes().startswith(b"\x89PNG")
    code, out, err = run("query", model, 'city | hours per week=40, "born"=2001-05-31')
    assert code == 0, err
    p = [float(x) for x in re.findall(r"(?:Paris|Rome|Texas) +(0\.\d+)", out)]
    assert len(p) == 3
    assert sum(p) == pytest.approx(1, abs=0.02)
    for column in ("height", "born", "member", "country", "income", "hours per week"):
        code, out, err = run("query", model, column)
        assert code == 0, err
        assert "█" in out
        assert "disagreement" not in out  # nothing is given
    code, out, err = run("query", model, "income, age | city=Rome", "--plot", "joint.png")
    assert code == 0, err
    assert re.search(r"income +[<>]=?50K \d", out)
    assert re.search(r"age +median \d", out)
    assert (tmp_path / "joint.png").is_file()


def test_commas_quotes_and_signs_in_questions():
    names = ["a b", "c=d", "e", "f|g"]
    assert parse_question('"f|g", a b | c=d=1, e="x, | y"', names) == (
        ["f|g", "a b"],
        {"c=d": "1", "e": "x, | y"},
    )
    assert parse_question("e", names) == (["e"], {})
    assert parse_given("e=<=5", names, numbers=False) == {"e": "<=5"}
    assert parse_given("2=0, e=1", names) == {2: 0.0, "e": 1.0}
    assert parse_given('e="Paris, Texas",a b=40', names, numbers=False) == {"e": "Paris, Texas", "a b": "40"}
    assert comma_separated('a=1, city="Paris, Texas"') == ["a=1", 'city="Paris, Texas"']
    assert comma_separated("a,,b,") == ["a", "", "b", ""]
    for text in ("a b=", "=1", "", "e=1,"):
        with pytest.raises(ValueError, match="known values are written"):
            parse_given(text, names, numbers=False)


def test_other_data_for_a_model_of_mixed_tables(run, tmp_path):
    np.save(tmp_path / "t.npy", np.column_stack([np.arange(60) % 3, np.linspace(0, 1, 60)]))
    assert run("fit", "t.npy", "--model", "tabular", *SMALL, "--out", "r")[0] == 0
    for words in (["score", "r", "t.npy"], ["sample", "r"], ["impute", "r", "t.npy", "--out", "f.csv"]):
        code, _, err = run(*words)
        assert code == 0, err
    code, _, err = run("fit", "digits", "--model", "tabular", "--epochs", "1", "--hidden", "8", "--out", "d")
    assert code == 0, err
    assert json.loads((tmp_path / "d/result.json").read_text())["valid"]["n"] == 300


def test_zeros_and_ones_and_other_models_are_as_before(run, tmp_path):
    np.save(tmp_path / "bits.npy", np.random.default_rng(0).integers(0, 2, (40, 3)))
    assert run("fit", "bits.npy", *SMALL)[0] == 0
    assert json.loads((tmp_path / "runs/bits-nade/spec.json").read_text())["model"] == "nade"
    assert "--density is for models of tables" in run("score", "runs/bits-nade", "bits.npy", "--density")[2]


def test_the_columns_of_a_file_without_a_fit(run, table):
    code, out, err = run("data", "info", "people.csv")
    assert code == 0, err
    words = " ".join(out.split())
    assert "train 120 rows" in words
    assert "hours per week integer" in words
    assert "column 'id' is left out" in words
    assert "pynade fit people.csv" in words
    assert "CC0 1.0" in " ".join(run("data", "info", "penguins")[1].split())


def test_types_of_columns_in_a_csv(tmp_path):
    text = (
        "day,at,zone,n,x,zip,yes,big,word,none\n"
        "2024-05-31,2024-05-31 12:30:00,2024-05-31T12:30:00+02:00,1,1e-3,01234,true,"
        "12345678901234567890, a ,\n"
        "NaN,n/a,NULL,?,.5,00001,false,1,None,NA\n"
    )
    (tmp_path / "t.csv").write_text(text)
    frame = read_frame(tmp_path / "t.csv")
    kinds = ["Date", "Datetime(time_unit='us', time_zone=None)", "Datetime(time_unit='us', time_zone='UTC')"]
    kinds += ["Int64", "Float64", "String", "Boolean", "String", "String", "String"]
    assert [str(kind) for kind in frame.dtypes] == kinds
    assert frame["word"].to_list() == ["a", None]
    assert frame["none"].null_count() == 2
    assert read_frame(tmp_path / "t.csv", missing=["na"])["word"].to_list() == ["a", "None"]
    write_table(tmp_path / "again.csv", None, frame)
    assert read_frame(tmp_path / "again.csv").equals(frame)


def test_parts_and_folds_of_a_table(tmp_path):
    write_table(tmp_path / "t.parquet", None, people())
    data = resolve(str(tmp_path / "t.parquet"), frames=True)
    folds = data.folds(4, seed=0)
    assert [fold.sizes for fold in folds] == [{"train": 60, "valid": 30, "test": 30}] * 4
    assert folds[0].checksum != folds[1].checksum
    cut = data.with_validation(0.25, seed=1)
    assert cut.sizes == {"train": 90, "valid": 30}
    assert sorted(cut.split("all")["id"]) == sorted(data.train["id"])
