import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pynade.ordering import Ordering

orders = st.integers(1, 12).flatmap(lambda D: st.permutations(range(D)))


@given(orders)
def test_rank_inverts_order(order):
    o = Ordering(order)
    assert o.order[o.rank].tolist() == list(range(len(order)))
    assert o.rank[o.order].tolist() == list(range(len(order)))


@given(orders)
def test_before_is_a_strict_total_order(order):
    before = Ordering(order).before
    D = len(order)
    assert not before.diagonal().any()
    assert torch.equal(before ^ before.T, ~torch.eye(D, dtype=torch.bool))
    for d, i in enumerate(order):
        assert set(before[i].nonzero().flatten().tolist()) == set(order[:d])


@given(st.integers(1, 9), st.integers(1, 5), st.integers(0, 2**31))
def test_random_batches_are_seeded_permutations(D, k, seed):
    def draw():
        return Ordering.random(D, k=k, generator=torch.Generator().manual_seed(seed))

    batch = draw()
    assert batch == draw()
    assert len(batch) == k
    assert [o.n_variables for o in batch] == [D] * k
    for k_, o in enumerate(batch):
        assert o == batch[k_] == Ordering(o.order)


def test_random_orderings_differ_between_rows():
    batch = Ordering.random(20, k=10, generator=torch.Generator().manual_seed(0))
    assert len({tuple(o.order.tolist()) for o in batch}) == 10


def test_natural_and_raster():
    assert Ordering.natural(4).order.tolist() == [0, 1, 2, 3]
    assert Ordering.raster(2, 3) == Ordering.natural(6)
    assert Ordering.raster(2, 2, channels=3).order.tolist() == [0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11]


def test_an_ordering_is_a_value():
    tensor = torch.tensor([1, 0])
    o = Ordering(tensor)
    tensor[0] = 7
    assert o.order.tolist() == [1, 0]
    assert hash(o) == hash(Ordering([1, 0]))
    assert o != Ordering([0, 1])
    assert o != "ordering"
    assert repr(Ordering.natural(9)) == "Ordering(9: 0, 1, 2, 3, 4, 5, …)"


def test_rows():
    o = Ordering([1, 0])
    assert o.rows(3).order.tolist() == [[1, 0]] * 3
    batch = Ordering([[1, 0], [0, 1]])
    assert batch.rows(2) is batch
    with pytest.raises(ValueError, match="2 orderings were given for 3 rows"):
        batch.rows(3)


@pytest.mark.parametrize(
    ("order", "error", "words"),
    [
        ([0, 0, 1], ValueError, "permutation of 0 … 2"),
        ([1, 2, 3], ValueError, "permutation"),
        ([[0, 1], [1, 1]], ValueError, "row 1"),
        ([], ValueError, "shape"),
        ([[[0]]], ValueError, "shape"),
        ([0.0, 1.0], TypeError, "integers"),
        ([True, False], TypeError, "integers"),
    ],
)
def test_what_is_no_ordering_is_refused(order, error, words):
    with pytest.raises(error, match=words):
        Ordering(order)


def test_single_orderings_are_not_containers():
    with pytest.raises(TypeError, match="n_variables"):
        len(Ordering([0, 1]))
    with pytest.raises(TypeError, match="indexed"):
        Ordering([0, 1])[0]
