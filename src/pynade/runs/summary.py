"""What a run folder or a model file holds, read without torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pynade.digest import Damaged, read_header, read_json
from pynade.tables import Schema
from pynade.training.history import read_lines


def read_spec(folder: Path) -> dict[str, Any]:
    """Return the spec of a run folder: model, parameters, data and checksum; refuses what is none."""
    try:
        return read_json(folder / "spec.json", model=str, parameters=dict, data=str, data_checksum=str)
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(f"{folder} is no run folder: it has no spec.json") from None


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of metrics.jsonl of a run folder, one for each epoch (at least one)."""
    read_spec(folder)
    return read_lines(folder)


def describe_run(run: Path) -> tuple[list[tuple[str, str]], Schema | None]:
    """Return what `pynade info` prints of a run folder or a model file: facts, and the schema of a table."""
    facts: list[tuple[str, str]] = []
    schema, file = None, run / "model.safetensors" if run.is_dir() else run
    if run.is_dir():
        spec = read_spec(run)
        data = f"{spec['data']} (checksum {spec['data_checksum'][:12]}…)"
        facts += [("model", spec["model"]), ("data", data)]
        facts += [(f"  {name}", str(value)) for name, value in spec["parameters"].items()]
        for part in (run / "provenance.json", run / "result.json"):
            for name, value in read_json(part).items() if part.is_file() else ():
                text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
                facts.append((name, text))
        if not (run / "result.json").is_file():
            facts.append(("status", "unfinished: continue with `pynade fit --resume`"))
    if file.is_file() or not run.is_dir():
        header = read_header(file)
        version = f"pynade {header.facts['version']}, format {header.facts['format']}"
        version += "" if header.verified else ", not verified: it has no digest"
        try:
            facts.append(("weights", f"{header.n_weights:,}"))
            facts += [] if header.n_variables is None else [("variables", f"{header.n_variables:,}")]
            facts += [("density", json.dumps(header.facts["spec"])), ("written by", version)]
            fitted = header.facts.get("estimator", {}).get("fitted", {})
            schema = Schema.from_json(fitted["schema_"]) if "schema_" in fitted else None
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise Damaged(f"the metadata of {file} is damaged: {error!r}") from None
    return facts, schema
