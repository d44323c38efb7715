"""Questions about folders of Parquet files of 10^5 … 10^7 rows: memory, rows per second, and how they grow.

    python benchmarks/scale.py --out paper/results/benchmarks/scale.json [--ask score impute] [--sizes 100000]
    python benchmarks/scale.py --out paper/results/benchmarks/scale.json --plot docs/scale.png

Each measurement is a process of its own, after a few rows that warm it up; the data are made by a seeded
generator, in a temporary folder. Up to 10^6 rows it alternates with one that reads the same files as a whole
and asks the same ("whole"). Measurements replace those in the record that asked the same of as many rows.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

FILE_ROWS = 250_000
ROUNDS = {100_000: 5, 1_000_000: 3}  # of a size; larger ones are asked once, and not as a whole
ASKED = ("score", "impute", "fit")
KINDS = ("seconds", "processor_seconds")
RATIOS = ("rate beside whole", "by processor seconds")
SEED = 0
SETTINGS: dict[str, Any] = {"hidden": (32,), "n_components": 3, "batch_size": 512, "epochs": 2}
FIT_ROWS = 50_000  # (from 20,000 on there is no mixture of Gaussians beside the net)
MIB = 1 << 20


def table(number: int, n: int) -> pl.DataFrame:
    """Rows of the file of this number: 20 columns of levels, numbers and dates; 3 have gaps."""
    rng = np.random.default_rng([SEED, number])
    cause, other = rng.normal(size=(2, n))
    made: dict[str, Any] = {}
    for k, count in enumerate((2, 2, 3, 5, 8, 12, 20)):
        place = ((other if k % 2 == 0 else cause) + rng.normal(size=n) + 3) * count / 6
        names = np.array([f"{'abcdefg'[k]}{level}" for level in range(count)], object)
        made[f"level{k}"] = pl.Series(names[np.clip(place, 0, count - 1).astype(int)], dtype=pl.String)
    for k in range(3):
        made[f"count{k}"] = rng.poisson(np.exp(1 + k / 2 + 0.3 * cause))
    made["age"] = np.clip(45 + 12 * other + rng.normal(0, 6, n), 18, 95).round().astype(int)
    made["member"] = other + rng.normal(size=n) > 0.5
    for k in range(4):
        made[f"real{k}"] = (k * cause + (3 - k) * other) / 2 + rng.normal(size=n)
    made["income"] = np.exp(9 + cause / 2 + rng.normal(0, 0.4, n)).round(-1)
    made["share"] = 1 / (1 + np.exp(rng.normal(-other, 0.5)))
    made["price"] = np.exp(2 + other / 3 + rng.normal(0, 0.3, n)).round(2)
    days = ((cause + rng.normal(0, 0.5, n) + 5) * 200).astype("timedelta64[D]")
    made["day"] = np.datetime64("2020-01-01", "D") + days
    gaps = {name: pl.Series(rng.random(n) < 0.03) for name in ("age", "level3", "real1")}
    return pl.DataFrame(made).with_columns(pl.when(~gap).then(pl.col(name)) for name, gap in gaps.items())


def make_table(folder: Path, rows: int) -> dict[str, Any]:
    """Write so many rows, in several files."""
    digest = hashlib.sha256()
    folder.mkdir()
    for number, first in enumerate(range(0, rows, FILE_ROWS)):
        made = table(number, min(FILE_ROWS, rows - first))
        made.write_parquet(folder / f"part-{number:04}.parquet")
        digest.update(made.hash_rows().to_numpy().tobytes())
    return {"checksum": digest.hexdigest(), "bytes": _bytes(folder)}


def make_model(file: Path, rows: int = FIT_ROWS, **others: Any) -> dict[str, Any]:
    """Fit the model that all measurements ask."""
    import pynade

    model = pynade.TabularNADE(random_state=SEED, **SETTINGS | others).fit(table(10**6, rows))
    model.save(file)
    return {"settings": SETTINGS, "fit_rows": rows, "seed": SEED, "columns": len(model.schema_)}


def measured(ask: str, data: Path, model: Path, out: Path, whole: bool) -> dict[str, Any]:
    """Ask once in this process: seconds, processor seconds, largest memory, bytes written."""
    import pynade

    settings = SETTINGS | {"random_state": SEED}
    if ask == "fit":
        pynade.TabularNADE(**settings).fit(table(10**6, 2000))
    else:
        known = pynade.load(model)
        question = getattr(pynade.stream, ask)
        question(known, table(10**6, 2000), out / "warm.parquet")
    before, began, busy = _peak(), time.perf_counter(), time.process_time()
    if ask == "fit":
        pynade.TabularNADE(stream_above=0.0, **settings).fit(str(data))
        found: dict[str, Any] = {}
    else:
        made = question(known, pl.read_parquet(data) if whole else data, out / "answer.parquet")
        found = {"mean": made.scores.mean} if made.scores else {"gaps": made.gaps}
        found |= {"bytes_out": _bytes(out)}
    found |= {"seconds": time.perf_counter() - began, "processor_seconds": time.process_time() - busy}
    return found | {"mib": _peak(), "mib_before": before}


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


def in_process(function: str, *arguments: Any, threads: int = 1) -> dict[str, Any]:
    """What a function of this file gives in a new process."""
    words = [sys.executable, __file__, "--call", json.dumps([function, *map(_plain, arguments)])]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def _plain(value: Any) -> Any:
    return {"path": str(value)} if isinstance(value, Path) else value


def call(text: str) -> None:
    """Call a function of this file with arguments in JSON, and print what it gives."""
    function, *arguments = json.loads(text)
    given = [Path(value["path"]) if isinstance(value, dict) else value for value in arguments]
    known: dict[str, Any] = {"table": make_table, "model": make_model, "measured": measured}
    print(json.dumps(known[function](*given)))


def summary(ask: str, rows: int, rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """One line of the record, from the rounds of one question about so many rows."""
    line: dict[str, Any] = {"ask": ask, "rows": rows}
    for name in ("stream", "whole"):
        found = [each[name] for each in rounds if name in each]
        if found:
            line[name] = {key: [each[key] for each in found] for key in found[0]}
    for kind in KINDS if "whole" in line else ():
        ratios = np.array(line["whole"][kind]) / np.array(line["stream"][kind])
        line[f"rate_beside_whole_by_{kind}"] = float(np.median(ratios))
    return line


def exponent(record: dict[str, Any], ask: str, kind: str, most: int) -> float:
    """The growth of a question's time: log of the ratio of seconds over that of rows, from 10^5 rows."""
    lines = ((line["rows"], line) for line in record["lines"] if line["ask"] == ask)
    found = {n: float(np.median(each["stream"][kind])) for n, each in lines}
    return math.log(found[most] / found[100_000]) / math.log(most / 100_000)


def measure(asked: argparse.Namespace) -> None:
    """Measure what is asked for, and write each line of the record when it is there."""
    import torch

    from pynade.atomic import write_json
    from pynade.runs.provenance import code_version, device_name, now

    record = json.loads(asked.out.read_text(encoding="utf-8")) if asked.out.is_file() else {"lines": []}
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        record["model"] = in_process("model", place / "model.safetensors")
        record |= {
            "device": device_name(torch.device("cpu")),
            "cores": os.cpu_count(),
            "torch": torch.__version__,
        }
        record |= {"polars": pl.__version__, "threads": asked.threads}
        record["command"] = "python benchmarks/scale.py --out FILE.json"
        for rows in asked.sizes:
            data = place / f"{rows}"
            facts = in_process("table", data, rows)
            for ask in asked.ask:
                rounds: list[dict[str, Any]] = []
                count = ROUNDS.get(rows, 1) if ask == "score" else 1
                for number in range(count):
                    rounds.append({})
                    for name in ("stream", "whole")[: 1 + (ask == "score" and rows in ROUNDS)]:
                        with tempfile.TemporaryDirectory(dir=place) as out:
                            given = ask, data, place / "model.safetensors", Path(out), name == "whole"
                            rounds[-1][name] = in_process("measured", *given, threads=asked.threads)
                    print(ask, rows, number, rounds[-1], flush=True)
                line = summary(ask, rows, rounds) | {"data": facts, "load_average": os.getloadavg()[0]}
                line |= {"code": code_version(), "at": now()}
                kept = [old for old in record["lines"] if (old["ask"], old["rows"]) != (ask, rows)]
                record["lines"] = sorted([*kept, line], key=lambda each: (each["ask"], each["rows"]))
                write_json(asked.out, record)
            for file in data.iterdir():
                file.unlink()


def lines_of(record: dict[str, Any]) -> str:
    """The measurements in Markdown: medians of seconds, the largest memory."""
    names = "ask", "rows", "seconds", "processor seconds", *RATIOS, "MiB"
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    for line in record["lines"]:
        found = line["stream"]
        cells = [line["ask"], f"10^{round(math.log10(line['rows']))}"]
        cells += [f"{np.median(found[kind]):.1f}" for kind in KINDS]
        beside = [line.get(f"rate_beside_whole_by_{kind}") for kind in KINDS]
        cells += ["" if ratio is None else f"{ratio:.2f}" for ratio in beside]
        lines.append("| " + " | ".join([*cells, f"{max(found['mib']):.0f}"]) + " |")
    return "\n".join(lines)


def plot(record: dict[str, Any], out: Path) -> None:
    """Seconds and memory over the rows, streamed and as a whole."""
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for ask, color in zip(ASKED, ("C0", "C1", "C2"), strict=True):
        for name, style in (("stream", "o-"), ("whole", "s:")):
            lines = [line for line in record["lines"] if line["ask"] == ask and name in line]
            if lines:
                rows = [line["rows"] for line in lines]
                label = {"score": "score", "impute": "fill gaps", "fit": "fit"}[ask]
                label += ", read part by part" if name == "stream" else ", read as a whole"
                for axes, key in ((left, "processor_seconds"), (right, "mib")):
                    value = [(min if axes is left else max)(line[name][key]) for line in lines]
                    axes.plot(
                        rows, np.array(value) / (1 if axes is left else 1024), style, color=color, label=label
                    )
    left.set(xscale="log", yscale="log", xlabel="rows of 20 columns", ylabel="processor seconds")
    right.set(xscale="log", xlabel="rows of 20 columns", ylabel="largest memory, GiB")
    right.set_ylim(0)
    left.legend(fontsize=8)
    figure.savefig(out, dpi=110, metadata={"Software": None})


def main() -> None:
    """Measure, or plot what was measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="the record (.json)")
    parser.add_argument("--sizes", type=int, nargs="+", default=[10**5, 10**6, 10**7])
    parser.add_argument("--ask", nargs="+", choices=ASKED, default=list(ASKED))
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument("--plot", type=Path, help="draw the record")
    parser.add_argument("--call", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.call:
        call(asked.call)
    elif asked.plot:
        record = json.loads(asked.out.read_text(encoding="utf-8"))
        plot(record, asked.plot)
        print(lines_of(record))
    else:
        measure(asked)


if __name__ == "__main__":
    main()
