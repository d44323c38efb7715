"""Random subsets on the CPU: sizes as asked for, sets equally likely, whatever the number of threads."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pynade import ordering
from pynade.kernels.cpu import random_subsets
from pynade.ordering import random_observed
from tests.contracts.cases import generator


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 200), st.integers(1, 40), st.integers(0, 2**31 - 1), st.booleans())
def test_as_many_as_asked_for_among_those_that_exist(rows, n, seed, gaps):
    g = generator(seed)
    exists = torch.rand(rows, n, generator=g) < 0.6 if gaps else torch.ones(rows, n, dtype=torch.bool)
    count = (torch.rand(rows, generator=g) * (exists.sum(1) + 1)).long()
    chosen = random_subsets(count, n, seed, exists if gaps else None)
    assert torch.equal(chosen.sum(1), count)
    assert not (chosen & ~exists).any()


def test_sets_of_a_size_are_equally_likely():
    rows, n, size = 40_000, 6, 2
    chosen = random_subsets(torch.full((rows,), size), n, 5)
    found, seen = chosen.unique(dim=0, return_counts=True)
    p = 1 / math.comb(n, size)
    assert len(found) == math.comb(n, size)
    assert ((seen - rows * p).abs() < 5 * math.sqrt(rows * p)).all()


def test_the_seed_decides_and_threads_do_not():
    count = torch.arange(500) % 30
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            results.append(random_subsets(count, 30, 1))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(results[0], other) for other in results)
    assert not torch.equal(results[0], random_subsets(count, 30, 2))


@pytest.mark.parametrize("gaps", [True, False])
@pytest.mark.parametrize("stratified", [True, False])
def test_prefixes_have_the_same_law_with_and_without_the_kernel(monkeypatch, stratified, gaps):
    """Mean and covariance of which variables are observed, over many rows, by both ways."""
    rows, n = 30_000, 5
    exists = (torch.arange(n) != 2).expand(rows, n) if gaps else None
    moments = []
    for least in (0, rows * n + 1):
        monkeypatch.setattr(ordering, "WORTH_COMPILING", least)
        drawn = random_observed(rows, n, generator(1), exists=exists, stratified=stratified).double()
        assert not gaps or not drawn[:, 2].any()
        assert torch.equal(
            drawn, random_observed(rows, n, generator(1), exists=exists, stratified=stratified)
        )
        moments.append(torch.cat([drawn.mean(0), (drawn.T @ drawn / rows).flatten()]))
    assert not torch.equal(*moments)
    assert (moments[0] - moments[1]).abs().max() < 5 * math.sqrt(0.5 / rows)
