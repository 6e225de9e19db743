"""The length of completions, and whether they repeat themselves."""

from __future__ import annotations

import numpy as np

from steadyrl.core.words import percent
from steadyrl.doctor.check import Found, Result, check
from steadyrl.doctor.checks.ending import cut_off
from steadyrl.doctor.checks.kl_penalty import penalty_pays
from steadyrl.doctor.series import Run
from steadyrl.doctor.statistics.levels import Levels, measure
from steadyrl.doctor.statistics.readings import direction, fell, learns, levels, number
from steadyrl.doctor.statistics.signals import MIN_STEPS, first_lasting, head, tail
from steadyrl.doctor.statistics.units import together

COLLAPSED = 0.4  # of the first length; losing a third is only tightening
NOTHING_LEFT = 0.1  # of the first length
ONLY_THE_END = 1.5  # tokens: at least half of the answers hold nothing besides their end token
EXPLODED = 3.0  # times the first length
MOVES_TOGETHER = 0.7  # correlation; of step-to-step changes chance gives 0.2 in a hundred steps
BRIEF = ("length", "brevity", "short", "concise")
CUT_OFF_FIRST = 0.3  # share cut off at the start, above which shortening is learning to stop
CUT_OFF = 0.5  # share that says that texts no longer end
REPEATS_MORE = 0.2  # growth of the share of repeated 3-grams
MOSTLY = 0.9  # of the rows
OPENING = 3  # rows: what breaks within seven steps is over in the first tenth of a run


@check("length_collapse")
def length_collapse(run: Run) -> Result:
    length = run.needed("length")
    start, end = max(head(length, 0.0, OPENING), head(length)), tail(length, least=OPENING)
    if not fell(run, "length") or end >= COLLAPSED * start:
        return None
    nothing_left = end < max(NOTHING_LEFT * start, ONLY_THE_END)
    # Held-out measurements and parts of the reward that ended clearly below their start.
    curves = {f"heldout/{name}": series for name, series in run.with_prefix("heldout/").items()}
    curves |= {f"reward part {name}": series for name, series in run.with_prefix("reward_part/").items()}
    measured = {name: measure(curve) for name, curve in curves.items() if not any(word in name for word in BRIEF)}
    fallen = {name: blocks for name, blocks in measured.items() if blocks is not None and blocks.fell}
    cause, reason = _shrink_cause(run, fallen, nothing_left)
    harmless = cause == "learned_to_stop" or (cause == "unknown" and not nothing_left)
    grave = nothing_left and (fallen or fell(run, "reward"))
    return Found(
        cause,
        "info" if harmless else "critical" if grave else "warning",
        first_lasting(length, length.values < COLLAPSED * start),
        f"completions shrank from {number(start)} to {number(end)} tokens: {reason}",
        (
            f"mean length {number(start)} at the start, {number(end)} at the end",
            *(f"{name} fell from {number(blocks.first)} to {number(blocks.end)}" for name, blocks in fallen.items()),
        ),
    )


def _shrink_cause(run: Run, fallen: dict[str, Levels], nothing_left: bool) -> tuple[str, str]:
    if reason := penalty_pays(run):
        return "kl_penalty", reason
    for name, part in run.with_prefix("reward_part/").items():
        blocks = measure(part) if any(word in name.lower() for word in BRIEF) else None
        if blocks is not None and blocks.rose:
            return "length_reward", f"the reward part '{name}' pays for being short"
    rose, cut, best = learns(run), run.get("truncated"), run.get("reward_max")
    # Where the greatest reward is the same in nearly all rows, failures last longer, and no brevity pays.
    any_length = best is not None and float((best.values == best.greatest).mean()) > MOSTLY
    along = min(correlation(run, changes=True), correlation(run, changes=False) if nothing_left and rose else 0.0)
    if along < -MOVES_TOGETHER and (nothing_left or not any_length):
        return "length_reward", f"shorter completions earn more (correlation of reward and length {number(along)})"
    if rose and fallen:
        return "length_reward", f"{next(iter(fallen))} fell in the same time: length was cheaper to give up"
    if cut is not None and head(cut, least=OPENING) > CUT_OFF_FIRST and tail(cut) < head(cut, least=OPENING) / 2:
        return "learned_to_stop", "the policy learned to finish before the limit cuts it off"
    if fell(run, "reward"):
        return "lost", "the reward fell with them"
    return "unknown", "nothing in the log says what pays for it"


def correlation(run: Run, changes: bool) -> float:
    """Return the correlation of length and reward, of their changes from step to step or as they are; 0 without any."""
    length, reward = run.get("length"), run.get("reward")
    if length is None or reward is None:
        return 0.0
    length, reward = together(length, reward)
    if len(length) < (MIN_STEPS if changes else 2 * OPENING):
        return 0.0
    a, b = (np.diff(length.values), np.diff(reward.values)) if changes else (length.values, reward.values)
    a, b = a - a.mean(), b - b.mean()
    power = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / power if power > 0 else 0.0


@check("length_explosion")
def length_explosion(run: Run) -> Result:
    length, reward = run.needed("length"), run.needed("reward")
    lengths, repeats, cut = measure(length), run.get("repetition"), cut_off(run)
    start, end = head(length), tail(length)
    if lengths is None or not (lengths.rose and end > EXPLODED * start):
        return None
    follows, harmless = correlation(run, changes=True), False
    if repeats is not None and tail(repeats) > head(repeats) + REPEATS_MORE:
        reason = f"the share of repeated word triples grew to {percent(tail(repeats))}"
    elif cut is not None and tail(cut[0]) > CUT_OFF:
        reason = f"{percent(tail(cut[0]))} are cut off at the end"
    elif follows > MOVES_TOGETHER:
        harmless, reason = True, f"the reward follows the length from step to step (correlation {number(follows)})"
    elif direction(reward) > 0:
        return None
    else:
        reason = "the reward did not rise with them"
    return Found(
        "grew",
        "info" if harmless else "warning",
        first_lasting(length, length.values > EXPLODED * start),
        f"completions grew from {number(start)} to {number(end)} tokens: {reason}",
        (levels("the mean length", length),),
        change={"max_new_tokens": round(2 * start)},
    )


@check("repetition")
def repetition(run: Run) -> Result:
    share = run.needed("repetition")
    blocks = measure(share)
    if blocks is None or not blocks.rose or blocks.end <= blocks.first + REPEATS_MORE:
        return None
    onset = first_lasting(share, share.values > blocks.first + REPEATS_MORE)
    pays = ", and the reward rose meanwhile: loops are rewarded" if learns(run) else ""
    message = f"{percent(blocks.end)} of the word triples are repetitions, {percent(blocks.first)} at the start{pays}"
    return Found("grew", "warning", onset, message, (levels("the share", share),))
