"""When a server's distance from the trainer says that it does not take the weights over."""

import pytest

from steadyrl.backends.vllm.parity import Gaps


@pytest.mark.parametrize(
    ("means", "grown", "lost"),
    [
        ([5e-6, 8e-5], False, False),  # one push may be chance
        ([5e-6, 8e-5, 4e-4], True, True),  # measured with vLLM on a CPU, which kept the tied head of before
        ([5e-6, 7e-6, 4e-6, 6e-6], False, False),
        ([5e-6, 4e-4, 5e-6, 5e-6], False, False),
        ([1e-8, 3e-5, 3e-5], False, False),  # within the rounding of float32
        ([5e-3, 7e-3, 9e-3, 6e-3], False, False),  # bfloat16
        ([5e-3, 2.5e-2, 3e-2], True, False),
        ([5e-3, 6e-2, 7e-2], True, True),
        ([0.08, 0.1, 0.12], False, False),  # quantised from the start
    ],
)
def test_a_difference_that_grows_from_push_to_push_is_found(means, grown, lost):
    gaps = Gaps(means)
    assert (gaps.grown(), gaps.lost()) == (grown, lost)


def test_many_pushes_are_shown_by_the_first_and_the_last():
    assert str(Gaps([5e-6, 8e-5, 4e-4])) == "5e-06, 8e-05, 0.0004"
    assert str(Gaps([1.0, 2.0, 3.0, 4.0, 5.0])) == "1, 2, ..., 4, 5"
