"""Turns groups of rollouts into padded arrays, and into plain data that a checkpoint holds.

The rules of alignment and mask are here and nowhere else.

Rows are prompt then completion, padded on the right. Column t holds what belongs to the choice of token t:
``logprobs[b, t]`` is log p(tokens[b, t] | tokens[b, :t]); so the logits of position t - 1 give column t.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from steadyrl.core.types import Array, Batch, Drawn, Group, KeptIds, Problem, Rollout, TokenScores

_ROW_FIELDS = (
    "tokens lengths completion_mask sampling_logprobs rewards groups trains turn_rewards advantages returns weights"
).split()
# What a rollout holds of arrays, and how their numbers are written in a checkpoint.
_PACKED = {"prompt_ids": "<i4", "completion_ids": "<i4", "completion_mask": "|b1", "sampling_logprobs": "<f4"}
_SCORE_FIELDS = ("logprobs", "entropy", "values", "ref_logprobs", "kl_ref_exact", "kl_ref_full")


def make_batch(groups: Sequence[Group], pad_id: int) -> Batch:
    """Lay the rollouts of groups into arrays, one row each, in order.

    Args:
        groups: Scored rollouts only; a reward of None is a programming error.
        pad_id: The id that fills the columns after a row's last token, where the mask is False.
    """
    rows = [(g, rollout) for g, group in enumerate(groups) for rollout in group.rollouts]
    assert rows, "a batch needs at least one rollout"
    lengths = np.array([len(r.prompt_ids) + len(r.completion_ids) for _, r in rows], np.int32)  # [B]
    shape = (len(rows), int(lengths.max()))
    tokens = np.full(shape, pad_id, np.int32)  # [B, T]
    mask = np.zeros(shape, bool)  # [B, T]
    logprobs = np.zeros(shape, np.float32)  # [B, T]
    for row, (_, rollout) in enumerate(rows):
        start, end = len(rollout.prompt_ids), int(lengths[row])
        tokens[row, :start] = rollout.prompt_ids
        tokens[row, start:end] = rollout.completion_ids
        mask[row, start:end] = rollout.completion_mask
        logprobs[row, start:end] = np.where(rollout.completion_mask, rollout.sampling_logprobs, 0.0)
    rewards = [r.reward for _, r in rows]
    assert None not in rewards, "unscored rollouts must be dropped before batching (Algorithm.select)"
    return Batch(
        tokens=tokens,
        lengths=lengths,
        completion_mask=mask,
        sampling_logprobs=logprobs,
        rewards=np.array(rewards, np.float64),
        groups=np.array([g for g, _ in rows], np.int32),
        trains=None if all(r.trains for _, r in rows) else np.array([r.trains for _, r in rows]),
        turn_rewards=_turn_rewards([r for _, r in rows], shape),
        kept=_kept_ids([r for _, r in rows], shape),
    )


def take_rows(batch: Batch, rows: np.ndarray) -> Batch:
    """Return some rows of a batch, cut to the longest of them.

    Args:
        batch: [B, T].
        rows: [b] int, which rows, in which order.
    """
    width = int(batch.lengths[rows].max())
    kept_ids = np.zeros(0, np.int32)
    if batch.kept is not None:
        ends = batch.kept.lengths.sum(axis=1).cumsum()  # [B], behind the ids of each row
        kept_ids = np.concatenate(
            [batch.kept.ids[ends[row] - batch.kept.lengths[row].sum() : ends[row]] for row in rows]
        )
    return _map_arrays(batch, lambda x: x[rows, :width] if x.ndim == 2 else x[rows], kept_ids)


def only_trained(batch: Batch) -> Batch:
    """Return a batch for updates: no token of a row that does not train is under its mask.

    Until then everything is measured on all rows, for how long an answer is, what it earned and how far it lies from
    the reference do not depend on whether it trains. The rows stay, so that a mean over rollouts divides by all of
    them.
    """
    if batch.trains is None:
        return batch
    rows = batch.trains[:, None]  # [B, 1]
    kept_ids = np.zeros(0, np.int32)
    if batch.kept is not None:
        kept_ids = batch.kept.ids[np.repeat(batch.trains, batch.kept.lengths.sum(axis=1))]
    masked = _map_arrays(batch, lambda x: x if x.ndim == 1 else np.where(rows, x, x.dtype.type(0)), kept_ids)
    return replace(masked, tokens=batch.tokens)


def _map_arrays(batch: Batch, change: Callable[[Array], Array], kept_ids: np.ndarray) -> Batch:
    """Return a batch with all arrays [B, T] and [B] changed; ``kept_ids`` are those of the ragged ids that remain."""

    def fields(record: Any, names: Sequence[str]) -> dict[str, Array]:
        return {name: None if (x := getattr(record, name)) is None else change(x) for name in names}

    return replace(
        batch,
        **fields(batch, _ROW_FIELDS),
        old=batch.old and TokenScores(**fields(batch.old, _SCORE_FIELDS)),
        kept=batch.kept and KeptIds(kept_ids, change(batch.kept.lengths)),
        measured={name: change(x) for name, x in batch.measured.items()},
    )


def loss_arrays(batch: Batch) -> dict[str, Array]:
    """Return the arrays that a loss may use, by name: the mask, old log-probs and values, reference, advantages, ..."""
    old = batch.old
    arrays = {
        "mask": batch.completion_mask,
        "old_logprobs": old and old.logprobs,
        "sampling_logprobs": batch.sampling_logprobs,
        "old_values": old and old.values,
        "ref_logprobs": old and old.ref_logprobs,
        "advantages": batch.advantages,
        "returns": batch.returns,
        "value_level": batch.measured.get("value_level"),
        "weights": batch.weights,
    }
    return {name: array for name, array in arrays.items() if array is not None}


def loss_count(batch: Batch) -> float:
    """Return what a minibatch's loss is divided by: its completion tokens, or its rollouts if tokens have weights."""
    return float(batch.completion_mask.sum() if batch.weights is None else len(batch.lengths))


def loss_stats(batch: Batch, totals: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """Return what a loss measured on a minibatch as (sum, count) pairs.

    The parts of a loss (``loss/...``) are divided as the loss is, so that they add up to it. Everything else is a mean
    over tokens, whatever mean the loss is.

    Args:
        batch: The whole minibatch.
        totals: Sums over its micro-batches, and "loss/total", which is divided already.
    """
    of_loss, tokens = loss_count(batch), float(batch.completion_mask.sum())
    counts = {name: of_loss if name.startswith("loss/") else tokens for name in totals} | {"loss/total": 1.0}
    return {name: (total, counts[name]) for name, total in totals.items()}


def mean_of_tokens(mask: np.ndarray, limit: int) -> np.ndarray:
    """Weigh tokens so that each rollout counts by the mean over its tokens: 1 / length each.

    Every rollout then counts the same, and a token of a long one counts less: long wrong answers are hardly punished.

    Args:
        mask: [B, T] bool.
        limit: Not used.

    Returns:
        [B, T], see ``Batch.weights``.

    Source:
        Shao et al., "DeepSeekMath" (arXiv 2402.03300), equation 3: 1 / |o_i|.
    """
    weights: np.ndarray = mask / np.maximum(mask.sum(axis=1, keepdims=True), 1)
    return weights


def sum_of_tokens(mask: np.ndarray, limit: int) -> np.ndarray:
    """Weigh tokens so that each rollout counts by the sum over its tokens, over a constant: 1 / limit each.

    Args:
        mask: [B, T] bool.
        limit: > 0, tokens; the longest completion that could be.

    Returns:
        [B, T], see ``Batch.weights``.

    Source:
        Liu et al., "Understanding R1-Zero-Like Training" (arXiv 2503.20783), section 3.2 (Dr. GRPO); the constant is
        the generation budget of its listing.
    """
    assert limit > 0, "a sum over tokens needs the longest completion to be measured by"
    weights: np.ndarray = mask / limit
    return weights


def micro_batches(batch: Batch, tokens: int) -> list[np.ndarray]:
    """Cut a batch's rows into parts of at most ``tokens`` padded tokens each, rows of like length together.

    A row without a completion token (an episode in which no turn fitted) has nothing to measure and is left out. A part
    that had only such rows could not be computed.

    Returns:
        Row indices per part; at least one row each, every row with a completion token once.
    """
    order = np.argsort(batch.lengths, kind="stable")  # [B], the shortest first
    order = order[batch.completion_mask[order].any(axis=1)]
    assert order.size, "a batch without a completion token must not reach a backend"
    row_lists: list[list[int]] = [[]]
    for row in order.tolist():
        if row_lists[-1] and (len(row_lists[-1]) + 1) * int(batch.lengths[row]) > tokens:
            row_lists.append([])
        row_lists[-1].append(row)
    return [np.array(rows) for rows in row_lists]


def _turn_rewards(rollouts: Sequence[Rollout], shape: tuple[int, int]) -> np.ndarray | None:
    """Put the share of each turn on the last token that the policy chose before the turn's end."""
    if not any(r.turn_shares for r in rollouts):
        return None
    shares = np.zeros(shape)  # [B, T]
    for row, rollout in enumerate(rollouts):
        for end, share in rollout.turn_shares:
            chosen = np.flatnonzero(rollout.completion_mask[:end])
            if chosen.size:  # an episode in which no turn fitted trains nothing
                shares[row, len(rollout.prompt_ids) + chosen[-1]] += share
    return shares


def _kept_ids(rollouts: Sequence[Rollout], shape: tuple[int, int]) -> KeptIds | None:
    if all(r.kept_ids is None for r in rollouts):
        return None
    lengths = np.zeros(shape, np.int32)  # [B, T]
    ids: list[np.ndarray] = []
    for row, rollout in enumerate(rollouts):
        start = len(rollout.prompt_ids)
        for t, token_ids in enumerate(rollout.kept_ids or ()):
            lengths[row, start + t] = len(token_ids)
            ids.append(token_ids)
    return KeptIds(np.concatenate(ids).astype(np.int32), lengths)


def limit_rewards(batch: Batch, limit: float) -> Batch:
    """Return a batch whose rewards lie within ``limit`` of their median, which outliers do not move; 0 for no limit."""
    if not limit:
        return batch
    middle = np.median(batch.rewards)
    return replace(batch, rewards=np.clip(batch.rewards, middle - limit, middle + limit))


def plain_drawn(rollouts: Drawn) -> dict[str, Any]:
    """Return rollouts as plain data for JSON; ``recall_drawn(plain_drawn(rollouts))`` equals them in every number."""
    groups = [
        {"problem": asdict(group.problem), "why": group.why, "rollouts": [_plain_rollout(r) for r in group.rollouts]}
        for group in rollouts.groups
    ]
    return {"version": rollouts.version, "numbers": dict(rollouts.numbers), "groups": groups}


def recall_drawn(data: Mapping[str, Any]) -> Drawn:
    """Return the rollouts that ``plain_drawn`` wrote.

    Raises:
        ValueError: It cannot have written these data.
    """
    try:
        groups = tuple(
            Group(
                Problem(**{**group["problem"], "messages": tuple(group["problem"]["messages"])}),
                tuple(_recall_rollout(rollout) for rollout in group["rollouts"]),
                group["why"],
            )
            for group in data["groups"]
        )
        return Drawn(int(data["version"]), groups, dict(data["numbers"]))
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"rollouts in flight cannot be read ({type(error).__name__}: {error})") from error


def _plain_rollout(rollout: Rollout) -> dict[str, Any]:
    arrays = {name: _packed(getattr(rollout, name), kind) for name, kind in _PACKED.items()}
    kept_ids = rollout.kept_ids
    lengths = None if kept_ids is None else [len(ids) for ids in kept_ids]
    # An empty array first: of a completion without tokens there is nothing to join.
    ids = None if kept_ids is None else _packed(np.concatenate([np.zeros(0, np.int32), *kept_ids]), "<i4")
    return {**asdict(replace(rollout, kept_ids=None)), **arrays, "kept_ids": ids, "kept_lengths": lengths}


def _recall_rollout(data: Mapping[str, Any]) -> Rollout:
    arrays = {name: _unpacked(data[name], kind) for name, kind in _PACKED.items()}
    kept_ids, lengths = None, data["kept_lengths"]
    if lengths is not None:
        kept_ids = tuple(np.split(_unpacked(data["kept_ids"], "<i4"), np.cumsum(lengths)[:-1]))
    plain_fields = {
        n: tuple(value) if isinstance(value, list) else value for n, value in data.items() if n != "kept_lengths"
    }
    fields: dict[str, Any] = {**plain_fields, **arrays, "kept_ids": kept_ids}
    for name in ("turn_rewards", "turn_shares"):
        fields[name] = tuple((int(end), float(share)) for end, share in data.get(name, ()))
    rollout = Rollout(**fields)
    sizes = {len(rollout.completion_ids), len(rollout.completion_mask), len(rollout.sampling_logprobs)}
    if len(sizes) > 1 or (kept_ids is not None and {len(kept_ids)} != sizes):
        raise ValueError(f"a rollout in flight holds arrays of {sorted(sizes)} tokens; expected one length")
    return rollout


def _packed(array: np.ndarray, kind: str) -> str:
    return b64encode(array.astype(kind).tobytes()).decode("ascii")


def _unpacked(text: str, kind: str) -> np.ndarray:
    return np.frombuffer(b64decode(text, validate=True), kind).copy()
