"""Sums over a vocabulary keep what is small beside what is large."""

import numpy as np
import pytest

from tests import needs
from tests.rounding import rounding

needs.skip_without_packages("mlx", extra="mlx")

import mlx.core as mx  # noqa: E402

from steadyrl.backends.mlx.likelihood import log_total, to_vocabulary  # noqa: E402


def test_many_small_gradients_are_not_lost_beside_a_large_one():
    """1 + 2^-26 is 1 in float32: added one after the other, 65,538 of them would change nothing."""
    size = 2**16 + 3
    cotangent = np.full((2, size), 2.0**-26, np.float32)
    cotangent[:, 0] = 1.0
    inputs = [mx.ones((2, 3)), mx.ones((size, 3))]
    _, (to_hidden, to_weight) = mx.vjp(to_vocabulary, inputs, [mx.array(cotangent)])
    assert np.array(to_hidden).ravel() == pytest.approx(1 + 2.0**-10, abs=2.0**-15)
    assert to_weight[:2, 0].tolist() == [2.0, 2.0**-25]


@pytest.mark.parametrize("size", [5, 512, 1030])
def test_a_head_has_the_gradients_of_its_product(size):
    generator = np.random.default_rng(0)
    hidden, weight = (generator.normal(size=shape).astype(np.float32) for shape in ((4, 3), (size, 3)))
    cotangent = generator.normal(size=(4, size)).astype(np.float32)
    inputs = [mx.array(hidden), mx.array(weight)]
    (found,), (to_hidden, to_weight) = mx.vjp(to_vocabulary, inputs, [mx.array(cotangent)])
    near = rounding(4 * size**0.5)  # what sums of so many standard normal numbers reach
    np.testing.assert_allclose(np.array(found), hidden @ weight.T, atol=near)
    np.testing.assert_allclose(np.array(to_hidden), np.einsum("nv,vh->nh", cotangent, weight), atol=near)
    np.testing.assert_allclose(np.array(to_weight), np.einsum("nv,nh->vh", cotangent, hidden), atol=near)


def test_many_unlikely_tokens_count_in_the_total():
    logits = np.full((1, 2**16 + 1), np.log(2.0**-26), np.float32)
    logits[0, 0] = 0.0
    assert log_total(mx.array(logits)).item() == pytest.approx(np.log1p(2.0**-10), abs=2.0**-15)
