"""Does a server draw from the policy? Its log-probs of some completions are compared after every push of weights.

A server may answer that it has loaded the weights and keep some of them (a head that shares the embedding's weights on
a CPU; vllm.md). The difference is then small at first and grows as the policy moves away from what was kept.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from steadyrl.core.protocols import Tokenizer
from steadyrl.core.types import Batch, Completion, Group, Problem, Rollout, Sampling, TokenScores
from steadyrl.maths.batch import make_batch

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

ROWS = 8  # completions of each server whose log-probs are compared after a push
ROUNDING = 1e-3  # nats: the greatest difference that float32 on both sides leaves
MEAN_ROUNDING = 5e-5  # nats: the mean of such differences; 5e-6 was measured with 30 layers
OTHER_PRECISION = 0.05  # nats: a mean difference beyond it is no rounding, not even bfloat16's
SOLVED = 0.1  # share of a difference that is left where a reason explains it
GROWN = 4.0  # times the first push's difference; that of a sound server moves by half


@dataclass
class Gaps:
    """The mean differences of one server from the trainer, in nats a token, one for each push."""

    means: list[float] = field(default_factory=list)  # oldest first
    warned: bool = False  # whether it was said that they grow

    def grown(self) -> bool:
        """Return whether both of the last two are well above the first.

        One alone may be chance: a few unlikely tokens, or a completion that the trainer rounds otherwise.
        """
        return len(self.means) > 2 and min(self.means[-2:]) > max(GROWN * self.means[0], MEAN_ROUNDING)

    def lost(self) -> bool:
        """Return whether they have grown to what no rounding explains: where both compute in float32 anything does."""
        return self.grown() and (self.means[0] <= MEAN_ROUNDING or min(self.means[-2:]) > OTHER_PRECISION)

    def __str__(self) -> str:
        means = [f"{mean:.2g}" for mean in self.means]
        return ", ".join(means if len(means) <= 4 else [*means[:2], "...", *means[-2:]])


class Policy(Protocol):
    """What the engine needs of the backend whose policy it serves."""

    @property
    def tokenizer(self) -> Tokenizer:
        """Encodes prompts, and names the end tokens."""

    @property
    def device(self) -> torch.device:
        """Where the model is."""

    @property
    def model(self) -> Any:
        """The model itself, for what sends its weights from where they are."""

    def save_policy(self, folder: Path) -> None:
        """Write the weights, or the adapter, in Hugging Face layout into an existing folder."""

    def score(self, batch: Batch, sampling: Sampling, needs: frozenset[str]) -> TokenScores:
        """See Backend."""


def compare(
    policy: Policy, rows: Sequence[tuple[np.ndarray, Completion]], sampling: Sampling, gaps: Gaps, name: str
) -> bool:
    """Compare log-probs with the policy's on some rows, note the difference, and say what it means.

    Returns:
        Whether they agree, or differ as another precision or setting explains; else weights are not taken over.
    """
    # Spread over all rows, for neighbours may be samples of one prompt.
    indices = np.linspace(0, len(rows) - 1, min(len(rows), ROWS)).astype(int)
    rollouts = [
        Rollout("", prompt, c.ids, np.ones(len(c.ids), bool), c.logprobs, "", c.stop_reason, reward=0.0)
        for prompt, c in [rows[i] for i in indices]
    ]
    batch = make_batch([Group(Problem("", ""), tuple(rollouts))], policy.tokenizer.pad_id)
    gap = _gap(policy, batch, sampling)
    gaps.means.append(float(gap.mean()))
    drift = f"log-probs of {name} and of the trainer differ by {gap.mean():.2g}"
    if gaps.lost():
        return False
    if gaps.grown() and not gaps.warned:
        gaps.warned = True
        log.warning("%s; the trainer's log-probs are used where they differ", not_taken_over(name, gaps))
    elif len(gaps.means) > 1 or gap.max() <= ROUNDING:
        log.info("%s nats on average (%d tokens)", drift, len(gap))
    else:
        raw = _gap(policy, batch, replace(sampling, logprobs="raw"))
        log.warning(
            "%s nats on average (at most %.2g, %d tokens): %s; where they differ, the trainer's are used (see the "
            "metric sampler_gap)", drift, gap.max(), len(gap), cause(gap, raw),
        )  # fmt: skip
    return True


def not_taken_over(name: str, gaps: Gaps) -> str:
    """Say that weights are not taken over, and what to look for."""
    return (
        f"log-probs of {name} and of the trainer differ more from push to push ({gaps} nats on average): it does not "
        "take all weights over; look for 'Failed to load weights' in its log, and see docs/vllm.md for a head that "
        "shares the embedding's weights"
    )


def cause(gap: np.ndarray, raw: np.ndarray) -> str:
    """Say why a server's log-probs differ.

    Args:
        gap: [N] differences, in nats.
        raw: [N], the same if the server's log-probs are taken for those before the temperature.
    """
    if raw.mean() <= SOLVED * gap.mean():
        return (
            "the server reports log-probs from before the temperature; start it with --logprobs-mode processed_logprobs"
        )
    if gap.mean() <= OTHER_PRECISION:
        return "as another precision does; --dtype float32 on the server and backend.precision = 'fp32' remove it"
    return (
        "the server has other weights (it was started on another model, or has not taken the new ones over) or "
        "changes the logits (a penalty, a quantization)"
    )


def _gap(policy: Policy, batch: Batch, sampling: Sampling) -> np.ndarray:
    """Return |policy - server| of the completion tokens, [N]."""
    scores = policy.score(batch, sampling, frozenset())
    gaps: np.ndarray = np.abs(scores.logprobs - batch.sampling_logprobs)[batch.completion_mask]
    return gaps
