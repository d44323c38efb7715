"""Reading recordings: 16 kHz, one channel, 16 bits, from NIST SPHERE, WAV and FLAC files."""

from __future__ import annotations

import io
import re
import wave

import numpy as np

#: Samples in a second; the filter banks are made for this rate only.
RATE = 16_000


def read_audio(content: bytes, where: str) -> np.ndarray:
    """Return the samples of a recording, int16; `where` names the file in error messages.

    The format is recognised by the first bytes, not by the file's name: many copies of TIMIT have SPHERE
    files that end in ``.WAV``.

    Example:
        >>> stream = io.BytesIO()
        >>> with wave.open(stream, "wb") as out:
        ...     out.setparams((1, 2, 16000, 0, "NONE", ""))
        ...     out.writeframes(np.array([3, -2], dtype="<i2").tobytes())
        >>> read_audio(stream.getvalue(), "toy.wav").tolist()
        [3, -2]
    """
    if content.startswith(b"NIST_1A"):
        samples, rate, channels = _read_sphere(content, where)
    elif (plain := _read_wave(content)) is not None:
        samples, rate, channels = plain
    else:
        samples, rate, channels = _read_other(content, where)
    if rate != RATE:
        raise ValueError(f"{where} has a sampling rate of {rate} Hz; expected {RATE}")
    if channels != 1:
        raise ValueError(f"{where} has {channels} channels; expected one")
    return samples


def sphere_header(content: bytes, where: str) -> tuple[dict[str, str], int]:
    """Return the fields of a NIST SPHERE header, and the number of bytes of the header.

    A header is the line ``NIST_1A``, a line with its size in bytes (1024), and lines of a name, a type and a
    value up to ``end_head``.

    Example:
        >>> sphere_header(b"NIST_1A\\n   1024\\nsample_rate -i 16000\\nend_head\\n", "toy.wav")
        ({'sample_rate': '16000'}, 1024)
    """
    found = re.match(rb"NIST_1A\r?\n\s*(\d+)\r?\n(.*?)^end_head", content, re.DOTALL | re.MULTILINE)
    if found is None:
        raise ValueError(f"{where} has a damaged NIST SPHERE header")
    lines = (line.split(None, 2) for line in found[2].decode("ascii", "replace").splitlines())
    return {line[0]: line[2].strip() for line in lines if len(line) == 3}, int(found[1])


def _read_sphere(content: bytes, where: str) -> tuple[np.ndarray, int, int]:
    fields, size = sphere_header(content, where)
    coding = fields.get("sample_coding", "pcm")
    if coding != "pcm":
        hint = "; unpack it first, for instance with NIST's `w_decode -o pcm`" if "shorten" in coding else ""
        raise ValueError(f"{where} has its samples coded as {coding!r}; expected 'pcm'{hint}")
    if fields.get("sample_n_bytes", "2") != "2":
        raise ValueError(f"{where} has samples of {fields['sample_n_bytes']} bytes; expected 2")
    order = fields.get("sample_byte_format", "01")
    if order not in ("01", "10"):
        raise ValueError(f"{where} has the byte order {order!r}; expected '01' or '10'")
    channels = int(fields.get("channel_count", "1"))
    body = content[size:]
    count = int(fields.get("sample_count", len(body) // (2 * channels))) * channels
    if len(body) < 2 * count:
        raise ValueError(f"{where} is cut off: expected {count} samples, but there are {len(body) // 2}")
    samples = np.frombuffer(body, dtype="<i2" if order == "01" else ">i2", count=count)
    return samples.astype(np.int16), int(fields.get("sample_rate", RATE)), channels


def _read_wave(content: bytes) -> tuple[np.ndarray, int, int] | None:
    """Read a plain 16-bit WAV file without another library; None if it is something else."""
    try:
        with wave.open(io.BytesIO(content)) as file:
            if file.getsampwidth() != 2:
                return None
            samples = np.frombuffer(file.readframes(file.getnframes()), dtype="<i2")
            return samples.astype(np.int16), file.getframerate(), file.getnchannels()
    except (wave.Error, EOFError):
        return None


def _read_other(content: bytes, where: str) -> tuple[np.ndarray, int, int]:
    try:
        import soundfile
    except ImportError as error:
        missing = f"reading {where} needs soundfile; install it with `pip install soundfile`"
        raise ImportError(missing) from error
    try:
        samples, rate = soundfile.read(io.BytesIO(content), dtype="int16", always_2d=True)
    except RuntimeError as error:  # the base of soundfile's own errors
        raise ValueError(f"{where} is damaged or no recording ({error})") from error
    return samples[:, 0].copy(), int(rate), samples.shape[1]
