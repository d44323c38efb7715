"""Fetching files from a server that behaves and from one that does not."""

from __future__ import annotations

import hashlib
import socket

import pytest

from pynade_paper.data.download import DownloadError, fetch, local_name

BODY = b"0 1 1\n" * 50_000


def test_a_file_arrives_whole_and_once(site, tmp_path, capfd):
    seen = []
    address = site.put("toy.amat", BODY)
    folder = tmp_path / "made" / "here"
    path = fetch(address, folder, hashlib.sha256(BODY).hexdigest(), progress=lambda *now: seen.append(now))
    assert path == folder / "toy.amat"
    assert path.read_bytes() == BODY
    assert seen[-1] == (len(BODY), len(BODY), "toy.amat")
    assert len(seen) > 1
    assert fetch(address, folder) == path
    assert site.asked == ["toy.amat"]
    assert capfd.readouterr() == ("", "")


def test_a_wrong_checksum_leaves_nothing(site, tmp_path):
    address = site.put("toy.amat", BODY)
    found, expected = hashlib.sha256(BODY).hexdigest(), "0" * 64
    with pytest.raises(DownloadError, match=rf"toy.amat from .*{found}, not {expected}; .* removed"):
        fetch(address, tmp_path, expected)
    assert list(tmp_path.iterdir()) == []


def test_an_old_copy_with_a_wrong_checksum_is_replaced(site, tmp_path):
    (tmp_path / "toy.amat").write_bytes(b"old")
    path = fetch(site.put("toy.amat", BODY), tmp_path, hashlib.sha256(BODY).hexdigest())
    assert path.read_bytes() == BODY


def test_a_cut_off_transfer_leaves_nothing(site, tmp_path):
    address = site.put("toy.amat", BODY)
    site.cut_off.add("toy.amat")
    message = rf"{address} was cut off after {len(BODY)} of {2 * len(BODY)} bytes; nothing was kept"
    with pytest.raises(DownloadError, match=message):
        fetch(address, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_file(site, tmp_path):
    with pytest.raises(DownloadError, match=r"none.amat could not be downloaded: the server answered 404"):
        fetch(site.address("none.amat"), tmp_path / "made" / "here")
    assert list(tmp_path.iterdir()) == []


def test_a_refused_connection(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}/toy.amat"
    with pytest.raises(DownloadError, match=r"toy.amat could not be downloaded: .*refused"):
        fetch(address, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_hangs_up_or_never_answers(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/toy.amat"
        with pytest.raises(DownloadError, match=r"toy.amat .*timed out"):
            fetch(address, tmp_path, timeout=0.05)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made(site, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DownloadError, match=r"cannot write toy.amat into "):
        fetch(site.put("toy.amat", BODY), tmp_path / "file" / "folder")


@pytest.mark.parametrize("address", ["ftp://example.org/a", "https://example.org/", "adult"])
def test_addresses_must_name_a_file(address):
    with pytest.raises(ValueError, match="expected an http or https address that ends with a file name"):
        local_name(address)
