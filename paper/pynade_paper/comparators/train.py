"""Train one comparator on binarized MNIST within a budget, score it, and write what came out.

    PYTHONPATH=src:paper python3 -m pynade_paper.comparators.train pixel-rnn \\
        --data binarized_mnist.npz --out out/pixel-rnn --seconds 400 --test

The folder gets `result.json` and `weights.safetensors` (the averaged weights of the best validation, and a
hundred sampled images). `--resume weights.safetensors` goes on from such weights, with new optimizer states
and a schedule of its own. `--smoke` does everything on the CPU with tiny models and random stripes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from pynade_paper.comparators.darn import DARN
from pynade_paper.comparators.dbn import DBN
from pynade_paper.comparators.draw import DRAW
from pynade_paper.comparators.pixel_rnn import PixelRNN
from pynade_paper.comparators.training import Comparator, Settings, scores, train
from pynade_paper.data.packed import read_packed, unpack

SIDE, SMOKE_SIDE = 28, 6
SAMPLES_SHOWN = 100


@dataclass(frozen=True)
class Recipe:
    """A model and how it is trained.

    Attributes:
        build: makes the model from the height, the width, a generator and further arguments.
        spec: those arguments.
        smoke: others for `--smoke`.
        how: settings of its training.
        samples: draws for each row when the final scores are estimates.
    """

    build: Callable[..., Comparator]
    spec: dict[str, Any]
    smoke: dict[str, Any]
    how: Settings
    samples: int = 1


RECIPES = {
    "pixel-rnn": Recipe(
        PixelRNN,
        {"layers": 7, "units": 16},
        {"layers": 2, "units": 4},
        Settings(rate=2e-3, batch_size=256, ema=0.9995),
    ),
    "draw": Recipe(
        DRAW,
        {"steps": 64, "units": 256, "latent": 100},
        {"steps": 2, "units": 4, "latent": 2},
        Settings(rate=2e-3, batch_size=256, decay=0.01),
        samples=100,
    ),
    "draw-attention": Recipe(
        DRAW,
        {"steps": 64, "units": 256, "latent": 100, "read": 2, "write": 5},
        {"steps": 2, "units": 4, "latent": 2, "read": 2, "write": 3},
        Settings(rate=2e-3, batch_size=256, decay=0.01),
        samples=100,
    ),
    "dbn": Recipe(
        DBN,
        {"units": 500, "top_units": 2000, "gibbs": 25, "chains": 500},
        {"units": 8, "top_units": 40, "gibbs": 2, "chains": 10, "ais_chains": 20, "ais_steps": 200},
        Settings("sgd", rate=0.1, batch_size=200, decay=2e-4, clip=None, validations=10, samples=20),
        samples=5000,
    ),
    "darn": Recipe(
        DARN,
        {"units": 500},
        {"units": 6},
        Settings(rate=3e-3, batch_size=100, decay=0.01),
        samples=1000,
    ),
    "darn-noise": Recipe(
        DARN,
        {"units": 500, "noise": True},
        {"units": 6, "noise": True},
        Settings(rate=3e-3, batch_size=100),
        samples=1000,
    ),
}


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the command line; the result that was written.

    Args:
        arguments: of the command line; those of the process when not given.
    """
    asked = parsed(arguments)
    recipe, began = RECIPES[asked.model], time.perf_counter()
    device = torch.device("cpu" if asked.smoke or not torch.cuda.is_available() else "cuda")
    parts, digest = stripes() if asked.smoke else read(Path(asked.data))
    parts = {part: rows.to(device) for part, rows in parts.items()}
    generator = torch.Generator().manual_seed(asked.seed)
    side = SMOKE_SIDE if asked.smoke else SIDE
    spec = recipe.smoke if asked.smoke else recipe.spec
    model = recipe.build(height=side, width=side, generator=generator, **spec).to(device)
    how = settings(asked, recipe.how)
    if asked.resume:
        kept = load_file(asked.resume, device=str(device))
        model.load_state_dict({n: t for n, t in kept.items() if n != "samples"})
    stages = []
    for number, (share, factor) in enumerate(model.stages):
        if number < asked.first_stage:
            continue
        model.begin(number, parts["train"])
        left = share / sum(share for share, _ in model.stages[asked.first_stage :])
        budget = replace(how, rate=how.rate * factor, seed=how.seed + 10 * number)
        budget = replace(budget, updates=max(1, round(how.updates * left)))
        if how.seconds is not None:
            budget = replace(budget, seconds=how.seconds * left)
        stages.append(asdict(train(model, parts["train"], parts["valid"], budget, log)))
    trained = time.perf_counter() - began
    draws = torch.Generator(device).manual_seed(asked.seed + 2)
    samples = asked.samples or (2 if asked.smoke else recipe.samples)
    chosen = {"valid": parts["valid"]} | ({"test": parts["test"]} if asked.test else {})
    found = {part: summary(scores(model, rows, draws, samples, final=True)) for part, rows in chosen.items()}
    images = model.sample(SAMPLES_SHOWN, draws).to(torch.uint8).cpu()
    result = {
        "model": asked.model,
        "spec": model.config(),
        "settings": asdict(how),
        "kind": model.kind,
        "parameters": sum(p.numel() for p in model.parameters()),
        **found,
        "samples_per_row": samples,
        **model.facts(),
        "stages": stages,
        "seed": asked.seed,
        "data": {"sha256": digest, "rows": {part: len(rows) for part, rows in parts.items()}},
        "code": code_version(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if device.type == "cuda" else platform.processor() or "cpu",
        "seconds": {"training": round(trained, 1), "all": round(time.perf_counter() - began, 1)},
        "resumed_from": asked.resume,
        "command": " ".join(sys.argv if arguments is None else ["train", *arguments]),
    }
    out = Path(asked.out)
    out.mkdir(parents=True, exist_ok=True)
    tensors = {name: t.detach().cpu().contiguous() for name, t in model.state_dict().items()}
    save_file({**tensors, "samples": images}, out / "weights.safetensors")
    (out / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    log(json.dumps({part: result[part] for part in chosen}))
    return result


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The arguments of the command line by name."""
    parser = argparse.ArgumentParser(description="Train one comparator of the paper's MNIST tables.")
    parser.add_argument("model", choices=RECIPES)
    parser.add_argument("--data", help="binarized_mnist.npz, bits packed into bytes; not needed by --smoke")
    parser.add_argument("--out", required=True, help="folder of result.json and weights.safetensors")
    parser.add_argument("--seconds", type=float, help="budget of time for training, validation included")
    parser.add_argument("--updates", type=int, help="budget of updates instead")
    parser.add_argument("--resume", help="weights.safetensors to go on from")
    parser.add_argument("--first-stage", type=int, default=0, help="skip the stages of training before it")
    parser.add_argument("--test", action="store_true", help="score the test images, once, at the end")
    parser.add_argument("--samples", type=int, help="draws for each image in the final estimates")
    parser.add_argument("--rate", type=float, help="highest learning rate")
    parser.add_argument("--batch-size", type=int, help="rows of an update")
    parser.add_argument("--decay", type=float, help="weight decay")
    parser.add_argument("--ema", type=float, help="decay of the running average of the weights")
    parser.add_argument("--seed", type=int, default=0, help="of the weights, the batches and all draws")
    parser.add_argument("--smoke", action="store_true", help="all of it at tiny size, on the CPU, in seconds")
    asked = parser.parse_args(arguments)
    if not asked.smoke and not asked.data:
        parser.error("--data is missing")
    if not asked.smoke and asked.seconds is None and asked.updates is None:
        parser.error("one of --seconds and --updates is needed")
    return asked


def settings(asked: argparse.Namespace, how: Settings) -> Settings:
    """The recipe's settings with those of the command line."""
    names = ("rate", "batch_size", "decay", "ema", "seconds", "updates", "seed")
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
    return {
        name: {"mean": float(v.double().mean()), "stderr": float(v.double().std()) / math.sqrt(len(v))}
        for name, v in found.items()
    }


def code_version() -> str:
    """The commit of the code, or a digest of these files where there is none."""
    here = Path(__file__).parent
    try:
        asked = ["git", "-C", str(here), "rev-parse", "HEAD"]
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        text = b"".join(path.read_bytes() for path in sorted(here.glob("*.py")))
        return f"sha256 of the files {hashlib.sha256(text).hexdigest()[:16]}"


def log(line: str) -> None:
    """Print at once."""
    print(line, flush=True)


if __name__ == "__main__":
    main()
