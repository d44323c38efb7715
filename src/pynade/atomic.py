"""Files that are written whole or not at all, and folders with one writer at a time."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

LOCK = (".lock", ".owner")  # files in a folder while a process writes to it


class InUse(ValueError):
    """Another process writes to a folder."""


@contextmanager
def sole_writer(folder: Path, wait: float = 1.0) -> Iterator[None]:
    """Hold the lock of a folder, which ends with the process; `InUse` names the process that has it.

    Args:
        folder: that is written to.
        wait: how many seconds to wait for another process to end.
    """
    from filelock import FileLock, Timeout  # (a tenth of a second, which `pynade --help` need not wait)

    file, owner = (folder / name for name in LOCK)
    lock = FileLock(file)
    try:
        lock.acquire(timeout=wait)
    except Timeout:
        who = "another process"
        with suppress(OSError):
            who = owner.read_text(encoding="utf-8", errors="replace")
        raise InUse(f"{folder} is in use by {who}: wait for it, or end it first") from None
    try:
        with writing(owner):
            owner.write_text(f"process {os.getpid()} on {socket.gethostname()}", encoding="utf-8")
        yield
    finally:
        for path in (owner, file):
            with suppress(OSError):  # (some systems keep a file that is open)
                path.unlink()
        lock.release()


def lock_of(folder: Path) -> tuple[str, bool]:
    """The process that the lock in a folder names, and whether a process holds it; nothing is removed.

    Args:
        folder: with a lock file, which a process that was killed leaves behind.
    """
    from filelock import FileLock, Timeout

    file, owner = (folder / name for name in LOCK)
    who = owner.read_text(encoding="utf-8", errors="replace") if owner.is_file() else "an unknown process"
    try:
        with FileLock(file, timeout=0):
            return who, False
    except Timeout:
        return who, True


def unclaimed(folder: Path) -> bool:
    """Whether a folder has only what a process leaves that was killed before its spec.json was there."""
    names = (path.name for path in folder.iterdir())
    return all(name in LOCK or re.fullmatch(r"\.spec\.json\.\d+\.part", name) for name in names)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """In this block an error of the system (a full disk, for example) names the file that is written."""
    try:
        yield
    except OSError as error:
        raise type(error)(f"cannot write {path}: {error.strerror or error}") from error


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file in the same folder, flush it to disk, then move it to `path`."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with writing(path):
            write(temporary)
            with open(temporary, "rb") as f:
                os.fsync(f.fileno())
            os.replace(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink()


def write_json(path: Path, value: Any) -> None:
    """Write readable JSON, atomically."""
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    write_atomically(path, lambda p: p.write_text(text, encoding="utf-8"))
