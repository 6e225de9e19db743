"""The gradient of a batch over its micro-batches, by hand."""

from dataclasses import replace

import numpy as np
import pytest

from steadyrl.backends import tape
from steadyrl.backends.step import accumulate
from steadyrl.core.types import Group, Problem, Rollout, TokenScores
from steadyrl.maths.batch import loss_arrays, make_batch


def rollout(*ids):
    logprobs = np.zeros(len(ids), np.float32)
    own, mask = np.array(ids, np.int32), np.ones(len(ids), bool)
    return Rollout("a", np.array([0], np.int32), own, mask, logprobs, "", "stop", reward=0.0)


@pytest.mark.parametrize("parts", [[[0, 1, 2]], [[2], [0, 1]], [[0], [1], [2]]])
def test_gradients_and_sums_of_micro_batches_add_up_and_are_divided_by_the_whole(parts):
    """The log-prob of id i is w[i] = 2 i; the loss is their mean, so its gradient is how often i stands, over 5."""
    batch = make_batch([Group(Problem("a", ""), (rollout(1), rollout(1, 2), rollout(1, 3)))], 0)
    zeros = np.zeros(batch.tokens.shape)
    batch = replace(batch, old=TokenScores(logprobs=zeros), advantages=zeros)
    weights, gradient, asked = np.array([0.0, 2.0, 4.0, 6.0]), np.zeros(4), []
    reading = {}

    def read(part):
        reading["ids"], reading["mask"] = part.tokens, part.completion_mask
        reading["new"] = tape.Tensor(weights[part.tokens] * part.completion_mask)
        return tape, TokenScores(logprobs=reading["new"]), loss_arrays(part)

    def mean(xp, new, arrays, count):
        total = (new.logprobs * arrays["mask"]).sum()
        return total / count, {"logprobs": total}

    def backward(objective):
        value, sums = objective()
        value.backward()
        np.add.at(gradient, reading["ids"][reading["mask"]], reading["new"].grad[reading["mask"]])
        return value, sums

    def numbers(scalars):
        asked.append(len(scalars))
        return [float(scalar.data) for scalar in scalars]

    totals = accumulate(batch, [np.array(rows) for rows in parts], mean, read, backward, numbers)
    assert totals == {"loss/total": pytest.approx(16 / 5), "logprobs": pytest.approx(16.0)}
    assert gradient == pytest.approx([0, 3 / 5, 1 / 5, 1 / 5])
    assert asked == [2 * len(parts)]  # the host waits once
