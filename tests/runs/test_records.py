"""Records of runs."""

import pytest

from pynade.runs.score import _choices, ensemble_sizes


def test_sizes_of_ensembles():
    assert ensemble_sizes(20) == [1, 2, 4, 8, 10, 16, 20]


@pytest.mark.parametrize(
    ("result", "chosen", "grid"),
    [
        ({"valid": {"mean": -1.5}}, {}, [{"valid": [-1.5]}]),
        (
            {"valid": {"mean": -1.0}, "chosen": {"k": 2}, "choices": [{"k": 2, "valid": -1.0}]},
            {"k": 2},
            [{"k": 2, "valid": [-1.0]}],
        ),
        ({"valid": None}, {}, []),
    ],
)
def test_a_record_has_the_chosen_setting_and_the_grid(result, chosen, grid):
    assert _choices(result) == {"chosen": chosen, "validation_grid": grid}
