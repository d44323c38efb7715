"""Images on the command line: from files to a model, its scores, its samples, its curve."""

import json

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

import pynade
from pynade.tables.registry import load

UNET = [
    "--width",
    "8",
    "--multipliers",
    "1",
    "--groups",
    "4",
    "--blocks",
    "1",
    "--heads",
    "2",
    "--epochs",
    "1",
]
CONV = ["--blueprint", "8@3x3(valid)->8@3x3(full)->1@3x3(same)", "--epochs", "2"]


@pytest.fixture
def run(run):
    """The shared one, with the lines of its output joined."""

    def call(*words):
        code, out, err = run(*words)
        return code, " ".join(out.split()), err

    return call


@pytest.fixture
def pngs(tmp_path):
    (tmp_path / "pngs").mkdir()
    grey = (load_digits().images[:200] / 16 * 255).astype(np.uint8)
    for k, image in enumerate(grey):
        Image.fromarray(image).save(tmp_path / "pngs" / f"{k:03d}.png")
    return grey


@pytest.mark.parametrize("model", ["convnade", "hybrid", "unet"])
def test_the_whole_way_on_the_embedded_digits(run, tmp_path, model):
    extra = ["--hybrid", "8"] if model == "hybrid" else []
    code, out, err = run(
        "fit", "digits", "--model", model, *(UNET if model == "unet" else CONV), *extra, "--out", "r"
    )
    assert code == 0, err
    assert "nats (estimate)" in out
    spec = json.loads((tmp_path / "r" / "spec.json").read_text())
    assert spec["parameters"]["image_shape"] == [8, 8]
    assert spec["model"] == model
    assert json.loads((tmp_path / "r" / "result.json").read_text())["valid"]["exact"] is False

    np.save("few.npy", load("digits").test[:12])
    code, out, err = run("score", "r", "few.npy")
    assert code == 0, err
    assert "n = 12, exact)" in out
    code, out, _ = run("score", "r", "digits", "--estimate", "4", "--record", "e.json")
    assert code == 0
    assert "n = 300, estimate, Monte-Carlo s.e." in out
    record = json.loads((tmp_path / "e.json").read_text())
    assert record["test"]["exact"] is False
    assert record["test"]["mc_stderr"] > 0
    assert "--estimate 4" in record["commands"][1]
    if model == "convnade":
        command = record["commands"][0].split()[1:-1]
        code, _, err = run(*command, "again")
        assert code == 0, err
        same = [run("score", name, "few.npy")[1].split("Next:")[0] for name in ("again", "r")]
        assert same[0] == same[1]  # the command makes the model
        code, out, err = run("score", "r", "few.npy", "--estimate", "8", "--orderings", "2")
        assert code == 0, err
        assert "mean over orderings: -" in out
        assert "ensemble of 2, exact on 2 rows: -" in out
        assert run("score", "r", "few.npy", "--orderings", "2")[0] == 0

    code, _, err = run("inpaint", "r", "--rows", "0,1", "--hole", "3x3", "--draws", "2", "--plot", "i.png")
    assert code == 0, err
    code, _, err = run("sample", "r", "-n", "4", "--per-step", "16", "--plot", "s.png", "--out", "s.csv")
    assert code == 0, err
    assert np.loadtxt("s.csv", skiprows=1, delimiter=",").shape == (4, 64)
    for name, words in (("a.npy", []), ("b.npy", ["--fresh-orderings"])):
        assert run("sample", "r", "-n", "4", *words, "--out", name)[0] == 0
    model = pynade.load(tmp_path / "r")
    assert (np.load("a.npy") == model.sample(4, random_state=0)).all()
    assert (np.load("b.npy") == model.sample(4, random_state=0, fresh_orderings=True)).all()
    assert (np.load("a.npy") != np.load("b.npy")).any()
    code, _, err = run("info", "r", "--curve", "c.png")
    assert code == 0, err
    for name in ("i.png", "s.png", "c.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("binarize", ["0.5", "random", "random:3"])
def test_grey_images_are_made_black_and_white_in_training_and_in_scoring(run, pngs, tmp_path, binarize):
    code, _, err = run("fit", "pngs", "--model", "convnade", *CONV, "--binarize", binarize, "--out", "r")
    assert code == 0, err
    expected = float(binarize) if binarize == "0.5" else binarize
    assert json.loads((tmp_path / "r" / "spec.json").read_text())["binarize"] == expected
    code, out, err = run("score", "r", "pngs", "--estimate", "2")
    assert code == 0, err
    assert "n = 200, estimate" in out
    code, _, err = run("inpaint", "r", "--split", "train", "--rows", "0", "--hole", "2x2", "--plot", "i.png")
    assert code == 0, err


def test_a_binarized_run_goes_on_where_it_was(run, pngs, tmp_path):
    assert run("fit", "pngs", "--model", "convnade", *CONV, "--binarize", "random:3", "--out", "r")[0] == 0
    whole = (tmp_path / "r" / "metrics.jsonl").read_text()
    (tmp_path / "r" / "result.json").unlink()
    assert run("fit", "--resume", "r")[0] == 0
    first, again = (
        [json.loads(line) for line in text.splitlines()]
        for text in (whole, (tmp_path / "r" / "metrics.jsonl").read_text())
    )
    assert [a["train"] for a in first] == [b["train"] for b in again]


def test_grey_levels_with_families_of_their_own(run, pngs, tmp_path):
    np.save("stack.npy", pngs[:120])
    options = ["--family", "discretised-logistic", "--components", "2"]
    code, _, err = run("fit", "stack.npy", "--model", "unet", *UNET, *options, "--out", "r")
    assert code == 0, err
    code, _, err = run("sample", "r", "-n", "4", "--per-step", "32", "--plot", "s.png")
    assert code == 0, err
    code, _, err = run("inpaint", "r", "--split", "train", "--rows", "0", "--hole", "2x2", "--plot", "i.png")
    assert code == 0, err
    np.save("colour.npy", np.stack([pngs, 255 - pngs, pngs // 2], -1)[:60, :4, :4])
    code, _, err = run(
        "fit", "colour.npy", "--model", "convnade", *CONV, "--family", "categorical", "--out", "c"
    )
    assert code == 0, err
    assert run("sample", "c", "-n", "4", "--per-step", "16", "--plot", "c.png")[0] == 0
    assert run("inpaint", "c", "--split", "train", "--rows", "0", "--hole", "2x2", "--plot", "d.png")[0] == 0


@pytest.mark.parametrize("model", ["transformer", "causal-transformer", "permuted-transformer"])
def test_transformers_of_tables(run, tmp_path, model):
    x = np.random.default_rng(0).normal(size=(80, 1))
    np.save("t.npy", np.hstack([x, x + 1, -x]) + 0.1)
    words = ["--width", "8", "--depth", "1", "--heads", "2", "--components", "2", "--epochs", "2"]
    code, out, err = run(
        "fit", "t.npy", "--model", model, *words, "--warm-up", "3", "--dropout", "0.1", "--out", "r"
    )
    assert code == 0, err
    ordered = model != "transformer"
    assert ("(exact)" if ordered else "(estimate)") in out
    assert run("score", "r", "t.npy")[0] == 0
    assert run("score", "r", "t.npy", "--estimate", "4")[0] == ordered
    assert run("score", "r", "t.npy", "--orderings", "3")[0] == (model == "causal-transformer")
    gaps = np.load("t.npy")
    gaps[:5, 1] = np.nan
    np.save("gaps.npy", gaps)
    assert run("impute", "r", "gaps.npy", "--out", "filled.npy")[0] == 0
    assert run("sample", "r", "-n", "3", "--out", "s.npy")[0] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fit", "pngs", "--model", "unet"], "have grey levels, but the model is one of zeros and ones"),
        (["fit", "pngs"], "have grey levels, but the model is one of zeros and ones"),
        (["fit", "digits", "--model", "unet", "--binarize", "random"], "for images with grey levels"),
        (
            ["fit", "pngs", "--model", "unet", "--binarize", "blue"],
            "binarize is a threshold between 0 and 1, random",
        ),
        (
            ["fit", "pngs", "--binarize", "0.5", "--model", "convnade", "--blueprint", "1@9x9(valid)"],
            "images of 8x8",
        ),
        (
            ["fit", "pngs", "--model", "convnade", "--binarize", "0.5", "--family", "categorical"],
            "--family categorical is for grey levels",
        ),
        (["fit", "digits", "--model", "unet", "--image-shape", "8by8"], "written HxW"),
        (["fit", "digits", "--model", "unet", "--image-shape", "4x4"], "with 64 pixels, not (4, 4)"),
        (["fit", "digits", "--model", "convnad"], "did you mean 'convnade'"),
        (["fit", "digits", "--model", "nade", "--width", "3"], "model 'nade' has no option --width"),
    ],
)
def test_mistakes_are_one_sentence(run, pngs, words, message):
    code, _, err = run(*words, "--out", "r")
    assert code == (2 if "has no option" in message else 1)
    assert message in " ".join(err.split())
    assert "Traceback" not in err


def test_estimates_and_curves_of_what_has_none(run, tmp_path):
    assert run("fit", "digits", "--hidden", "4", "--epochs", "2", "--out", "r")[0] == 0
    for words, message in (
        (["score", "r", "digits", "--estimate", "4"], "NADE cannot be estimated"),
        (["score", "r", "digits", "--estimate", "4", "--rows", "x.csv"], "give --rows without --estimate"),
        (["score", "r", "digits", "--every", "4"], "--every is for --orderings together with --estimate"),
        (["sample", "r", "--per-step", "4"], "--per-step is for samples of a model of images"),
        (["sample", "r", "--fresh-orderings"], "--fresh-orderings is for samples of a model of images"),
        (["info", "nowhere", "--curve", "c.png"], "is no run folder"),
        (["info", "r", "--curve", "c.txt"], "its ending must be one of"),
    ):
        code, _, err = run(*words)
        assert code == 1
        assert message in " ".join(err.split())
    assert run("info", "r", "--curve", "c.png")[0] == 0
    (tmp_path / "r" / "metrics.jsonl").write_text("")
    assert "has not finished an epoch" in run("info", "r", "--curve", "c.png")[2]
