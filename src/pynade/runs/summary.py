"""What a run folder or a model file holds, read without torch."""

from __future__ import annotations

import json
from pathlib import Path
from types import UnionType
from typing import Any

from pynade.digest import Damaged, read_header, read_json
from pynade.tables import Schema
from pynade.training.history import read_lines

NUMBER = int | float


def read_spec(folder: Path) -> dict[str, Any]:
    """Return the spec of a run folder: model, parameters, data and checksum; refuses what is none."""
    try:
        return read_json(folder / "spec.json", model=str, parameters=dict, data=str, data_checksum=str)
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(f"{folder} is no run folder: it has no spec.json") from None


def read_result(folder: Path) -> dict[str, Any]:
    """Return result.json of a run folder: how training ended; if it did, also epochs, scores and seconds."""
    path = folder / "result.json"
    result = read_json(path, status=str, stopped=object)
    if result["status"] != "finished":
        return result
    wanted: dict[str, Any] = {"epochs": int, "best_epoch": object, "train_log_likelihood": object}
    wanted |= {"valid": dict | None, "seconds": NUMBER}
    optional: dict[str, Any] = {"gain": dict | None, "messages": list, "choices": list, "chosen": dict}
    optional["disagreement"] = NUMBER | None
    _check(path, result, "", wanted | {name: kind for name, kind in optional.items() if name in result})
    for name, more in (("valid", {"n": int, "exact": bool}), ("gain", {})):
        if result.get(name) is not None:
            _check(path, result[name], name, {"mean": NUMBER, "stderr": NUMBER | None} | more)
    return result


def with_error(mean: dict[str, Any], digits: int = 3) -> str:
    """A mean and its standard error, which one row does not have."""
    error = "" if mean["stderr"] is None else f" ± {mean['stderr']:.{digits}f}"
    return f"{mean['mean']:.{digits}f}{error}"


def _check(path: Path, facts: dict[str, Any], name: str, wanted: dict[str, Any]) -> None:
    """Raise Damaged where entries are not there, or of another type."""
    for key, kind in wanted.items():
        if key not in facts or not isinstance(facts[key], kind):
            kinds = str(kind) if isinstance(kind, UnionType) else kind.__name__
            kinds = kinds.replace(" | ", " or ").replace("None", "null")
            raise Damaged(f"{path} is damaged: expected {key} ({kinds}) in {name and 'its '}{name or 'it'}")


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
