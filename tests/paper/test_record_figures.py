"""Figures drawn from records: what is in them, and that they follow the numbers."""

import json

import numpy as np
import pytest

from pynade_paper import record_figures as module
from pynade_paper.record_figures import (
    courses_figure,
    digest_of,
    drawings,
    ordering_curves,
    orderings_figure,
    time_figure,
    time_points,
    training_courses,
    write_figures,
)
from pynade_paper.records import Measured, paired_p
from pynade_paper.tables import Row, Table

DEEP = Row("Deep", "toy/{data}/deep.json", {}, entry=("mean_over_orderings",))
PAIR = Row("Deep, two", "toy/{data}/deep.json", {"a": -3.5}, entry=("ensembles", "2"))
TREE = Row("Tree", "toy/{data}/tree.json", {"a": -9.0})
TOY = Table("Toy", "For tests.", ["a", "b"], [DEEP, PAIR, TREE], "overlap", [99])
TABLES = {"toy": TOY}


def value(mean):
    return {"mean": mean, "stderr": 0.1, "mc_stderr": 0.0, "n": 9, "exact": True}


def write(results, name, **content):
    path = results / f"toy/a/{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


@pytest.fixture
def results(tmp_path):
    write(
        tmp_path,
        "deep",
        test=value(-2.0),
        mean_over_orderings=value(-5.0),
        ensembles={"1": value(-4.0), "2": value(-3.0), "4": value(-2.0)},
        wall_seconds={"fit": 50.0, "score": 2.0},
        device="cuda (x)",
    )
    write(tmp_path, "tree", test=value(-8.0), wall_seconds={"fit": 0.1, "score": 0.1}, device="cpu (x)")
    return tmp_path


def test_a_curve_has_every_size_and_the_papers_numbers(results):
    (curve,) = ordering_curves(results, TOY, "a")
    assert curve["model"] == "Deep"
    assert dict(zip(curve["orderings"], curve["mean"], strict=True)) == {1: -4.0, 2: -3.0, 4: -2.0}
    assert curve["paper"] == {2: -3.5}
    assert ordering_curves(results, TOY, "b") == []
    figure = orderings_figure({"data": "a", "curves": [curve]})
    (axis,), (legend,) = figure.axes, figure.legends
    assert axis.lines[0].get_ydata().tolist() == [-4.0, -3.0, -2.0]
    assert {t.get_text() for t in legend.get_texts()} == {"Deep", "the paper's"}


def test_points_have_the_training_time_alone_and_every_model_its_own_style(results):
    points = time_points(results, TOY)
    assert set(points) == {"a"}  # nothing of b
    assert points["a"]["Deep"] == {"seconds": 50.0, "mean": -5.0, "stderr": 0.1, "gpu": True}
    assert not points["a"]["Tree"]["gpu"]
    many = {f"Model {n}, {k} units": points["a"]["Tree"] for n in "abcdefghijkl" for k in range(4)}
    styles = module._styles(list(many))
    assert len(set(styles.values())) == len(many)
    assert time_figure({"a": many}).axes


@pytest.mark.parametrize("worst", [-3.0, -20.0, -2000.0])
def test_a_widened_scale_keeps_the_order_and_shows_all_points(worst):
    values = [worst, -2.4, -2.3, -2.2, -2.1, -2.0]
    cells = {
        f"m{n}": {"seconds": n + 1.0, "mean": v, "stderr": 0.05, "gpu": True} for n, v in enumerate(values)
    }
    figure = time_figure({"a": cells})
    axis = figure.axes[0]
    heights = axis.transData.transform([(1, v) for v in values])[:, 1]
    assert (np.diff(heights) > 0).all()
    low, high = axis.get_ylim()
    assert low < worst
    assert high > -2.0 + 0.05  # with its error bar
    ticks = axis.get_yticks()
    assert len(ticks) >= 2
    assert (np.diff(ticks) > 0).all()


def test_axes_of_training_time_say_seconds_minutes_and_nats_below_the_best():
    points = {"a": (0.02, -20.0), "b": (30.0, -9.8), "c": (70.0, -9.5), "d": (900.0, -9.38)}
    cells = {m: {"seconds": s, "mean": v, "stderr": 0.01, "gpu": True} for m, (s, v) in points.items()}
    (axis,) = time_figure({"ocr_letters": cells}).axes
    times = dict(zip(axis.get_xticks(), (t.get_text() for t in axis.get_xticklabels()), strict=True))
    assert times == {0.1: "0.1 s", 1: "1 s", 10: "10 s", 60: "1 min", 600: "10 min"}
    below = {
        float(t.get_text()): -9.38 - at
        for at, t in zip(axis.get_yticks(), axis.get_yticklabels(), strict=True)
    }
    assert {0.0, 0.1, 1.0, 10.0} <= set(below)
    assert list(below) == pytest.approx(list(below.values()))
    assert axis.get_title() == "OCR letters (best -9.38)"


def test_pictures_are_drawn_again_only_when_their_numbers_change(results):
    first = write_figures(results, tables=TABLES)
    assert {p.name for p in first} == {"orderings-a.png", "time-toy.png"}
    assert [digest_of(p) for p in first] == [d.digest for d in drawings(results, TABLES)]
    assert write_figures(results, tables=TABLES) == []
    assert len(write_figures(results, redraw=True, tables=TABLES)) == 2
    write(results, "tree", test=value(-7.0), wall_seconds={"fit": 0.1, "score": 0.1}, device="cpu (x)")
    assert [p.name for p in write_figures(results, tables=TABLES)] == ["time-toy.png"]
    assert "pynade figure time toy" in (results / "figures/time-toy.txt").read_text()


def test_the_paired_test_is_scipys_and_equal_folds_are_equal():
    a = Measured(0.0, 0.1, "exact", "", (1.0, 2.0, 4.0))
    b = Measured(0.0, 0.1, "exact", "", (1.5, 2.0, 5.5))
    d = np.subtract(a.folds, b.folds)
    from scipy.stats import t

    statistic = d.mean() / (d.std(ddof=1) / np.sqrt(3))
    assert paired_p(a, b) == pytest.approx(2 * t.sf(abs(statistic), 2))
    assert paired_p(a, a) == 1.0


def test_several_variables_per_step_are_drawn_from_their_record(results):
    line = {"per_step": 1, "mean": 0.0, "stderr": 0.0, "passes": 8, "seconds": 2.0}
    more = line | {"per_step": 4, "mean": -0.5, "stderr": 0.125, "passes": 2, "seconds": 0.5}
    about = {"model": "Deep", "data": "a", "split": "valid", "rows": 20, "samples": 3, "device": "cpu"}
    (results / "benchmarks").mkdir()
    (results / "benchmarks/per-step-x.json").write_text(json.dumps(about | {"lines": [line, more]}))
    (drawing,) = (d for d in drawings(results, TABLES) if d.name == "per-step-x")
    assert "4 at a time: 0.50 ± 0.12 nats and 0.5 s" in drawing.caption
    assert "20 validation rows of a" in drawing.caption
    losses, seconds = drawing.draw(drawing.content).axes
    assert list(losses.lines[0].get_ydata()) == [0.0, 0.5]
    assert list(seconds.lines[0].get_ydata()) == [2.0, 0.5]


def test_a_course_has_both_curves_and_the_weights_that_were_kept(results):
    assert training_courses(results, TOY, "a") == []
    assert not any(drawing.name.startswith("training") for drawing in drawings(results, TABLES))
    curve = {"updates": [10, 20, 30], "train_scored_nll": [9.0, 4.0, 2.0], "valid_nll": [9.5, 5.0, 6.0]}
    write(
        results, "tree", curve=curve, best_epoch=2, test=value(-5.5), wall_seconds={"fit": 1.0}, device="cpu"
    )
    (course,) = training_courses(results, TOY, "a")
    assert course["model"] == "Tree"
    assert course["valid"][course["kept"]] == max(course["valid"]) == -5.0
    (axis,) = courses_figure({"data": "a", "courses": [course]}).axes
    solid, dashed, kept = axis.lines[:3]
    assert list(solid.get_ydata()) == course["valid"]
    assert list(dashed.get_ydata()) == course["train"]
    assert (kept.get_xdata()[0], kept.get_ydata()[0]) == (0.02, -5.0)
    assert [drawing.name for drawing in drawings(results, TABLES)].count("training-a") == 1
