"""Digests by which files are checked: of their bytes, or of the members of an archive."""

from __future__ import annotations

import hashlib
import tarfile
from pathlib import Path


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def check_file(path: Path, sha256: str) -> None:
    """Raise ValueError unless a file has the SHA-256 given."""
    found = file_digest(path)
    if found != sha256:
        raise ValueError(f"its SHA-256 is {found}, not {sha256}")


def read_tar(path: Path) -> dict[str, bytes]:
    """Return the plain files of a tar archive by name, packed or not."""
    try:
        with tarfile.open(path) as archive:
            members = {member.name: archive.extractfile(member) for member in archive if member.isfile()}
            return {name: stream.read() for name, stream in members.items() if stream is not None}
    except (tarfile.TarError, EOFError, OSError) as error:
        raise ValueError(f"the data file {path} is damaged or not a tar archive ({error})") from error


def tar_digest(files: dict[str, bytes]) -> str:
    """Return the SHA-256 of the lines ``"<sha256 of the member> <name>\\n"`` of an archive, sorted by name.

    Example:
        >>> tar_digest({"a": b"1", "b": b"2"}) == tar_digest({"b": b"2", "a": b"1"})
        True
    """
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(f"{hashlib.sha256(files[name]).hexdigest()} {name}\n".encode())
    return digest.hexdigest()


def check_tar(path: Path, digest: str) -> None:
    """Raise ValueError unless the members of an archive have the digest given (see `tar_digest`)."""
    found = tar_digest(read_tar(path))
    if found != digest:
        raise ValueError(f"what it holds has the digest {found}, not {digest}")
