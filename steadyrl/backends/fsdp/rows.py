"""Which rank works on which rows."""

from __future__ import annotations

import numpy as np

from steadyrl.core.types import Batch
from steadyrl.maths.batch import micro_batches, take_rows


def contiguous(rows: int, ranks: int) -> list[np.ndarray]:
    """Return the rows of each rank: runs of neighbours, so that most samples of a prompt stay together."""
    return np.array_split(np.arange(rows), ranks)


def balanced(lengths: np.ndarray, ranks: int) -> list[np.ndarray]:
    """Return the rows of each rank, so that all have about as many tokens to read.

    Rows are dealt from the longest to the shortest, there and back: 0, 1, 2, 2, 1, 0, 0, ...

    Args:
        lengths: [B], tokens of each row.
        ranks: How many ranks there are.
    """
    order = np.argsort(-lengths, kind="stable")  # stable, so that every rank deals alike
    turn = np.arange(len(order)) % (2 * ranks)
    rank = np.where(turn < ranks, turn, 2 * ranks - 1 - turn)
    return [np.sort(order[rank == number]) for number in range(ranks)]


def passes(batch: Batch, ranks: int, tokens: int) -> list[list[np.ndarray | None]]:
    """Return for each rank the rows of each of its passes; None where it only takes part in the others' pass.

    Every rank makes equally many: in each of them all ranks put the weights together and add up gradients.

    Args:
        batch: At least one row of it has a completion token.
        ranks: How many ranks there are.
        tokens: Padded tokens of a pass, at most.
    """
    live = np.flatnonzero(batch.completion_mask.any(axis=1))
    rank_passes: list[list[np.ndarray | None]] = []
    for share in balanced(batch.lengths[live], ranks):
        rows = live[share]
        micro = micro_batches(take_rows(batch, rows), tokens) if rows.size else []
        rank_passes.append([rows[micro_batch] for micro_batch in micro])
    count = max(map(len, rank_passes))
    return [passes + [None] * (count - len(passes)) for passes in rank_passes]


def shortest(batch: Batch) -> np.ndarray:
    """Return the shortest row with a completion token, [1]: what a rank reads in a pass without rows of its own."""
    live = np.flatnonzero(batch.completion_mask.any(axis=1))
    return live[[np.argmin(batch.lengths[live])]]
