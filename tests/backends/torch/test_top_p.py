"""Top-p keeps the fewest tokens that reach it, on a CPU by looking at the largest of a row first."""

import numpy as np
import pytest
import torch

from steadyrl.backends.torch.draw.sampler import LARGEST, warp
from steadyrl.core.types import Sampling


@pytest.mark.parametrize("spread", [0.2, 4.0])  # keeps thousands of tokens, and a few
@pytest.mark.parametrize("top_p", [0.5, 0.9])
def test_the_fewest_tokens_that_reach_top_p_stay(spread, top_p):
    vocabulary = 4 * LARGEST
    logits = torch.randn(6, vocabulary, generator=torch.Generator().manual_seed(1)) * spread
    kept = torch.isfinite(warp(logits, Sampling(max_new_tokens=1, temperature=1.0, top_p=top_p))).numpy()
    p = logits.double().softmax(-1).numpy()
    for row, stays in zip(p, kept, strict=True):
        assert row[stays].min() > row[~stays].max()
        assert row[stays].sum() >= top_p - 1e-5
        assert row[stays].sum() - row[stays].min() < top_p + 1e-5
    most = kept.sum(1).max()
    assert (most > LARGEST) == (spread == 0.2)


def test_of_tokens_alike_at_the_cut_only_as_many_stay_as_top_p_needs():
    logits = torch.zeros(2, 2 * LARGEST)
    logits[:, :3] = 12.0  # three alike, of nearly a third each
    kept = torch.isfinite(warp(logits, Sampling(max_new_tokens=1, temperature=1.0, top_p=0.5))).numpy()
    assert kept.sum(1).tolist() == [2, 2]
    assert np.flatnonzero(kept[0]).max() < 3
