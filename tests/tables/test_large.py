"""Tables in files that are read in parts: the schema and the codes are those of the table in memory."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import polars
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pynade.tables import Schema, large, stream
from pynade.tables.infer import Tally, Unsuitable, infer
from pynade.tables.large import FileTable

SECONDS = np.datetime64("2020-01-01", "us")
COLUMNS = {  # cells of n rows, by a generator of random numbers
    "real": lambda r, n: r.normal(size=n),
    "share": lambda r, n: r.random(n),
    "ties": lambda r, n: r.normal(size=9)[r.integers(0, 9, n)],
    "spike": lambda r, n: np.where(r.random(n) < 0.8, 0.0, r.normal(size=n)),
    "rounded": lambda r, n: r.normal(size=n).round(1),
    "wide": lambda r, n: r.integers(0, 2**40, n),
    "fives": lambda r, n: 5 * r.integers(0, 40, n),
    "few": lambda r, n: r.integers(0, 4, n),
    "id": lambda r, n: r.permutation(n),
    "row": lambda r, n: np.arange(n),
    "same": lambda r, n: np.full(n, 3),
    "empty": lambda r, n: np.full(n, np.nan),
    "bits": lambda r, n: r.random(n) < 0.3,
    "day": lambda r, n: SECONDS + 86_400 * 10**6 * r.integers(0, 99, n).astype("timedelta64[us]"),
    "second": lambda r, n: SECONDS + 10**6 * r.integers(0, 10**9, n).astype("timedelta64[us]"),
    "text": lambda r, n: r.choice(["x", "y", "NA", "z "], n),
    "many": lambda r, n: np.array([f"t{k}" for k in r.geometric(0.03, n)]),
    "words": lambda r, n: np.array([f"w{k}" for k in range(n)]),
    "digits": lambda r, n: r.choice(["1", "2.5", "-3", "40"], n),
    "codes": lambda r, n: r.choice(["007", "010"], n),
}


def table(kinds, n, seed=0, gaps=0.2):
    rng = np.random.default_rng(seed)
    frame = polars.DataFrame({f"{k} {kind}": COLUMNS[kind](rng, n) for k, kind in enumerate(kinds)})
    frame = frame.with_columns(polars.col(polars.Float64).fill_nan(None))
    gaps = {name: polars.Series(rng.random(n) < gaps) for name in frame.columns if "row" not in name}
    return frame.with_columns(
        polars.when(~gap).then(polars.col(name)).alias(name) for name, gap in gaps.items()
    )


def in_files(frame, folder, kind="parquet", cuts=(0.3, 0.35)):
    folder.mkdir()
    ends = [0, *(round(cut * len(frame)) for cut in cuts), len(frame)]
    for k, (a, b) in enumerate(pairwise(ends)):
        if b > a:
            getattr(frame[a:b], f"write_{kind}")(folder / f"{k}.{kind}")
    return folder


def attempt(call):
    """What a call gives, or the sentence of its error."""
    try:
        return call()
    except ValueError as error:
        return str(error)


def same(found, expected):
    """Whether schemas agree: moments of real columns but for rounding, all else exactly."""
    assert found.ignored == expected.ignored
    assert (found.order, found.missing, found.frame) == (expected.order, expected.missing, expected.frame)
    for one, other in zip(found.columns, expected.columns, strict=True):
        assert replace(one, loc=0, scale=1) == replace(other, loc=0, scale=1)
        assert one.dtype == other.dtype
        np.testing.assert_allclose([one.loc, one.scale], [other.loc, other.scale], rtol=1e-9, atol=1e-12)
    return True


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, max_size=5),
    st.sampled_from([2, 7, 40, 300]),
    st.integers(0, 10**6),
    st.sampled_from([0.0, 0.2, 0.9]),
    st.sampled_from([1, 16, 10**6]),
    st.sampled_from(["parquet", "csv"]),
)
def test_the_schema_and_the_codes_are_those_of_the_table_in_memory(
    tmp_path_factory, kinds, n, seed, gaps, rows, kind
):
    # (a gap in a CSV file of one column is a blank line, which is no row)
    frame = table(kinds * (1 + (kind == "csv")), n, seed, gaps)
    folder = in_files(frame, tmp_path_factory.mktemp("any") / "t", kind)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "ROWS", rows)
        whole = FileTable(folder).read()
        if kind == "parquet":
            assert whole.equals(frame)
        files = FileTable(folder, held=0.1)
        expected = attempt(lambda: Schema.inferred(whole))
        if isinstance(expected, str):
            assert attempt(files.schema) == expected
            return
        assert same(files.schema(), expected)
        codes, held = expected.encode(whole)[0], files._held_rows
        assert len(held) == (round(0.1 * n) if round(0.1 * n) > 1 else 0)
        some = np.setdiff1d(np.flatnonzero(~np.isnan(codes).all(1)), held)
        if len(some):
            with files.codes(expected) as found:
                assert found.n == len(some)
                back = found.read(np.arange(found.n)[::-1])[::-1]
            np.testing.assert_allclose(back, codes[some], rtol=1e-6)
        assert files.sample.equals(whole[np.setdiff1d(np.arange(n), held)])
        assert files.valid is None if not len(held) else files.valid.equals(whole[held])


def test_kinds_given_columns_dropped_and_words_for_missing(tmp_path):
    frame = table(["real", "few", "text", "codes"], 60)
    folder = in_files(frame, tmp_path / "t")
    given = {"1 few": "category", "0 real": {"kind": "real", "low": -9, "high": 9}, "3 codes": "integer"}
    found = FileTable(folder, ["y"], ["2 text"]).schema(given)
    assert same(found, Schema.inferred(frame, given, ["y"], ["2 text"]))
    files = FileTable(folder)
    for wrong, words in (
        ({"no": "real"}, "schema names a column 'no' that the table does not have"),
        ({"2 text": "real"}, "column '2 text' cannot be real"),
    ):
        with pytest.raises(ValueError, match=words):
            files.schema(wrong)
    assert same(files.schema(), Schema.inferred(frame))


def test_with_a_limit_counts_ends_and_steps_stay_exact_and_memory_bounded():
    rng = np.random.default_rng(0)
    x = np.where(rng.random(40_000) < 0.3, 0.0, rng.normal(size=40_000))
    limited, steps = Tally(1000), Tally(1000)
    for part in np.split(x, 40):
        limited.add(part, "number")
        assert sum(len(values) for values, _ in limited._parts) <= 1000 + 1000  # kept and those of a part
        steps.add(np.round(part * 1e4) * 14 + 3, "number")
    assert limited.n == len(x)
    np.testing.assert_array_equal(limited.values[[0, -1]], [x.min(), x.max()])
    assert len(limited.values) <= 1000
    assert limited.n_distinct == pytest.approx(len(np.unique(x)), rel=0.15)  # of some 700 values kept
    assert limited.repeats[limited.values == 0] == (x == 0).sum()
    loc, scale = limited.moments(lambda values: values)
    assert (loc, scale) == pytest.approx((x.mean(), x.std()), abs=0.1)
    column = infer("x", steps)
    assert (column.kind, column.resolution, column.origin) == (
        "integer",
        14.0,
        np.round(x.min() * 1e4) * 14 + 3,
    )
    with pytest.raises(Unsuitable, match=r"more than 1,000 different values in 40,000 rows"):
        infer("x", limited, "category")
    reals = Tally(1000)
    reals.add(rng.normal(size=5000), "number")
    reals.add(rng.normal(size=5000), "number")
    assert infer("x", reals).kind == "real"


def test_text_of_too_many_levels_is_left_out_whatever_kind_is_asked_for():
    tally = Tally(100, 50)
    for k in range(30):
        tally.add([f"t{k}", "a", None], "text", {}, [1, 9, 3])
    assert not tally.given_up
    assert tally.n == 300
    for k in range(30, 60):
        tally.add([f"t{k}", "a"], "text", {}, [1, 9])
    assert len(tally.counts) == 1
    with pytest.raises(Unsuitable, match=r"more than 50 different texts in 600 rows, such as 't0'"):
        infer("t", tally, "category")


def test_no_more_than_a_part_of_the_rows_is_read_at_once(tmp_path, monkeypatch):
    folder, sizes = in_files(table(["real", "text"], 500), tmp_path / "t"), []
    monkeypatch.setattr(stream, "ROWS", 30)
    monkeypatch.setattr(large, "SAMPLED", 40)
    monkeypatch.setattr(large, "HELD", 20)
    read = stream.Reader.__call__
    monkeypatch.setattr(stream.Reader, "__call__", lambda *a: sizes.append(len(read(*a))) or read(*a))
    files = FileTable(folder, held=0.1)
    with files.codes(files.schema()) as rows:
        assert len(rows.file.read()) == 0  # the end: no more than the codes are there
        assert rows.file.tell() == 4 * 2 * rows.n
    assert max(sizes) <= 30
    assert sum(sizes) == 2 * 500
    assert (len(files.sample), len(files.valid)) == (40, 20)
    assert rows.n <= 480


def test_draws_are_uniform_with_the_seed_and_never_of_rows_held_out(tmp_path):
    torch = pytest.importorskip("torch")
    frame = polars.DataFrame({"k": np.arange(400) / 7, "a": np.arange(400) % 3})
    files = FileTable(in_files(frame, tmp_path / "t"), held=0.25)
    schema = files.schema({"k": "real"})
    with files.codes(schema) as rows:
        drawn, again = (rows.to("cpu").draw(20_000, torch.Generator().manual_seed(1)) for _ in range(2))
    assert drawn.dtype == torch.float32
    assert torch.equal(drawn, again)
    values, counts = np.unique(drawn[:, 0].numpy(), return_counts=True)
    held = schema.encode(files.valid)[0][:, 0].astype(np.float32)
    assert len(values) == 300
    assert not np.isin(held, values).any()
    chi2 = ((counts - 20_000 / 300) ** 2 / (20_000 / 300)).sum()
    assert abs(chi2 - 299) < 5 * math.sqrt(2 * 299)


@pytest.mark.parametrize("how", ["changed", "gone", "damaged", "infinite"])
def test_files_that_change_or_are_damaged_are_named(tmp_path, how):
    folder = in_files(table(["real", "many"], 3000), tmp_path / "t")
    files, file = FileTable(folder), folder / "1.parquet"
    if how in ("changed", "gone"):
        schema = files.schema()  # the first pass
        file.unlink() if how == "gone" else polars.read_parquet(file)[1:].write_parquet(file)
        kind, words = (FileNotFoundError, "has disappeared") if how == "gone" else (ValueError, "has changed")
        with pytest.raises(kind, match=rf"^{file} {words}"), files.codes(schema):
            pass
        return
    if how == "damaged":  # within a column of one row group
        raw = bytearray(file.read_bytes())
        raw[40:400] = bytes(360)
        file.write_bytes(raw)
    else:
        frame = polars.read_parquet(file)
        frame.with_columns(polars.lit(math.inf).alias("0 real")).write_parquet(file)
    with pytest.raises(ValueError, match=rf"^{file}\b.*"):
        FileTable(folder).schema()
    one = polars.read_parquet(folder / "0.parquet")
    one.rename({"0 real": "other"}).write_parquet(file)
    with pytest.raises(ValueError, match=rf"^{file} has other columns than "):
        FileTable(folder)


def test_a_full_disk_is_named(tmp_path, monkeypatch):
    files = FileTable(in_files(table(["real"], 50), tmp_path / "t"))

    class Full(io.BytesIO):
        def write(self, text):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(large, "TemporaryFile", lambda dir: Full())
    words = rf"^cannot write {tmp_path / 'codes'}: No space left on device$"
    with pytest.raises(OSError, match=words), files.codes(files.schema(), tmp_path):
        pass
