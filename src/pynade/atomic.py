"""Atomic writing of files, and locks for folders that one process at a time may write to."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

LOCK = (".lock", ".owner")  # files of a folder's lock


class InUse(ValueError):
    """A folder is locked by another process."""


@contextmanager
def sole_writer(folder: Path, wait: float = 1.0) -> Iterator[None]:
    """Lock a folder in this block, until the process ends at most; raises `InUse` if it is locked.

    Args:
        folder: the folder to write to.
        wait: how many seconds to wait for another process to end.
    """
    from filelock import FileLock, Timeout  # (imported here: it takes a tenth of a second)

    file, owner = (folder / name for name in LOCK)
    lock = FileLock(file)
    try:
        lock.acquire(timeout=wait)
    except Timeout:
        process = "another process"
        with suppress(OSError):
            process = owner.read_text(encoding="utf-8", errors="replace")
        raise InUse(f"{folder} is in use by {process}: wait for it, or end it first") from None
    try:
        with report_write_errors(owner):
            owner.write_text(f"process {os.getpid()} on {socket.gethostname()}", encoding="utf-8")
        yield
    finally:
        for path in (owner, file):
            with suppress(OSError):  # (some systems keep a file that is open)
                path.unlink()
        lock.release()


def read_lock(folder: Path) -> tuple[str, bool]:
    """The process named in a folder's lock, and whether the lock is held; no file is removed.

    Args:
        folder: a folder with a lock file, which may be that of a process that was killed.
    """
    from filelock import FileLock, Timeout

    file, owner = (folder / name for name in LOCK)
    process = owner.read_text(encoding="utf-8", errors="replace") if owner.is_file() else "an unknown process"
    try:
        with FileLock(file, timeout=0):
            return process, False
    except Timeout:
        return process, True


def is_unclaimed(folder: Path) -> bool:
    """Whether a folder has only files of a process that was killed before it wrote spec.json."""
    names = (path.name for path in folder.iterdir())
    return all(name in LOCK or re.fullmatch(r"\.spec\.json\.\d+\.part", name) for name in names)


@contextmanager
def report_write_errors(path: Path) -> Iterator[None]:
    """In this block, system errors (a full disk, for example) name the file that is written."""
    try:
        yield
    except OSError as error:
        raise type(error)(f"cannot write {path}: {error.strerror or error}") from error


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Call `write` with a temporary file in the same folder, flush it to disk, then rename it to `path`."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with report_write_errors(path):
            write(temporary)
            with open(temporary, "rb") as f:
                os.fsync(f.fileno())
            os.replace(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink()


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON atomically."""
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    write_atomically(path, lambda p: p.write_text(text, encoding="utf-8"))
