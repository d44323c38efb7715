"""The numbers of the page are the library's, and the code that it shows gives them."""

import io
import json
import time
import warnings

import numpy as np
import polars
import pytest
from polars.testing import assert_frame_equal

import pynade
from pynade import app, datasets
from pynade.estimators.answers import ColumnConditional

GIVEN = {"species": "Gentoo", "sex": "female", "flipper_length_mm": 215}
CSV = "species,island,bill_length_mm,bill_depth_mm,flipper_length_mm,body_mass_g,sex,year\n"
CSV += "Gentoo,,50.1,15,220,,male,2007\nAdelie,Dream,,18,190,3700,,2008\n"


def run_code(answer, monkeypatch, folder, **files):
    """What the variables are after the code of an answer."""
    monkeypatch.chdir(folder)
    for name, text in files.items():
        (folder / f"{name}.csv").write_text(text, encoding="utf-8")
    found = {}
    exec(answer["code"], found)
    return found


def ask(client, name, **asked):
    answer = client.post(f"/api/{name}", json=asked)
    assert answer.status_code == 200, answer.text
    return answer.json()


def send(client, path, text):
    answer = client.post(f"/api/{path}", content=text, headers={"content-type": "text/csv"})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_page_says_what_the_model_is(penguins, model):
    about = penguins.get("/api/model").json()
    assert [c["name"] for c in about["columns"]] == list(model.schema_.names)
    assert about["data"]["rows"] == 344
    assert len(about["history"]) == 4
    lines = penguins.get("/api/scores").json()["scores"]
    assert [line["label"].split(" by")[0] for line in lines] == [
        "log-likelihood per row",
        "better than independent columns",
        "better than a Gaussian (4 columns of numbers)",
    ]
    assert {line["badge"]["text"] for line in lines} == {f"exact for {about['orderings']} orderings"}


@pytest.mark.parametrize("name", ["body_mass_g", "bill_length_mm", "island", "year"])
@pytest.mark.parametrize("given", [{}, GIVEN])
def test_a_conditional_is_the_librarys(penguins, model, monkeypatch, tmp_path, name, given):
    found = ask(penguins, "conditional", asked=[name], given=given)
    answer, marginal = model.conditional(name, given), model.conditional(name)
    assert found["badge"]["kind"] == "exact"
    if "levels" in found:
        assert dict(zip(found["levels"], found["p"], strict=True)) == pytest.approx(answer.probabilities())
        assert found["marginal"] == pytest.approx(list(marginal.probabilities().values()))
    else:
        assert (found["low"], found["high"]) == pytest.approx(answer.interval(0.9))
        assert found["median"] == pytest.approx(answer.median())
        edges = found["edges"]
        assert found["p"] == pytest.approx(np.diff(answer.cdf(edges)))
        assert found["marginal"] == pytest.approx(np.diff(marginal.cdf(edges)))
    code = run_code(found, monkeypatch, tmp_path)
    assert repr(code["answer"]) == repr(answer)
    spread = ask(penguins, "spread", asked=[name], given=given)
    if given:
        assert spread["spread"] == pytest.approx(answer.disagreement(spread["k"]))
        assert run_code(spread, monkeypatch, tmp_path)["spread"] == pytest.approx(spread["spread"])


@pytest.mark.parametrize("pair", [("body_mass_g", "island"), ("bill_length_mm", "bill_depth_mm")])
def test_the_joint_density_is_a_mean_over_both_orders(penguins, model, monkeypatch, tmp_path, pair):
    found = ask(penguins, "conditional", asked=list(pair), given={"sex": "male"})
    p = np.array(found["p"])
    code = run_code(found, monkeypatch, tmp_path)
    np.testing.assert_allclose(code["p"], p)
    assert p.shape == (len(code["xs"]), len(code["ys"]))
    assert 0.94 < p.sum() <= 1  # 98 % of each column
    x, y, given = code["xs"][3], code["ys"][2], {"sex": "male"}
    at = [found[side][k : k + 2] for side, k in (("x_at", 3), ("y_at", 2))]

    def chance(name, given, where, value):
        answer = model.conditional(name, given)
        return answer.pmf(value) if answer.column.n_levels else np.diff(answer.cdf(where))[0]

    one = chance(pair[0], given, at[0], x) * chance(pair[1], {**given, pair[0]: x}, at[1], y)
    two = chance(pair[1], given, at[1], y) * chance(pair[0], {**given, pair[1]: y}, at[0], x)
    assert p[3, 2] == pytest.approx((one + two) / 2)
    assert 0 < len(found["points"]) <= 168  # male penguins


def test_a_value_out_of_range_is_told(penguins):
    found = ask(penguins, "conditional", asked=["island"], given={"flipper_length_mm": 9999})
    assert "counts as unknown" in found["notes"][0]


def test_rows_are_sorted_by_log_p(penguins, model, monkeypatch, tmp_path):
    table = datasets.penguins("polars")
    log_p = model.score_samples(table)
    for lowest in (True, False):
        found = ask(penguins, "rows", n=10, lowest=lowest)
        expected = np.sort(log_p)[:10] if lowest else np.sort(log_p)[::-1][:10]
        assert [line["log_prob"] for line in found["rows"]] == pytest.approx(expected)
        code = run_code(found, monkeypatch, tmp_path)
        assert code["log_p"] == pytest.approx(expected)
        shown = np.array([line["surprise"] for line in found["rows"]], dtype=float)
        np.testing.assert_allclose(shown, code["surprise"].to_numpy(), rtol=1e-4)
        assert code["spread"] == pytest.approx([line["spread"] for line in found["rows"]])
        first = found["rows"][0]
        assert tuple(first["cells"]) == table.row(first["row"])
    assert found["scored"] == found["total"] == 344
    incomplete = ask(penguins, "rows", n=100, lowest=False)["rows"]  # gaps cost nothing, so these are likely
    places, apart = np.array([(line["row"], line["spread"]) for line in incomplete]).T
    rows = table[places.astype(int).tolist()]
    complete = ~np.isnan(model.disagreement(rows))
    assert 0 < complete.sum() < 100
    np.testing.assert_allclose(apart[complete], model.disagreement(rows)[complete])
    assert (apart[~complete] >= 0).all()


def test_cells_of_many_columns_are_not_tried(client, monkeypatch):
    """The surprise of a single row of a thousand columns takes a minute, so one column is timed before."""
    one = client("penguins", limits=app.Limits(seconds=5))
    monkeypatch.setattr(ColumnConditional, "pmf", lambda *_: time.sleep(1))
    monkeypatch.setattr(pynade.TabularNADE, "surprise", None)
    found = ask(one, "rows", n=3)
    assert "would take too long" in found["notes"][-1]
    assert "surprise" not in found["rows"][0]


def test_cells_of_arrays_have_their_surprise(client, runs, monkeypatch, tmp_path):
    found = ask(client("digits"), "rows", n=3)
    code = run_code(found, monkeypatch, tmp_path)
    shown = np.array([line["surprise"] for line in found["rows"]])
    np.testing.assert_allclose(shown, code["surprise"], atol=1e-6)
    model, line = pynade.load(runs / "digits"), found["rows"][0]
    known = {i: line["cells"][i] for i in range(64) if i != 20}
    p = model.conditional(20, given=known).pmf([line["cells"][20]])[0]
    assert shown[0, 20] == pytest.approx(-np.log(min(1, 2 * p)), abs=1e-3)
    fixed = ask(client("fixed"), "rows", n=3)
    assert "surprise" not in fixed["rows"][0]
    assert "fixed ordering" in fixed["notes"][0]
    sorts = {one: client(one).get("/api/model").json()["sorts_rows"] for one in ("fixed", "digits", "conv")}
    assert sorts == {"fixed": True, "digits": True, "conv": False}


def test_gaps_are_filled(penguins, model, monkeypatch, tmp_path):
    found = send(penguins, "fill", CSV)
    assert (found["filled"], found["marks"]) == (4, [[1, 5], [2, 6]])
    code = run_code(found, monkeypatch, tmp_path, table=CSV)
    assert_frame_equal(polars.read_csv(io.StringIO(found["csv"])), code["filled"])
    several = send(penguins, "fill?draws=3&seed=7", CSV)
    draws = polars.read_csv(io.StringIO(several["csv"])).partition_by("draw", include_key=False)
    for one, other in zip(draws, run_code(several, monkeypatch, tmp_path, table=CSV)["filled"], strict=True):
        assert_frame_equal(one, other)


def test_tables_are_scored(penguins, model, monkeypatch, tmp_path):
    found = send(penguins, "score", CSV)
    table = polars.read_csv(io.StringIO(CSV))
    assert found["log_prob"] == pytest.approx(model.score_samples(table))
    assert run_code(found, monkeypatch, tmp_path, table=CSV)["log_p"] == pytest.approx(found["log_prob"])
    for body in ({"rows": table.to_dicts()}, {"columns": table.to_dict(as_series=False)}):
        assert ask(penguins, "score", **body)["log_prob"] == pytest.approx(found["log_prob"])


def test_samples_respect_what_is_given(penguins, monkeypatch, tmp_path):
    found = ask(penguins, "samples", n=200, given={"species": "Gentoo"}, seed=3)
    draws = polars.read_csv(io.StringIO(found["csv"]))
    assert set(draws["species"]) == {"Gentoo"}
    assert found["real_rows"] == 124
    species = found["columns"][0]
    assert species["sampled"] == species["real"] == [0, 0, 1]
    code = run_code(found, monkeypatch, tmp_path)
    assert_frame_equal(code["draws"], draws)
    np.testing.assert_allclose(found["correlations"]["sampled"], code["correlations"], atol=1e-9)


@pytest.mark.parametrize("name", ["digits", "fixed", "conv"])
def test_images_are_completed(client, runs, monkeypatch, tmp_path, name):
    one, hole = client(name), [18, 19, 26, 27, 28]
    whole = ask(one, "image", row=5)["pixels"]
    for row in (5, None):
        found = ask(one, "image", row=row, hole=hole, seed=1)
        made, rest = np.array(found["completions"]), np.delete(np.arange(64), hole)
        assert made.shape == (5, 64)
        assert (made[:, rest] == np.array(found["pixels"])[rest]).all()
        assert row is None or found["pixels"] == whole
        plain = run_code(ask(one, "image", row=row, seed=1), monkeypatch, tmp_path)["image"]
        assert plain.tolist() == found["pixels"]
        code = run_code(found, monkeypatch, tmp_path)
        np.testing.assert_array_equal(code["completions"], made)
        inside = np.array(found["probabilities"])[hole]
        np.testing.assert_allclose(code["probabilities"][hole], inside, atol=1e-6)
        if name != "fixed":
            assert code["log_p"] == pytest.approx(found["log_prob"])
        if name == "digits":
            assert code["spread"] == pytest.approx(found["spread"])
    kinds = {"digits": ("orderings", "exact"), "conv": ("estimate", "exact"), "fixed": (None, "estimate")}
    assert (found.get("badge", {}).get("kind"), found["pixel_badge"]["kind"]) == kinds[name]
    drawn = ask(one, "samples")
    sampled = np.asarray(run_code(drawn, monkeypatch, tmp_path)["draws"])
    np.testing.assert_array_equal(sampled, drawn["images"]["sampled"])
    if name != "fixed":
        drawn = ask(one, "samples", given={"x20": 1, "x29": 1})
        assert len(drawn["images"]["real"]) == 16
        for side in ("sampled", "real"):
            assert (np.array(drawn["images"][side])[:, [19, 28]] == 1).all(), side


def test_a_fixed_ordering_is_estimated(client, monkeypatch, tmp_path):
    one = client("fixed")
    for given in ({}, {"x30": 1, "x21": 0}):
        found = ask(one, "conditional", asked=["x20"], given=given)
        assert found["badge"]["kind"] == "estimate"
        assert found["notes"] == []  # no warning of the trial, which has few particles
        draws = run_code(found, monkeypatch, tmp_path)["draws"]
        assert found["p"] == pytest.approx([(draws == 0).mean(), (draws == 1).mean()])


def test_warnings_are_those_of_the_answer(client, runs, monkeypatch):
    kind, names = type(pynade.load(runs / "fixed")), [f"x{i + 1}" for i in range(64)]

    def impute(model, rows, *args, **options):
        warnings.warn(f"{len(rows)} rows", UserWarning, stacklevel=1)
        return np.nan_to_num(rows)

    monkeypatch.setattr(kind, "impute", impute)
    table = polars.DataFrame(np.zeros((3, 64), int), names).with_columns(x5=None)
    assert send(client("fixed"), "fill", table.write_csv())["notes"] == ["3 rows"]


def test_other_frames_dates_and_real_numbers(monkeypatch, tmp_path):
    from starlette.testclient import TestClient

    rng = np.random.default_rng(0)
    days = np.datetime64("2024-01-01") + rng.integers(0, 300, 120)
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(
        {"day": days.astype("datetime64[s]"), "x": rng.normal(size=120), "on": rng.random(120) < 0.5}
    )
    model = pynade.TabularNADE(hidden=8, members=1, epochs=2, random_state=0).fit(table)
    model.save(tmp_path / "model.safetensors")
    one = TestClient(
        app.create(model, table, run=str(tmp_path / "model.safetensors")), base_url="http://localhost:1"
    )
    found = ask(one, "conditional", asked=["day"], given={"x": 0.5, "on": True})
    answer = model.conditional("day", {"x": 0.5, "on": True})
    assert found["median"] == str(answer.median().astype("datetime64[D]"))
    assert sum(found["p"]) > 0.9
    ask(one, "conditional", asked=["x", "day"], given={"on": False})
    found = ask(one, "samples", n=50, given={"day": "2024-05-05"})
    assert found["real_rows"] < 60
    assert ask(one, "rows", n=3)["rows"][0]["cells"][0].startswith("2024-")
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize("framed", [True, False])
@pytest.mark.parametrize("kind", ["GaussianMixture", "RNADE", "ChowLiu", "EoNADE", "RBM"])
def test_other_estimators(monkeypatch, tmp_path, kind, framed):
    from starlette.testclient import TestClient

    real, rng = kind in ("GaussianMixture", "RNADE"), np.random.default_rng(0)
    rows = rng.normal(size=(80, 4)) + rng.normal(size=(80, 1))
    rows = rows.round(3) if real else (rows > 0).astype(int)
    names = list("abcd") if framed else ["x1", "x2", "x3", "x4"]
    size = {"n_components": 1} if kind in ("GaussianMixture", "ChowLiu") else {"hidden": 4, "epochs": 1}
    data = polars.DataFrame(rows, names)
    model = getattr(pynade, kind)(random_state=0, **size).fit(data if framed else rows)
    model.save(tmp_path / "model.safetensors")
    made = app.create(model, data if framed else rows, run="model.safetensors")
    one, given = TestClient(made, base_url="http://localhost"), {names[0]: 1}
    gaps = data.head(6).with_columns(data.head(6)[names[1]].set(data.head(6)[names[1]] > 0, None))
    found = ask(one, "conditional", asked=[names[1]], given=given)
    code = run_code(found, monkeypatch, tmp_path)
    if kind == "RNADE":
        assert found["median"] == pytest.approx(np.quantile(code["draws"], 0.5, method="inverted_cdf"))
    elif real:
        assert found["median"] == pytest.approx(code["answer"].quantile(0.5))
    else:
        assert found["p"] == pytest.approx(code["answer"].pmf([0, 1]))
    lines = [line["log_prob"] for line in ask(one, "rows", n=5)["rows"]]
    assert lines == pytest.approx(np.sort(model.score_samples(data if framed else rows))[:5])
    assert send(one, "score", data.write_csv())["mean"] == pytest.approx(
        model.score(data if framed else rows)
    )
    found = send(one, "fill", gaps.write_csv())
    assert found["filled"] == gaps[names[1]].null_count() > 0
    filled = run_code(found, monkeypatch, tmp_path, table=gaps.write_csv())["filled"]
    assert np.allclose(polars.read_csv(io.StringIO(found["csv"])).to_numpy(), filled)
    drawn = ask(one, "samples", n=40)
    np.testing.assert_allclose(
        drawn["correlations"]["sampled"], run_code(drawn, monkeypatch, tmp_path)["correlations"], atol=1e-9
    )
    assert "better than" in one.get("/api/scores").json()["scores"][0]["label"]


def test_a_frequent_value_is_in_the_joint_density(tmp_path):
    """A value that most rows have lies in a cell of the grid, wherever the ends of its cell are."""
    from starlette.testclient import TestClient

    rng = np.random.default_rng(0)
    hours = np.where(rng.random(300) < 0.6, 40, rng.integers(1, 99, 300))
    table = polars.DataFrame({"hours": hours, "x": rng.normal(size=300)})
    model = pynade.TabularNADE(hidden=16, members=1, epochs=30, mixture=False, random_state=0).fit(table)
    one = TestClient(app.create(model, table), base_url="http://localhost")
    found, answer = ask(one, "conditional", asked=["hours", "x"]), model.conditional("hours")
    share = np.array(found["p"]).sum(1)
    assert share.max() > 0.9 * answer.pmf(40) > 0.3
    k = int(share.argmax())
    assert found["x_at"][k] < 40 <= found["x_at"][k + 1]
