"""Downloading one published file: complete and checked, or not at all."""

from __future__ import annotations

import http.client
import logging
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pynade._version import __version__
from pynade.tables.registry import Progress

_CHUNK = 1 << 16


class DownloadError(OSError):
    """A file is not available, or is not the file that was expected."""


def fetch(
    address: str,
    folder: Path,
    sha256: str | None = None,
    progress: Progress | None = None,
    timeout: float = 60.0,
) -> Path:
    """Return the local copy of a published file; download it if there is none.

    The bytes are written under a temporary name first, so that an incomplete file never has the final one.
    An existing copy is used if its checksum fits (or none is known) and replaced otherwise.

    Args:
        address: The file's ``http`` or ``https`` address; its last part becomes the local name.
        folder: Where to keep it; made if missing.
        sha256: The file's SHA-256 in hexadecimal digits, or None if it was never published.
        progress: Called during the download, see `pynade.tables.registry.Progress`.
        timeout: Seconds to wait for the server before giving up.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "a5a").write_text("+1 1:1")  # put there by hand
        >>> fetch("https://example.org/a5a", folder).name
        'a5a'
    """
    import pooch

    name = local_name(address)
    transfer = _Transfer(name, progress, timeout)
    try:
        with _silent(pooch.get_logger()), _no_empty_folders(folder):
            found = pooch.retrieve(address, sha256, fname=name, path=folder, downloader=transfer)
    except OSError as error:
        raise DownloadError(f"cannot write {name} into {folder}: {error.strerror or error}") from error
    except ValueError as error:
        raise DownloadError(
            f"{name} from {address} is not the file that was expected: its SHA-256 is {transfer.sha256},"
            f" not {sha256}; the download was removed"
        ) from error
    return Path(found)


def local_name(address: str) -> str:
    """Return the file name an address ends with.

    Example:
        >>> local_name("https://example.org/data/letter.data.gz")
        'letter.data.gz'
    """
    parsed = urllib.parse.urlsplit(address)
    name = os.path.basename(urllib.parse.unquote(parsed.path))
    if parsed.scheme not in ("http", "https") or not name:
        raise ValueError(f"expected an http or https address that ends with a file name, but got {address!r}")
    return name


class _Transfer:
    """A pooch downloader over ``urllib`` that counts the bytes and reports errors in one sentence."""

    def __init__(self, name: str, progress: Progress | None, timeout: float) -> None:
        self.name, self.progress, self.timeout = name, progress, timeout
        self.sha256 = ""

    def __call__(self, url: str, output_file: str, pooch: Any, check_only: bool = False) -> None:
        import hashlib

        request = urllib.request.Request(url, headers={"User-Agent": f"pynade/{__version__}"})
        digest = hashlib.sha256()
        done, total = 0, None
        try:
            with (
                urllib.request.urlopen(request, timeout=self.timeout) as response,
                open(output_file, "wb") as out,
            ):
                length = response.headers.get("Content-Length", "")
                total = int(length) if length.isdigit() else None
                while chunk := response.read(_CHUNK):
                    _write(out, chunk, self.name)
                    digest.update(chunk)
                    done += len(chunk)
                    if self.progress is not None:
                        self.progress(done, total, self.name)
        except urllib.error.HTTPError as error:
            error.close()
            raise DownloadError(f"{url} could not be downloaded: the server answered {error.code}") from error
        except urllib.error.URLError as error:
            raise DownloadError(f"{url} could not be downloaded: {error.reason}") from error
        except (http.client.HTTPException, OSError) as error:
            raise DownloadError(
                f"the download of {url} was cut off after {done} bytes ({error}); nothing was kept"
            ) from error
        if total is not None and done != total:
            raise DownloadError(
                f"the download of {url} was cut off after {done} of {total} bytes; nothing was kept"
            )
        self.sha256 = digest.hexdigest()


def _write(out: Any, chunk: bytes, name: str) -> None:
    """Write, so that the error of a full disk differs from that of a broken connection."""
    try:
        out.write(chunk)
    except OSError as error:
        raise DownloadError(f"cannot write {name}: {error.strerror or error}") from error


@contextmanager
def _no_empty_folders(folder: Path) -> Iterator[None]:
    """Remove the folders that were made for a download that then failed."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        yield
    except BaseException:
        with suppress(OSError):
            for place in missing:
                place.rmdir()
        raise


@contextmanager
def _silent(logger: logging.Logger) -> Iterator[None]:
    """Keep pooch from printing its messages."""
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
