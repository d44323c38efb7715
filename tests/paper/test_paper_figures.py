"""The paper's figures of samples as commands."""

import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import typer

from pynade.cli.main import app
from pynade_paper.cells import cells, tables_named
from pynade_paper.paper_figures import PaperFigure, read_figures
from pynade_paper.record_figures import write_figures

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("figure", read_figures().values(), ids=list(read_figures()))
def test_every_step_is_a_command_that_is_understood(figure, tmp_path):
    main = typer.main.get_command(app)
    commands = figure.commands(tmp_path / "a b.png", tmp_path / "my work", "cpu")
    assert len(commands) == len(figure.steps)
    for words in commands:
        group, name, rest = main, words[0], words[1:]
        if name == "figure":
            group, name, rest = main.commands["figure"], words[1], words[2:]
        context = group.commands[name].make_context(name, list(rest))
        if name == "reproduce":
            given = context.params
            assert cells(tables_named(given["tables"]), given["model"], given["dataset"])
    assert str(tmp_path / "a b.png") in commands[-1]


def test_every_figure_is_there_with_its_caption():
    for figure in read_figures().values():
        picture = ROOT / "paper/results/figures" / f"{figure.name}.png"
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert picture.with_suffix(".txt").read_text(encoding="utf-8").strip() == figure.described()


def test_a_figure_is_made_once_and_resumed(run, tmp_path):
    rng = np.random.default_rng(0)
    np.save(tmp_path / "x.npy", rng.integers(0, 2, (200, 16)))
    steps = [
        "fit x.npy --model nade --hidden 4 --epochs 2 --device {device} --out {work}/small",
        "sample {work}/small -n 4 --shape 4x4 --plot {out}",
    ]
    toy = PaperFigure("toy", "Four samples.", steps)
    (tmp_path / "tables").mkdir()
    entry = f'[[figure]]\nname = "toy"\ncaption = "{toy.caption}"\nsteps = {steps!r}\n'
    (tmp_path / "tables/figures.toml").write_text(entry)
    paper = ("figure", "paper", "--protocols", "tables")
    code, _, err = run(*paper, "toy", "--out", "toy.png", "--work", "my work", "--device", "cpu")
    assert code == 0, err
    assert "pynade fit x.npy" in err
    assert (tmp_path / "toy.png").read_bytes().startswith(b"\x89PNG")
    code, _, err = run(*paper, "toy", "--out", "toy.png", "--work", "my work", "--device", "cpu")
    assert code == 0
    assert "fit" not in err
    (tmp_path / "my work/small/result.json").unlink()
    (first, _) = toy.commands(Path("toy.png"), Path("my work"), "cpu")
    assert first == ["fit", "--resume", "my work/small"]
    (tmp_path / "my work/small/result.json").write_text('{"status": "diverged"}')
    assert toy.commands(Path("toy.png"), Path("my work"), "cpu")[0][-1] == "--overwrite"
    assert toy.commands(Path("toy.png"), Path("my work"), "cpu", again=True)[0][-1] == "--overwrite"
    code, out, _ = run(*paper)
    assert code == 0
    assert "Four samples." in out
    assert run(*paper, "other")[0] == 1


def test_models_that_are_gone_are_trained_again(tmp_path):
    figure = read_figures()["natural-patches"]
    assert "--again" not in figure.commands(tmp_path / "a.png", tmp_path, "cpu")[0]
    record = tmp_path / "results/patches/bsds300/mog-k200.json"
    record.parent.mkdir(parents=True)
    record.write_text("{}")
    first, second, _ = figure.commands(tmp_path / "a.png", tmp_path, "cpu")
    assert first[-1] == "--again"
    assert second[-1] != "--again"


def test_captions_are_written_from_the_data_file(tmp_path):
    folder = tmp_path / "figures"
    folder.mkdir()
    figure = replace(next(iter(read_figures().values())), name="one", caption="A picture.")
    write_figures(tmp_path, samples={"one": figure})
    assert not (folder / "one.txt").exists()  # no picture, no caption
    (folder / "one.png").write_bytes(b"")
    write_figures(tmp_path, samples={"one": figure})
    assert (folder / "one.txt").read_text() == "A picture. `pynade figure paper one`.\n"
    assert shlex.split(figure.steps[0])[0] == "fit"
