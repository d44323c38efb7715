"""Train one comparator on binarized MNIST within a budget, score it, and write what came out.

    PYTHONPATH=src:paper python3 -m pynade_paper.comparators.train draw-attention \\
        --data binarized_mnist.npz --out first --seconds 500 --until 0.5
    … draw-attention --data binarized_mnist.npz --resume first --out second --seconds 500 --test

The folder gets `result.json`, `weights.safetensors` (the averaged weights of the best validation, at the end
also a hundred sampled images) and `state.safetensors`, from which `--resume` goes on along the schedule.
`--among A B` trains nothing: it scores the run with the best validation. `--smoke` does everything on the CPU
with tiny models and random stripes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from pynade.likelihood import Estimate
from pynade_paper.comparators.darn import DARN
from pynade_paper.comparators.dbn import DBN
from pynade_paper.comparators.draw import DRAW
from pynade_paper.comparators.pixel_rnn import PixelRNN
from pynade_paper.comparators.training import Comparator, History, Settings, State, scores, train
from pynade_paper.data.packed import read_packed, unpack

SIDE, SMOKE_SIDE = 28, 6
SAMPLES_SHOWN = 100
PROGRAM = "python -m pynade_paper.comparators.train"
# of a run that another goes on from
PROVENANCE = ("settings", "code", "torch", "device", "seconds", "command")


@dataclass(frozen=True)
class Recipe:
    """A model and how it is trained."""

    build: Callable[..., Comparator]  # from the height, the width, a generator and further arguments
    spec: dict[str, Any]  # those arguments
    smoke: dict[str, Any]  # others for `--smoke`
    how: Settings  # of its training
    samples: int = 1  # draws for each row when the final scores are estimates


_DRAW, _TINY = {"steps": 64, "units": 256, "latent": 100}, {"steps": 2, "units": 4, "latent": 2}
_DBN = {"units": 500, "top_units": 2000, "gibbs": 10, "chains": 1000}
_TINY_DBN = {"units": 8, "top_units": 40, "gibbs": 2, "chains": 10, "ais_chains": 20, "ais_steps": 200}
_DBN_HOW = Settings("sgd", rate=0.1, batch_size=500, decay=2e-4, clip=None, validations=6, samples=20)
_ATTENTION_HOW = Settings(rate=2e-3, batch_size=512, decay=0.01, ema=0.9995, validations=40)
_DARN_HOW = Settings(rate=1e-3, batch_size=200)
_PIXEL, _TINY_PIXEL = {"layers": 7, "units": 16}, {"layers": 2, "units": 4}
_NOISE = {"units": 500, "noise": True, "price": 0.03, "encoder_noise": False}
RECIPES = {
    "pixel-rnn": Recipe(PixelRNN, _PIXEL, _TINY_PIXEL, Settings(rate=2e-3, batch_size=256, ema=0.9995)),
    "draw": Recipe(DRAW, _DRAW, _TINY, Settings(rate=2e-3, batch_size=256, decay=0.01), 100),
    "draw-attention": Recipe(
        DRAW, _DRAW | {"read": 2, "write": 5}, _TINY | {"read": 2, "write": 3}, _ATTENTION_HOW, 100
    ),
    "dbn": Recipe(DBN, _DBN, _TINY_DBN, _DBN_HOW, 5000),
    "darn": Recipe(DARN, {"units": 500}, {"units": 6}, replace(_DARN_HOW, decay=0.1), 10000),
    "darn-noise": Recipe(DARN, _NOISE, {"units": 6, "noise": True}, replace(_DARN_HOW, decay=0.05), 10000),
}


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the command line, with these arguments or those of the process; the result that was written."""
    asked = parsed(arguments)
    recipe, began, out = RECIPES[asked.model], time.perf_counter(), Path(asked.out)
    device = torch.device("cpu" if asked.smoke or not torch.cuda.is_available() else "cuda")
    parts, digest = stripes() if asked.smoke else read(Path(asked.data))
    parts = {part: rows.to(device) for part, rows in parts.items()}
    found = validations(asked.among)
    source = min(found, key=lambda f: found[f]) if found else asked.resume or asked.weights
    earlier = json.loads((Path(source) / "result.json").read_text()) if source else {}
    side = SMOKE_SIDE if asked.smoke else SIDE
    spec = {"height": side, "width": side} | (recipe.smoke if asked.smoke else recipe.spec)
    spec = earlier.get("spec", spec) | dict(asked.set)
    model = recipe.build(generator=torch.Generator().manual_seed(asked.seed), **spec).to(device)
    how = settings(asked, recipe.how)
    if source:
        kept = load_file(Path(source) / "weights.safetensors", device=str(device))
        model.load_state_dict({n: t for n, t in kept.items() if n != "samples"})
    first = len(model.stages) if asked.among else asked.first_stage
    stages, state = earlier.get("stages", [])[:first], None
    if asked.resume:
        *stages, last = earlier["stages"]
        best, first = {n: kept[n] for n, _ in model.named_parameters()}, len(stages)
        state = State(History(**last), best, load_file(Path(source) / "state.safetensors"))
    result = {
        "model": asked.model,
        "spec": model.config(),
        "settings": earlier["settings"] if asked.among else asdict(how),
        "kind": model.kind,
        "parameters": sum(p.numel() for p in model.parameters()),
        "stages": stages,
        "seed": asked.seed,
        "data": {"sha256": digest, "rows": {part: len(rows) for part, rows in parts.items()}},
        "code": asked.code,
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if device.type == "cuda" else platform.processor() or "cpu",
        "command": without_folders(sys.argv[1:] if arguments is None else arguments),
        "earlier": [*earlier.get("earlier", []), {n: earlier[n] for n in PROVENANCE}] if source else [],
        "chosen_from": {Path(folder).name: score for folder, score in found.items()},
        "note": asked.note,
    }

    def write(state: State | None, tensors: dict[str, Tensor]) -> None:
        """All that is known by now."""
        out.mkdir(parents=True, exist_ok=True)
        result["seconds"] = round(time.perf_counter() - began, 1)
        if state is not None:
            result["stages"] = [*stages, asdict(state.history)]
            save_file({n: t.detach() for n, t in state.tensors.items()}, out / "state.safetensors")
            tensors = tensors | state.best
        save_file({n: t.detach().contiguous() for n, t in tensors.items()}, out / "weights.safetensors")
        (out / "result.json").write_text(json.dumps(result, indent=1) + "\n")

    model.begin(len(model.stages) - 1 if asked.among else first, parts["train"])
    for number, (share, factor) in list(enumerate(model.stages))[first:]:
        if number > first:
            model.begin(number, parts["train"])
        left = share / sum(share for share, _ in model.stages[first:])
        budget = replace(how, rate=how.rate * factor, seed=how.seed + 10 * number)
        seconds = None if how.seconds is None else how.seconds * left
        budget = replace(budget, updates=max(1, round(how.updates * left)), seconds=seconds)
        keep = lambda state: write(state, model.state_dict())  # noqa: E731
        stages.append(asdict(train(model, parts["train"], parts["valid"], budget, log, state, keep)))
        result["stages"], state = stages, None
    write(None, model.state_dict())
    if how.until < 1:
        return result
    draws = torch.Generator(device).manual_seed(asked.seed + 2)
    result["samples_per_row"] = samples = asked.samples or (2 if asked.smoke else recipe.samples)
    for part in ("valid", "test") if asked.test else ("valid",):
        result[part] = summary(scores(model, parts[part], draws, samples, final=True))
        log(json.dumps({part: result[part]}))
    result |= model.facts() | {"command": remaking(result)}
    images = model.sample(SAMPLES_SHOWN, draws).to(torch.uint8)
    write(None, {**model.state_dict(), "samples": images})
    return result


def validations(folders: Sequence[str]) -> dict[str, float]:
    """Validated estimates of finished runs, those of exact models exact, by folder."""
    read = {f: json.loads((Path(f) / "result.json").read_text())["valid"] for f in folders}
    return {f: v.get("estimate", v.get("nll"))["mean"] for f, v in read.items()}


def without_folders(words: Sequence[str]) -> str:
    """A command of this module; of paths only the last part.

    Example:
        >>> without_folders(["darn", "--out", "/tmp/x/darn-0.1"])
        'python -m pynade_paper.comparators.train darn --out darn-0.1'
    """
    return " ".join([PROGRAM, *(word.rsplit("/", 1)[-1] for word in words)])


def remaking(result: dict[str, Any]) -> str:
    """One command that makes a result again, in as many updates, on a GPU of any speed."""
    how, spec = result["settings"], RECIPES[result["model"]].spec
    given = {n: how[n] for n in ("rate", "batch_size", "decay", "ema", "seed")}
    given |= {"updates": sum(s["updates"] for s in result["stages"]), "samples": result["samples_per_row"]}
    words = [f"--{name.replace('_', '-')} {value}" for name, value in given.items()]
    other = [f"{n}={json.dumps(v)}" for n, v in result["spec"].items() if spec.get(n, v) != v]
    words += ["--set", *other] if other else []
    words += ["--test --data binarized_mnist.npz --out", result["model"]]
    return " ".join([PROGRAM, result["model"], *words])


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The arguments of the command line by name."""
    parser = argparse.ArgumentParser(description="Train one comparator of the paper's MNIST tables.")
    parser.add_argument("model", choices=RECIPES)
    parser.add_argument("--data", help="binarized_mnist.npz, bits packed into bytes; not needed by --smoke")
    parser.add_argument("--out", required=True, help="folder of what comes out")
    parser.add_argument("--seconds", type=float, help="budget of time for training, validation included")
    parser.add_argument("--updates", type=int, help="budget of updates instead")
    parser.add_argument("--until", type=float, help="share of the schedule at which this run ends")
    parser.add_argument("--resume", help="folder of a run to go on from")
    parser.add_argument("--weights", help="folder of a run whose weights to start from")
    parser.add_argument("--among", nargs="+", default=[], help="folders: the best one is only scored")
    parser.add_argument("--first-stage", type=int, default=0, help="skip the stages of training before it")
    parser.add_argument("--test", action="store_true", help="score the test images, once, at the end")
    parser.add_argument("--samples", type=int, help="draws for each image in the final estimates")
    parser.add_argument("--set", nargs="+", default=[], type=assignment, help="NAME=VALUE of the model")
    parser.add_argument("--code", help="version of the code, to be recorded")
    parser.add_argument("--note", help="what else to record, and to show on the page of results")
    parser.add_argument("--rate", type=float, help="highest learning rate")
    parser.add_argument("--batch-size", type=int, help="rows of an update")
    parser.add_argument("--decay", type=float, help="weight decay")
    parser.add_argument("--ema", type=float, help="decay of the running average of the weights")
    parser.add_argument("--seed", type=int, default=0, help="of the weights, the batches and all draws")
    parser.add_argument("--smoke", action="store_true", help="all of it at tiny size, on the CPU, in seconds")
    asked = parser.parse_args(arguments)
    if not asked.smoke and not asked.data:
        parser.error("--data is missing")
    if not (asked.smoke or asked.among) and asked.seconds is None and asked.updates is None:
        parser.error("one of --seconds and --updates is needed")
    return asked


def assignment(text: str) -> tuple[str, Any]:
    """The name and the value of "name=value", the value as JSON."""
    name, _, value = text.partition("=")
    return name, json.loads(value)


def settings(asked: argparse.Namespace, how: Settings) -> Settings:
    """The recipe's settings with those of the command line."""
    names = ("rate", "batch_size", "decay", "ema", "seconds", "updates", "until", "seed")
    how = replace(how, **{n: getattr(asked, n) for n in names if getattr(asked, n) is not None})
    if asked.smoke:
        how = replace(how, seconds=None, updates=asked.updates or 20, batch_size=16, validations=2)
    return how


def read(path: Path) -> tuple[dict[str, Tensor], str]:
    """Rows of each part as float32, and the SHA-256 of the file."""
    packed, n_features = read_packed(path)
    parts = {part: torch.from_numpy(unpack(rows, n_features)).float() for part, rows in packed.items()}
    return parts, hashlib.sha256(path.read_bytes()).hexdigest()


def stripes() -> tuple[dict[str, Tensor], str]:
    """Small images of one row or one column of ones, with noise, in place of the data."""
    draw = torch.Generator().manual_seed(0)

    def some(n: int) -> Tensor:
        x = (torch.rand(n, SMOKE_SIDE, SMOKE_SIDE, generator=draw) < 0.05).float()
        where = torch.randint(SMOKE_SIDE, (n,), generator=draw)
        x[torch.arange(n), where] = 1.0
        x[: n // 2] = x[: n // 2].mT.clone()
        return x.flatten(1)

    return {"train": some(200), "valid": some(40), "test": some(40)}, "random stripes"


def summary(found: dict[str, Tensor]) -> dict[str, dict[str, float]]:
    """Mean over the rows and its standard error, for each score."""
    each = {name: Estimate.from_rows(v.cpu()) for name, v in found.items()}
    return {name: {"mean": score.mean, "stderr": score.stderr} for name, score in each.items()}


def log(line: str) -> None:
    """Print at once."""
    print(line, flush=True)


if __name__ == "__main__":
    main()
