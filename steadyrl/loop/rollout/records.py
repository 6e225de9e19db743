"""What the run directory keeps of rollouts, and of single tokens of some of them, before and after a step's updates.

Of the tokens, for the page that shows them: the rollouts with the least and with the most reward are taken, and of a
long one its first tokens, so that a file stays below half a megabyte.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from steadyrl.core.protocols import Backend, Tokenizer
from steadyrl.core.types import Batch, Group, Rollout, Sampling
from steadyrl.maths.advantages import turn_numbers
from steadyrl.maths.batch import take_rows

LONGEST_SEEN = 4000  # characters of what an environment showed at a turn
ROLLOUTS = 16  # of a step, whose tokens are recorded
TOKENS = 512  # of a rollout
DIGITS = 4
_NEAR = 6  # tokens before one that may change how it is written: the bytes of a character, the space before a word


def rollout_records(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Return a line of rollouts/*.jsonl for every rollout."""
    return [
        {
            "problem": rollout.problem_id,
            "prompt": group.problem.prompt,
            "completion": rollout.text,
            "reward": rollout.reward,
            "parts": dict(rollout.parts),
            "unscored": rollout.unscored,
            "note": rollout.note,
            "stop_reason": rollout.stop_reason,
            "policy_version": rollout.policy_version,
            "tokens": rollout.length,
            **({"messages": list(group.problem.messages)} if group.problem.messages else {}),
            **(episode_record(rollout) if rollout.turns else {}),
        }
        for group in groups
        for rollout in group.rollouts
    ]


def episode_record(rollout: Rollout) -> dict[str, Any]:
    """Return the record of an episode: its turns, what it read between them, calls, outcome and rewards of turns."""
    observed = [text[:LONGEST_SEEN] for text in rollout.seen]
    optional_fields: dict[str, Any] = {}
    if rollout.turn_rewards:
        turns = turn_numbers(rollout.completion_mask[None])[0]  # [T]
        by_turn = {int(turns[end - 1]): reward for end, reward in rollout.turn_rewards}
        optional_fields["turn_rewards"] = [by_turn.get(turn) for turn in range(len(rollout.turns))]
    if any(rollout.calls):
        optional_fields["calls"] = [
            [{**asdict(call), "result": call.result[:LONGEST_SEEN]} for call in turn] for turn in rollout.calls
        ]
    return {"turns": rollout.turns, "seen": observed, "outcome": dict(rollout.outcome), **optional_fields}


def choice_records(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Return what curriculum.jsonl says of every problem of a step: why it was chosen, and what it earned."""
    return [
        {"problem": group.problem.id, "why": group.why, "rewards": [rollout.reward for rollout in group.rollouts]}
        for group in groups
    ]


@dataclass
class TokenLook:
    """Measures some rollouts of a step before its updates and again after them."""

    backend: Backend
    sampling: Sampling
    """The settings with which the rollouts were sampled."""
    needs: frozenset[str]
    """What the algorithm has measured, see ``Algorithm.needs``; the reference is one of them."""
    records: list[dict[str, Any]] = field(default_factory=list)  # a line per rollout, after both
    _rows: np.ndarray | None = None
    _sample: Batch | None = None

    def before(self, batch: Batch) -> None:
        """Choose rollouts of a batch that is ready to train (with ``old`` scores and advantages), and measure them."""
        rows_with_tokens = np.flatnonzero(batch.completion_mask.any(axis=1))
        by_reward = rows_with_tokens[np.argsort(batch.rewards[rows_with_tokens], kind="stable")]
        half = ROLLOUTS // 2
        rows = by_reward if len(by_reward) <= ROLLOUTS else np.concatenate([by_reward[:half], by_reward[-half:]])
        if not len(rows):
            return
        self._rows, sample = np.sort(rows), take_rows(batch, np.sort(rows))
        self._sample = replace(sample, old=self.backend.score(sample, self.sampling, self.needs & {"ref_logprobs"}))

    def after(self, training: Sequence[Group], groups: Sequence[Group]) -> None:
        """Measure the rollouts again after the updates, and make the lines that are recorded."""
        sample, rows = self._sample, self._rows
        if sample is None or rows is None or sample.old is None:
            return
        new = self.backend.score(sample, self.sampling, frozenset())
        with np.errstate(over="ignore", invalid="ignore"):
            ratio = np.exp(new.logprobs - sample.old.logprobs)  # [B, T]
        reference = sample.old.ref_logprobs
        measured = {
            "logprob": sample.old.logprobs,
            "entropy": sample.old.entropy,
            "ratio": ratio,
            "advantage": sample.advantages,
            "kl_ref_exact": sample.old.kl_ref_exact,
            "kl_ref_k1": None if reference is None else sample.old.logprobs - reference,
        }
        available = {name: array for name, array in measured.items() if array is not None}
        rollout_numbers = {id(rollout): i for i, rollout in enumerate(r for group in groups for r in group.rollouts)}
        trained = [rollout for group in training for rollout in group.rollouts]
        for i, row in enumerate(rows.tolist()):
            rollout = trained[row]
            start, end = len(rollout.prompt_ids), int(sample.lengths[i])
            window = slice(start, min(end, start + TOKENS))
            mask = sample.completion_mask[i, window]
            self.records.append(
                {
                    "rollout": rollout_numbers.get(id(rollout)),
                    "problem": rollout.problem_id,
                    "tokens": token_texts(self.backend.tokenizer, sample.tokens[i, window]),
                    "policy": mask.tolist(),
                    "left_out": end - window.stop,
                    **{name: _rounded(array[i, window], mask) for name, array in available.items()},
                }
            )


def token_texts(tokenizer: Tokenizer, ids: np.ndarray) -> list[str]:
    """Return the text of each token; "" for a special token, and for all but the last part of a character."""
    texts = []
    for i in range(len(ids)):
        start = max(0, i - _NEAR)
        before, text = tokenizer.decode(ids[start:i]), tokenizer.decode(ids[start : i + 1])
        shared = before if text.startswith(before) else before.rstrip("\ufffd")
        texts.append("" if text.endswith("\ufffd") else text[len(shared) :])
    return texts


def _rounded(values: np.ndarray, mask: np.ndarray) -> list[float | None]:
    """Return numbers as they are written, None where the policy chose no token or a number is not finite."""
    finite = mask & np.isfinite(values)
    return [
        float(f"{value:.{DIGITS}g}") if ok else None for value, ok in zip(values.tolist(), finite.tolist(), strict=True)
    ]
