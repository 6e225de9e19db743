"""Texts stay within the positions that a model has; the toy tokenizer makes a token of every character."""

import numpy as np
import pytest

from steadyrl.backends.toy import ToyBackend
from steadyrl.core.errors import DataError
from steadyrl.core.types import Problem, Rollout
from steadyrl.loop.rollout.episode import Environment, context_of, require_room


class Short(ToyBackend):
    """A model of 12 positions."""

    def describe(self):
        return super().describe() | {"context": 12}


def problems(*lengths):
    return [Problem(f"p{length}", "a" * length) for length in lengths]


def test_a_turn_that_would_go_beyond_the_model_is_not_taken():
    environment = Environment(None, turn_tokens=4, context=context_of(Short()))
    assert environment.has_room(8) and not environment.has_room(9)
    nothing = np.zeros(0)
    rollout = Rollout("a", np.zeros(9), nothing, nothing.astype(bool), nothing, "", "length")
    with pytest.raises(DataError, match=r"positions reach 12 tokens, which leaves no room for a turn.*take 9 or more"):
        require_room([rollout], environment)
