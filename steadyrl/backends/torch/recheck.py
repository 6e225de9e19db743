"""When the sampler's log-probs are taken for the trainer's: where the two agree on some rows of the batch.

Demonstrations have none. Where nothing trains on old log-probs either, the trainer measures some rows for the log, and
those of the others stay unknown (NaN).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from steadyrl.protocols import OLD_IS_CURRENT
from steadyrl.types import Batch, TokenScores

# Nats on any token; rounding gives 1e-5 in float32.
TRUSTED_GAP = 1e-3
# In bfloat16 one token at a time and whole rows are rounded apart: 30 layers by 0.02 nats in the mean. A sampler that
# is further away than this draws from something else.
ROUNDED_GAP = 0.1
RECHECKED_PART, LEAST_RECHECKED = 4, 4  # one row in four is rechecked, and at least four

Trust = Literal["no", "exact", "rounded"]
Measured = dict[str, np.ndarray]  # [B, T] by name


def checked(
    batch: Batch, trust: Trust, needs: frozenset[str], measure: Callable[[np.ndarray], Measured]
) -> TokenScores:
    """Return what ``measure`` finds of a batch.

    Args:
        batch: As sampled.
        trust: Whether some rows will do; "rounded" where the sampler may differ by the rounding of bfloat16.
        needs: See Algorithm.needs_for.
        measure: Measures all rows, given [B] bool: those that are rechecked. Of the others log-probs are the sampler's.
    """
    shown = bool(np.isnan(batch.sampling_logprobs).any())
    spared = trust != "no" and (not shown or OLD_IS_CURRENT in needs)
    rechecked = _evenly_spaced(len(batch.lengths)) if spared else np.ones(len(batch.lengths), bool)
    found = measure(rechecked)
    gap = np.abs(found["logprobs"] - batch.sampling_logprobs)[batch.completion_mask & rechecked[:, None]]
    near = gap.size and (gap.mean() <= ROUNDED_GAP if trust == "rounded" else gap.max() <= TRUSTED_GAP)
    if not rechecked.all() and not near and not shown:
        rechecked = np.ones(len(rechecked), bool)
        found = measure(rechecked)
    return TokenScores(**found, rechecked=rechecked)


def _evenly_spaced(rows: int) -> np.ndarray:
    """Return [B] bool: the rows that are rechecked."""
    rechecked = np.zeros(rows, bool)
    rechecked[np.linspace(0, rows - 1, min(rows, max(LEAST_RECHECKED, rows // RECHECKED_PART))).astype(int)] = True
    return rechecked
