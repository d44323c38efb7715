"""`pynade info` and `pynade demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from pynade.cli.arguments import Picture, Run
from pynade.cli.screen import console, errors, next_commands, plain_table, print_facts


def info(
    run: Run,
    plot: Annotated[Path | None, Option(help="Picture of the tree of a chow-liu run.")] = None,
    curve: Annotated[Path | None, Option(help="Picture of training and validation, epoch by epoch.")] = None,
) -> None:
    """Describe a run folder or a model file: model, data, training, result.

    \b
    Examples:
      pynade info runs/digits
      pynade info runs/chow-liu --plot tree.png
      pynade info runs/digits --curve curve.png
    """
    if curve is not None:
        from pynade.runs.figures import plot_training

        plot_training(run, curve)
        console.print(f"training and validation of {run} -> {curve}")
        next_commands(("info", run))
        return
    if plot is not None:
        from pynade.runs.figures import plot_tree

        plot_tree(plot, run)
    from pynade.runs.summary import describe_run, read_spec

    print_facts(describe_run(run))
    if plot is not None:
        console.print(f"-> {plot}")
    if run.is_dir() and not (run / "result.json").is_file():
        next_commands(("fit", "--resume", run))
    else:
        data = read_spec(run)["data"] if run.is_dir() else "DATA"
        next_commands(("score", run, data), ("sample", run, "-n", 10))


def demo(out: Picture = Path("pynade-demo.png")) -> None:
    """Train four models on the embedded digits in under a minute; prints a table, writes a picture.

    \b
    Example:
      pynade demo --out demo.png
    """
    from pynade.runs.demo import demo as run_demo

    with errors.status("digits") as status:
        lines = run_demo(out, lambda name: status.update(f"training {name}"))
    table = plain_table("model", "test log-likelihood (nats)", "seconds")
    for line in lines:
        table.add_row(line.model, f"{line.test.mean:.2f} ± {line.test.stderr:.2f}", f"{line.seconds:.1f}")
    images = f"Binarized 8×8 digits, {lines[0].test.n} test images"
    console.print(f"{images}, exact log-likelihoods (higher is better)")
    console.print(table)
    console.print(f"Real digits, samples and pixel probabilities: {out}")
    next_commands(("fit", "digits", "--model", "deepnade"), ("data", "list"), ("fit", "--help"))
