"""Does a server draw from the policy? Its log-probs of some completions are compared after every push of weights.

A server may answer that it has loaded the weights and keep some of them (a head that shares the embedding's weights on
a CPU; vllm.md). The difference is then small at first and grows as the policy moves away from what was kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

ROUNDING = 1e-3  # nats: the greatest difference that float32 on both sides leaves
MEAN_ROUNDING = 5e-5  # nats: the mean of such differences; 5e-6 was measured with 30 layers
OTHER_PRECISION = 0.05  # nats: a mean difference beyond it is no rounding, not even bfloat16's
SOLVED = 0.1  # share of a difference that is left where a reason explains it
GROWN = 4.0  # times the first push's difference; that of a sound server moves by half


@dataclass
class Gaps:
    """The mean differences of one server from the trainer, in nats a token, one for each push.

    Attributes:
        means: Oldest first.
        warned: Whether it was said that they grow.
    """

    means: list[float] = field(default_factory=list)
    warned: bool = False

    def grown(self) -> bool:
        """Return whether both of the last two are well above the first.

        One alone may be chance: a few unlikely tokens, or a completion that the trainer rounds otherwise.
        """
        return len(self.means) > 2 and min(self.means[-2:]) > max(GROWN * self.means[0], MEAN_ROUNDING)

    def lost(self) -> bool:
        """Return whether they have grown to what no rounding explains: where both compute in float32 anything does."""
        return self.grown() and (self.means[0] <= MEAN_ROUNDING or min(self.means[-2:]) > OTHER_PRECISION)

    def __str__(self) -> str:
        shown = [f"{mean:.2g}" for mean in self.means]
        return ", ".join(shown if len(shown) <= 4 else [*shown[:2], "...", *shown[-2:]])


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
