"""Faults of files: truncations, bit flips, and hostile files for every loader."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import shutil
import signal
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from polars import concat
from polars.exceptions import PolarsError

import pynade
from pynade.app.explorer import TooMuch
from pynade.app.server import _json_object, _json_table
from pynade.digest import BLANK, add_digest, read_json
from pynade.runs.run import resume_run
from pynade.runs.summary import describe_run, read_metrics, read_result, read_spec
from pynade.tables import resolve
from pynade.tables.files import read_frame
from pynade.tables.stream import list_parts, read_parts
from pynade.training.checkpoint import load_checkpoint
from tests.estimators.cases import rows
from tests.torture.common import OWN, Plan, Row, fault_in_sentence, processes, row

Read = Callable[[Path], Any]
MEMORY = 2 << 30  # bytes that a process may take for hostile files, beyond those of its start
SECONDS = 20  # of processor time that reading one may take
PIECES = [b'"', b"\n", b"\r", b",", b";", b"\0", b"\xff", b"\xef\xbb\xbf", b"inf", b"nan", b"1e999", b"-0"]
PIECES += [b"[" * 3000, b"9" * 400, b"\xff" * 8, b"\x7f" + b"\xff" * 7, b"\0" * 8, b"null", b"1e-400", b"\\"]
ODD = [None, True, -1, 0, 1 << 40, 10**30, 1e308, -1e-320, float("nan"), float("inf"), "", "x", [], {}, [[]]]


class Kind(NamedTuple):
    """A kind of file, and what reads it."""

    path: Path  # of a whole one
    read: Read  # what a file at another place says, as something that can be compared
    own: bool = True  # whether pynade writes it; files of users have no digest of their content


def kinds(plan: Plan) -> dict[str, Kind]:
    """All kinds of files that are read."""
    run, data = plan.data["finished"], plan.data
    beside = {name: (run / name).read_bytes() for name in ("spec.json", "model.safetensors", "result.json")}

    def in_run(read: Read) -> Read:
        def reading(path: Path) -> Any:
            for name in beside.keys() - {path.name}:
                (path.parent / name).write_bytes(beside[name])
            return read(path.parent)

        return reading

    def table(path: Path) -> Any:
        found = resolve(path.parent if path.suffix == ".png" else path, frames="mixed" in path.name)
        return found.checksum, [part.shape for part in found.parts.values()]

    def frame(path: Path) -> Any:
        return read_frame(path).write_json()

    def parts(path: Path) -> Any:
        pattern = path.with_name(f"[{path.name[0]}]{path.name[1:]}")
        found = concat([rows for _, rows in read_parts(list_parts(pattern, 7))])
        if not found.equals(read_frame(path)):
            raise AssertionError("another table in parts")
        return found.write_json()

    def sent(path: Path) -> Any:
        try:
            return _json_table(_json_object(path.read_bytes())).write_json()
        except (TooMuch, TypeError, OverflowError, PolarsError, ValueError) as error:  # as the server does
            raise ValueError(f"{path}: {str(error)[:300]}") from None

    def model(path: Path) -> Any:
        found = pynade.load(path)
        if not hasattr(found, "score_samples"):
            return found
        try:
            return found.score_samples(rows("binary", 8)).tobytes()
        except OWN as error:  # a question that the model refuses
            raise ValueError(f"{path}: {error}") from None

    def checkpoint(path: Path) -> Any:
        tensors, facts = load_checkpoint(path)
        named = {f"{a}|{b}": t.numpy().tobytes() for a, own in tensors.items() for b, t in own.items()}
        return named, json.dumps(facts)

    return {
        "model": Kind(run / "model.safetensors", model),
        "checkpoint": Kind(data["unfinished"] / "checkpoint.safetensors", checkpoint),
        "spec.json": Kind(run / "spec.json", in_run(read_spec)),
        "result.json": Kind(run / "result.json", in_run(read_result)),
        "provenance.json": Kind(run / "provenance.json", read_json),
        "metrics.jsonl": Kind(run / "metrics.jsonl", in_run(read_metrics)),
        "run folder": Kind(run / "result.json", in_run(describe_run)),
        "CSV": Kind(data["gaps.csv"], table, False),
        "mixed CSV": Kind(data["mixed.csv"], table, False),
        "CSV as a frame": Kind(data["mixed.csv"], frame, False),
        "CSV, gzip": Kind(data["mixed.csv.gz"], table, False),
        "Parquet": Kind(data["mixed.parquet"], table, False),
        "CSV in parts": Kind(data["mixed.csv"], parts, False),
        "CSV in parts, gzip": Kind(data["mixed.csv.gz"], parts, False),
        "Parquet in parts": Kind(data["mixed.parquet"], parts, False),
        "JSON sent to the explorer": Kind(data["sent.json"], sent, False),
        "npy": Kind(data["bits.npy"], table, False),
        "npy of images": Kind(data["stack.npy"], table, False),
        "npz": Kind(data["bits.npz"], table, False),
        "PNG": Kind(data["images"] / "1.png", table, False),
    }


def _outcome(kind: Kind, path: Path, expected: Any) -> tuple[bool, str]:
    """Whether reading a damaged file went well, and what happened; `expected` None takes any answer."""
    try:
        found = kind.read(path)
    except BaseException as error:
        wrong = fault_in_sentence(error, path.name, str(path.parent))
        return wrong is None, wrong or "refused in one sentence"
    if expected is None or found == expected:
        return True, "read" if expected is None else "the same answer"
    return (False, "another answer in silence") if kind.own else (True, "other data, by its checksum")


def _truncated(content: bytes, rng: np.random.Generator) -> bytes:
    return content[: int(rng.integers(len(content)))]


def _flipped(content: bytes, rng: np.random.Generator) -> bytes:
    changed = bytearray(content)
    for place in rng.integers(8 * len(content), size=rng.integers(1, 4)):
        changed[place // 8] ^= 1 << (place % 8)
    return bytes(changed)


def truncations(plan: Plan) -> Row:
    """Files of every kind, cut off anywhere."""
    return _damage(plan, "truncation", _truncated, 1000)


def bit_flips(plan: Plan) -> Row:
    """Files of every kind, with one to three bits changed."""
    return _damage(plan, "bit flip", _flipped, 3000)


def _damage(plan: Plan, fault: str, change: Callable[..., bytes], trials: int) -> Row:
    good, bad, every = Counter[str](), [], kinds(plan)
    expected = {name: k.read(_copy(plan, k.path, k.path.read_bytes())) for name, k in every.items()}
    for k, rng in plan.trials(trials):
        name = [*every][k % len(every)]
        kind = every[name]
        content = kind.path.read_bytes()
        damaged = change(content, rng)
        if damaged == content:
            good["no change"] += 1
            continue
        path = _copy(plan, kind.path, damaged)
        well, what = _outcome(kind, path, expected[name])
        if well:
            good[what] += 1
        else:
            bad.append(f"{name}: {what}")
            _keep(plan, path, f"{fault}-{k}")
    return row(f"{fault} of every kind of file", good, bad)


def _copy(plan: Plan, path: Path, content: bytes) -> Path:
    copy = plan.folder / "damaged" / path.parent.name / path.name
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_bytes(content)
    return copy


def _keep(plan: Plan, path: Path, name: str) -> None:
    if plan.keep is not None:
        plan.keep.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, plan.keep / f"{name.replace(' ', '-')}-{path.name}")


def data_of_runs(plan: Plan) -> Row:
    """An unfinished run whose data have changed since it began."""
    good, bad = Counter[str](), []
    for k, rng in plan.trials(100):
        folder, place = plan.new("resumed"), plan.new("changed") / "bits.npy"
        shutil.copytree(plan.data["unfinished"], folder, dirs_exist_ok=True)
        place.write_bytes((_flipped if k % 2 else _truncated)(plan.data["bits.npy"].read_bytes(), rng))
        spec = read_json(folder / "spec.json") | {"data": str(place)}
        (folder / "spec.json").write_text(json.dumps(add_digest(spec)))
        try:
            resume_run(folder)
            same = np.array_equal(np.load(place), np.load(plan.data["bits.npy"]))
            wrong = None if same else "went on with other data"
        except BaseException as error:
            wrong = fault_in_sentence(error, "bits.npy")
        if wrong:
            bad.append(wrong)
        else:
            good["refused in one sentence, or the same data"] += 1
    return row("resume with damaged data", good, bad)


# ------------------------------------------------------------------------------ hostile files


def hostile(content: bytes, rng: np.random.Generator) -> bytes:
    """A file made of a whole one: bytes left out, repeated, put in; or other JSON and its digest."""
    if content[:1] == b"{" and rng.integers(2):
        lines = [json.loads(line) for line in content.splitlines()] if content.count(b"\n{") else None
        facts = json.loads(content) if lines is None else lines[int(rng.integers(len(lines)))]
        had = facts.pop("digest", None)
        return json.dumps(_other(facts, rng) if had is None else _sealed(_other(facts, rng))).encode()
    if content[8:9] == b"{" and rng.integers(4):
        return _hostile_tensors(content, rng)
    for _ in range(1 + int(rng.integers(4))):
        a, b = sorted(map(int, rng.integers(len(content) + 1, size=2)))
        b = min(b, a + int(rng.choice([1, 4, 16, 1000])))
        piece = PIECES[rng.integers(len(PIECES))] if rng.integers(2) else rng.bytes(int(rng.integers(1, 9)))
        middle = [b"", piece, content[a:b] + piece, content[a:b] * int(rng.integers(2, 9))]
        content = content[:a] + middle[rng.integers(4)] + content[b:]
    return content if rng.integers(20) else rng.bytes(int(rng.integers(200)))


def _sealed(facts: Any) -> Any:
    return add_digest(facts) if isinstance(facts, dict) else facts


def _hostile_tensors(content: bytes, rng: np.random.Generator) -> bytes:
    """A safetensors file with other JSON in its header, and the right length and digest."""
    end = 8 + int.from_bytes(content[:8], "little")
    header, numbers = json.loads(content[8:end]), bytearray(content[end:])
    facts = header["__metadata__"]
    name = next(name for name in facts if name != "digest")
    if rng.integers(3):
        facts[name] = json.dumps(_other(json.loads(facts[name]), rng))
    elif rng.integers(2):
        header = _other(header, rng)
    else:
        numbers = bytearray(_flipped(bytes(numbers), rng))
    if isinstance(header, dict) and isinstance(header.get("__metadata__"), dict):
        header["__metadata__"]["digest"] = BLANK.decode()
    text = json.dumps(header, separators=(",", ":")).encode()
    made = len(text).to_bytes(8, "little") + text + bytes(numbers)
    place = made.find(b'"digest":"' + BLANK) + len(b'"digest":"')
    if place < len(b'"digest":"'):
        return made
    return made[:place] + hashlib.sha256(made).hexdigest().encode() + made[place + len(BLANK) :]


def _other(value: Any, rng: np.random.Generator) -> Any:
    """JSON with one entry, anywhere in it, replaced, left out or doubled."""
    if not (isinstance(value, dict | list) and value) or rng.integers(12) == 0:
        return ODD[rng.integers(len(ODD))]
    if isinstance(value, list):
        k = int(rng.integers(len(value)))
        some = [[], [_other(value[k], rng)], [value[k]] * 3][rng.choice(3, p=[0.1, 0.8, 0.1])]
        return value[:k] + some + value[k + 1 :]
    key = [*value][rng.integers(len(value))]
    if rng.integers(12) == 0:
        return {k: v for k, v in value.items() if k != key}
    return value | {key: _other(value[key], rng)}


def hostile_files(plan: Plan) -> Row:
    """Hostile files for every loader, in processes with little memory: no exception but the library's own."""
    good, bad, every = Counter[str](), [], kinds(plan)
    share = max(1, round(100_000 * plan.scale / len(every)))
    for n, name in plan.shared([*enumerate(every)]):
        done = 0
        while done < share:  # (again, from the next file on, after one that ended the process)
            parent, child = processes().Pipe()
            process = processes().Process(target=_read_hostile, args=(plan, name, n, done, share, child))
            process.start()
            child.close()
            try:
                while True:
                    outcomes, faults = parent.recv()
                    good.update(outcomes)
                    bad += [f"{name}: {fault}" for fault in faults]
            except EOFError:
                process.join()
            if process.exitcode == 0:
                break
            bad.append(f"{name}: the process ended with {process.exitcode}")
            number = next((plan.folder / "hostile").glob("number-*")).name[7:]
            file = next((plan.folder / "hostile").glob(f"*/{every[name].path.name}"))
            _keep(plan, file, f"hostile-{name}-{number}")
            done = int(number) + 1
    return row("hostile files for every loader", good, bad)


def _read_hostile(plan: Plan, name: str, n: int, first: int, last: int, answers: Any) -> None:
    """Read hostile files of one kind; a process of its own."""
    warnings.simplefilter("ignore")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # polars prints what it raises
    kind, content = kinds(plan)[name], kinds(plan)[name].path.read_bytes()
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.RLIM_INFINITY))
    folder = plan.new("hostile") / kind.path.parent.name
    folder.mkdir()
    path, number = folder / kind.path.name, folder.parent / f"number-{first}"
    number.touch()
    good, faults = Counter[str](), []
    for k in range(first, last):
        number = number.rename(folder.parent / f"number-{k}")
        path.write_bytes(hostile(content, np.random.default_rng([plan.seed, n, k])))
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        well, what = _outcome(kind, path, None)
        signal.setitimer(signal.ITIMER_PROF, 0)
        if well:
            good[what] += 1
        else:
            faults.append(what)
            _keep(plan, path, f"hostile-{name}-{k}")
        if k % 50 == 49 or k == last - 1:
            answers.send((good, faults))
            good, faults = Counter(), []
            if time.monotonic() > plan.deadline:
                break
    answers.close()
    os._exit(0)
