"""The bound of tests/rounding.py lies between what float32 rounds and what a mistake changes."""

import numpy as np
import pytest

from tests import needs
from tests.rounding import NATS, rounding


@pytest.mark.parametrize("operations", [16, 1024, pytest.param(65536, marks=pytest.mark.weekly)])
def test_sums_in_two_orders_lie_within_the_bound_and_not_far_below(operations):
    numbers = np.random.default_rng(0).uniform(-1, 1, (500, operations)).astype(np.float32)
    one, other = (np.cumsum(order, axis=1, dtype=np.float32) for order in (numbers, numbers[:, ::-1]))
    size = float(np.abs([one, other]).max())
    gap = np.abs(one[:, -1] - other[:, -1]).max()
    assert rounding(size, operations) / 30 < gap < rounding(size, operations)


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "gpt2"])
def test_float32_keeps_log_probs_within_the_bound_and_a_wrong_position_does_not(tiny_models, name):
    torch, transformers = needs.package("torch"), needs.package("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_models[name], dtype=torch.float32).eval()
    ids = torch.from_numpy(np.random.default_rng(1).integers(4, 60, (4, 24)))

    def logprobs(ids):
        with torch.no_grad():
            return model(ids).logits.double().log_softmax(-1)

    rounded, shifted = logprobs(ids), logprobs(ids.roll(1, dims=1))
    model.double()
    exact = logprobs(ids)
    assert (rounded - exact).abs().max() < NATS / 2
    assert (shifted[:, 1:] - exact[:, :-1]).abs().max() > 100 * NATS
