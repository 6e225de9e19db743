"""What to look for in the pictures of a run: a sentence for each panel that is drawn, and for no other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from steadyrl.core.stats import window
from steadyrl.show.report.plots import PANELS, Metrics, Panel, measured
from steadyrl.show.review.epochs import series

PARTS = "The parts are shown times their weights, so that together they are the total."
HELDOUT = "The diamonds are held-out scores: if the reward rises while they stay flat, it is learned for its own sake."
SENTENCES: Mapping[str, str] = {
    "KL to the reference": "The KL to the reference rises while the policy learns; an estimate below 0 is noise.",
    "KL coefficient": "The coefficient is the strength of the KL penalty.",
    "Policy loss": "The policy loss stays near 0, and its level says little.",
    "Loss of the imitated texts": "The loss of the imitated texts should fall.",
    "Value loss": "The value loss should fall and stay low.",
    "Total loss": "The total loss is the sum of its parts times their coefficients.",
    "Reward times surprise": "Reward times surprise is the loss -r log p.",
    "Entropy": "The entropy should fall slowly; after a sudden fall the policy gives few different answers.",
    "Clip fraction": "The clip fraction shows how often an update would have moved a token too far; "
    "with one update per step it is 0.",
    "KL to the old policy (k3)": "The KL to the old policy shows how far one step moves the policy.",
    "Advantage": "The advantage before whitening should have a mean near 0 and a spread well above it.",
    "Explained variance of the value head": "The explained variance should rise above 0 (the axis ends at -1).",
    "Value prediction error": "The prediction error of the value head should fall.",
    "Value clip fraction": "The value clip fraction is the share of predictions that an update may not move further.",
    "Values and returns": "Values should follow the returns.",
    "Gradient norm before clipping": "Single spikes of the gradient norm are clipped; a rising level is a problem.",
    "Best of N and average": "The gap between the best answer and the average is what can still be taught.",
    "Spread": "The spread within a problem is the learning signal.",
    "Groups whose rewards are all equal": "A group whose rewards are all equal teaches nothing.",
    "Parts of the loss": "The KL's part of the loss is shown before its coefficient.",
    "Groups with signal": "The curriculum should increase the share of groups whose rewards differ.",
    "Difficulty of the chosen problems": "The difficulty should rise as the policy learns.",
    "Entropy of the choice": "An entropy of the choice near 0 means that a few problems are chosen again and again.",
}
BAND = "The band around k1 is one standard error of a single step."
AGREE = "Two estimates of one quantity should agree."


def captions(
    metrics: Metrics, weights: Mapping[str, float], metric: str | None, heldout: Mapping[int, float] | None = None
) -> dict[str, str]:
    """Return the caption of each picture; arguments as of ``plots.draw``."""
    width = window(len(metrics))
    lines = "The lines show every step."
    if width > 1:
        lines = f"Faint lines show every step, strong lines a rolling median over {width} steps."
    drawn = {name: measured(panels, metrics) for name, panels in PANELS.items()}
    texts = {
        name: [lines, *(SENTENCES[panel.title] for panel in panels), *([AGREE] if _estimates(panels, metrics) else [])]
        for name, panels in drawn.items()
    }
    diamonds = [HELDOUT] if heldout or _logged(metrics, f"heldout/{metric or 'reward'}") else []
    parts = [PARTS] if any(_logged(metrics, f"reward/{part}") for part in weights) else []
    band = [BAND] if _logged(metrics, "kl_ref_k1_seq_se") else []
    texts["train"] = [lines, *diamonds, *parts, *texts["train"][1:], *band]
    texts["overview"] = [lines, *diamonds]
    return {name: " ".join(sentences) for name, sentences in texts.items()}


def _estimates(panels: Sequence[Panel], metrics: Metrics) -> bool:
    """Return whether a panel of the KL or of the entropy shows two estimates."""
    several = [panel for panel in panels if panel.title in ("KL to the reference", "Entropy")]
    return any(sum(_logged(metrics, name) for name in panel.lines) > 1 for panel in several)


def _logged(metrics: Metrics, name: str) -> bool:
    return bool(np.isfinite(series(metrics, name)).any())
