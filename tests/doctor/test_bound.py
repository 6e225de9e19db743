"""The bounds of healthy sentences: where a log breaks them, by hand."""

import numpy as np
import pytest

from steadyrl.doctor.bound import Bound
from steadyrl.doctor.series import Series

STEPS = np.arange(6)


class Log:
    def __init__(self, **curves):
        self.curves = {
            name: Series(name, "", "", name, STEPS[: len(values)], np.array(values)) for name, values in curves.items()
        }

    def get(self, name):
        return self.curves.get(name)


@pytest.mark.parametrize(
    ("bound", "values", "sentence"),
    [
        (Bound("x", upper=2.0), [1, 1, 3, 3, 1, 1], "x is 3 at step 2, above 2"),
        (Bound("x", upper=2.0), [1, 1, 9, 1, 1, 1], ""),  # a single row breaks nothing
        (
            Bound("x", upper=2.0, relative_to="start"),
            [1, 1, 1, 2.5, 2.5, 1],
            "x is 2.5 at step 3, above 2 times its start (1)",
        ),
        (
            Bound("x", lower=0.5, relative_to="start"),
            [4, 4, 4, 1, 1, 4],
            "x is 1 at step 3, below 0.5 times its start (4)",
        ),
        (Bound("x", lower=0.5, relative_to="start", rows="end"), [4, 4, 4, 1, 4, 4], ""),
        (Bound("x", upper=2.0), [3, 3], ""),  # too short to say
        (Bound("y", upper=2.0), [3, 3, 3], ""),  # not logged
        (Bound("x", lower=0.5, relative_to="start"), [-4, -4, -4, -9, -9, -9], ""),  # no share of a level below 0
    ],
)
def test_a_bound_says_where_it_is_broken(bound, values, sentence):
    assert bound.broken(Log(x=values)) == sentence
