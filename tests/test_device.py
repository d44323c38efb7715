"""Threads of a computation."""

import torch

from pynade.device import limit_threads
from tests.estimators.mixed import table, tabular


def test_threads_are_limited_and_restored():
    before = torch.get_num_threads()
    with limit_threads(1):
        assert torch.get_num_threads() == 1
        with limit_threads(5):
            assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


def test_small_tables_are_fitted_by_one_thread():
    seen = []
    before = torch.get_num_threads()
    tabular().fit(table(), callbacks=[lambda now: seen.append(torch.get_num_threads()) and None])
    assert {*seen} == {1}
    assert torch.get_num_threads() == before
