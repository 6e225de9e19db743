"""The form of completions: too short, too long, cut off, empty, repeating themselves."""

from __future__ import annotations

import numpy as np

from steadyrl.doctor.check import Result, Unclear, check
from steadyrl.doctor.checks.measures import setting
from steadyrl.doctor.checks.readings import learns, number
from steadyrl.doctor.checks.units import together
from steadyrl.doctor.jumps import WINDOW, jumps
from steadyrl.doctor.levels import Levels, measure
from steadyrl.doctor.series import Run, Series
from steadyrl.doctor.signals import MIN_STEPS, first_lasting, head, tail
from steadyrl.types import Finding

COLLAPSED = 0.4  # of the first length; losing a third is only tightening
NOTHING_LEFT, NOTHING_LEFT_TOKENS = 0.1, 3.0  # of the first length; tokens
EXPLODED = 3.0  # times the first length
MOVES_TOGETHER = 0.7  # correlation of step-to-step changes; chance gives 0.2 in a hundred steps
BRIEF = ("length", "brevity", "short", "concise")
CUT_OFF_FIRST = 0.3  # share cut off at the start, above which shortening is learning to stop
TRUNCATED = 0.5  # more than every second text has no end
EMPTY_WARN, EMPTY_CRITICAL = 0.01, 0.1
AT_FIRST, FROM_START = 3, 0.5  # steps before much is learned; of the later share that has to be there already
LOST_SHARE, STAYED = 0.1, 0.5  # growth of the share; part of the length that truly empty texts would take away
REPEATS_MORE, REPEATS_ALWAYS = 0.2, 0.5  # growth of the share of repeated 3-grams; share from the start
LATE = 0.2  # of the run: how it is now


@check(needs=("length", "reward"))
def length_collapse(run: Run) -> Result:
    """Completions shrink to a small part of their length while the reward rises.

    Symptom: the mean length ends below 40 % of where it began, and the reward rose. It looks like success: the curve
    everybody watches goes up, while the policy answers ever less.

    Causes and what tells them apart:
    - length_reward: the reward is, or contains, a reward for being short. Told by a reward part of that name that rose,
      or by the steps themselves: where a step's completions are shorter than those of the step before, its reward is
      higher (correlation of the changes below -0.7). A trend of both alone would prove nothing.
    - shorter_pays: no such part, yet a held-out measurement or another reward part fell in the same time: length was
      cheaper to give up than to earn the rest.
    - learned_to_stop: many completions were cut off by the length limit at first and few at the end: the policy learned
      to finish. Healthy, mentioned only.
    - unknown: shorter and better as far as the log tells; read some completions.

    Critical where almost nothing is left (a tenth of the length, or 3 tokens) and something else fell.

    Remedy: take the length out of the reward, or pay for it only within a range and above a bar on quality; keep a
    checkpoint from before the collapse.

    Source: Secrets of RLHF I (arXiv 2307.04964, abstract): watch the length besides the reward; the rest is steadyrl's
    own rule.
    """
    length, reward = run.get("length"), run.get("reward")
    assert length is not None and reward is not None, "needs"
    lengths, rewards = measure(length), measure(reward)
    if lengths is None or rewards is None or len(length) < MIN_STEPS:
        return Unclear("length_collapse", f"{len(length)} steps are too few")
    start, end = head(length), tail(length)
    if not (lengths.fell and end < COLLAPSED * start and rewards.rose):
        return None
    fallen = _fallen_measurements(run)
    cause, told = _shrink_cause(run, fallen)
    nothing_left = end < max(NOTHING_LEFT * start, NOTHING_LEFT_TOKENS)
    harmless = cause in ("learned_to_stop", "unknown")
    return Finding(
        check="length_collapse",
        severity="info" if harmless else "critical" if nothing_left and fallen else "warning",
        since_step=first_lasting(length, length.values < COLLAPSED * start),
        cause=cause,
        message=f"completions shrank from {number(start)} to {number(end)} tokens while the reward rose: {told}",
        evidence=(
            f"mean length {number(start)} at the start, {number(end)} at the end",
            f"mean reward {number(head(reward))} at the start, {number(tail(reward))} at the end",
            *(f"{name} fell from {number(levels.first)} to {number(levels.end)}" for name, levels in fallen.items()),
        ),
        remedy="Nothing to mend; read some completions all the same."
        if harmless
        else "Take the length out of the reward, or pay for it only where the quality holds; keep a checkpoint from "
        "before the collapse.",
        overrides=_without_brief(run) if cause == "length_reward" else (),
        source="Secrets of RLHF I, arXiv 2307.04964 (abstract)",
    )


def _brief_parts(run: Run) -> list[str]:
    """Return the names of reward parts that pay for being short and rose."""
    named = {name: s for name, s in run.parts("reward_part/").items() if any(word in name.lower() for word in BRIEF)}
    found = {name: measure(series) for name, series in named.items()}
    return [name for name, levels in found.items() if levels is not None and levels.rose]


def _without_brief(run: Run) -> tuple[str, ...]:
    """Return overrides that take the weight off such parts; other trainers' names mean nothing here."""
    brief = _brief_parts(run)
    others = len(run.parts("reward_part/")) > len(brief)
    return tuple(f"rewards.{name}=0.0" for name in brief) if others and run.trainer == "steadyrl" else ()


def _fallen_measurements(run: Run) -> dict[str, Levels]:
    """Return held-out measurements and reward parts that ended clearly below their start."""
    every = {f"heldout/{name}": series for name, series in run.parts("heldout/").items()}
    every |= {f"reward part {name}": series for name, series in run.parts("reward_part/").items()}
    levels = {name: measure(series) for name, series in every.items() if not any(word in name for word in BRIEF)}
    return {name: found for name, found in levels.items() if found is not None and found.fell}


def _shrink_cause(run: Run, fallen: dict[str, Levels]) -> tuple[str, str]:
    brief = _brief_parts(run)
    if brief:
        return "length_reward", f"the reward part '{brief[0]}' pays for being short"
    together_by = _correlation_of_changes(run)
    if together_by < -MOVES_TOGETHER:
        return "length_reward", (
            f"the reward follows the length from step to step (correlation of changes {number(together_by)}): it pays "
            "for being short"
        )
    if fallen:
        return "shorter_pays", f"{next(iter(fallen))} fell in the same time"
    cut = run.get("truncated")
    if cut is not None and head(cut) > CUT_OFF_FIRST and tail(cut) < head(cut) / 2:
        return "learned_to_stop", "it learned to finish before the limit cuts it off"
    return "unknown", "nothing in the log says that anything was lost"


def _correlation_of_changes(run: Run) -> float:
    """Return the correlation of the changes of length and reward from step to step; 0 where there is none."""
    length, reward = run.get("length"), run.get("reward")
    assert length is not None and reward is not None, "needs of the checks"
    length, reward = together(length, reward)
    if len(length) < MIN_STEPS:
        return 0.0
    a, b = np.diff(length.values), np.diff(reward.values)
    a, b = a - a.mean(), b - b.mean()
    power = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / power if power > 0 else 0.0


@check(needs=("length", "reward"))
def length_explosion(run: Run) -> Result:
    """Completions grow to several times their length.

    Symptom: the mean length ends above three times its start. Longer texts are no fault where reasoning gets better by
    them; it is one where the reward does not rise with it.

    Causes and what tells them apart:
    - length_pays: the reward follows the length from step to step (correlation of the changes above 0.7): a judge or a
      rule prefers long texts.
    - repetition: the share of repeated word triples grew as well: texts go in circles.
    - no_end: more than half are cut off by the limit at the end: the policy no longer stops.
    - unknown: it grew and the reward did not rise.
    Growth together with a rising reward and none of these is not reported.

    Remedy: bound the length, pay a little less for texts near the limit, divide the loss by all tokens of the batch.

    Source: Secrets of RLHF I (arXiv 2307.04964, abstract): length up and perplexity down while the reward rises is a
    collapse into a pattern.
    """
    length, reward = run.get("length"), run.get("reward")
    assert length is not None and reward is not None, "needs"
    lengths, rewards = measure(length), measure(reward)
    if lengths is None or rewards is None or len(length) < MIN_STEPS:
        return Unclear("length_explosion", f"{len(length)} steps are too few")
    start, end = head(length), tail(length)
    if not (lengths.rose and end > EXPLODED * start):
        return None
    cause, told = _growth_cause(run)
    if cause == "unknown" and rewards.rose:
        return None
    return Finding(
        check="length_explosion",
        severity="info" if cause == "length_pays" else "warning",
        since_step=first_lasting(length, length.values > EXPLODED * start),
        cause=cause,
        message=f"completions grew from {number(start)} to {number(end)} tokens: {told}",
        evidence=(f"mean length {number(start)} at the start, {number(end)} at the end", told),
        remedy="Bound the length near what good answers need, and see whether the reward prefers long texts.",
        overrides=(f"sampling.max_new_tokens={round(2 * start)}",),
        source="Secrets of RLHF I, arXiv 2307.04964 (abstract)",
    )


def _growth_cause(run: Run) -> tuple[str, str]:
    repeats, cut = run.get("repetition"), run.get("truncated")
    if repeats is not None and tail(repeats) > head(repeats) + REPEATS_MORE:
        return "repetition", f"the share of repeated word triples grew to {tail(repeats):.0%}"
    if cut is not None and tail(cut) > TRUNCATED:
        return "no_end", f"{tail(cut):.0%} are cut off at the end"
    follows = _correlation_of_changes(run)
    if follows > MOVES_TOGETHER:
        return "length_pays", f"the reward follows the length from step to step (correlation {number(follows)})"
    return "unknown", "the reward did not rise with them"


@check(needs=("truncated",))
def truncated(run: Run) -> Result:
    """Most completions are cut off by the length limit.

    Symptom: at the end more than half of the completions reach the limit. What is scored is a fragment, and the policy
    is never shown what ending is worth.

    Causes and what tells them apart:
    - never_ends: nearly all (90 %) from the first steps, with a mean length at the limit: the end token is not produced
      at all: wrong chat template, wrong end token, or a base model that was never taught to stop.
    - limit_too_low: more than half from the start, but not all: answers need more room.
    - grew: few at first, most at the end: the policy learned to go on; see length_explosion and repetition. Worth
      knowing only while the reward rises.

    Remedy: never_ends: check template and end token by sampling some texts. limit_too_low: twice the limit. grew: give
    no reward to texts without an end.

    Source: TRL logs the share as completions/clipped_ratio, verl as response_length/clip_ratio.
    """
    share = run.get("truncated")
    assert share is not None, "a need"
    if len(share) < MIN_STEPS:
        return Unclear("truncated", f"{len(share)} steps are too few")
    level, start, limit = tail(share, LATE), head(share), setting(run, "max_new_tokens")
    if level <= TRUNCATED:
        return None
    cause = "grew" if start <= TRUNCATED else "never_ends" if min(start, level) >= 0.9 else "limit_too_low"
    told, remedy = {
        "grew": ("the policy learned to go on", "Give no reward to texts without an end; see why length pays."),
        "never_ends": (
            "hardly any ever ends",
            "Sample some texts: the chat template or the end token is wrong, or the model was never taught to stop.",
        ),
        "limit_too_low": ("answers need more room", "Raise the limit."),
    }[cause]
    longer = (f"sampling.max_new_tokens={2 * int(limit)}",) if limit and cause == "limit_too_low" else ()
    return Finding(
        check="truncated",
        severity="info" if cause == "grew" and learns(run) else "warning",
        since_step=first_lasting(share, share.values > TRUNCATED),
        cause=cause,
        message=f"{level:.0%} of the completions are cut off by the length limit: {told}",
        evidence=(
            f"share cut off: {number(start)} at the start, {number(level)} at the end"
            + (f"; the limit is {limit:g} tokens" if limit else ""),
        ),
        remedy=remedy,
        overrides=longer,
        source="TRL completions/clipped_ratio; verl response_length/clip_ratio",
    )


@check(needs=("empty",))
def empty_completions(run: Run) -> Result:
    """Completions without any text.

    Symptom: in the last fifth of the run more than 1 % of the completions hold no visible text (critical above 10 %).

    Causes and what tells them apart:
    - parser: texts have tokens and are empty all the same: what reads them throws the text away, or they consist of
      special tokens. Told by the shortest of a step, which has more than one token; or by a share that rises while the
      mean length stays where it was, which it cannot if texts became empty.
    - template_or_eos: as many from the first steps: the prompt ends where the model believes the answer to be over.
    - learned: few or none at first: the policy found that saying nothing avoids the KL penalty or a negative reward.

    Remedy: template_or_eos: look at a prompt as the model gets it. learned: the least reward for empty texts; go back
    to a checkpoint before it began.

    Source: post-training-toolkit's limit of a tenth; the rest is steadyrl's own rule.
    """
    share = run.get("empty")
    assert share is not None, "a need"
    if len(share) < MIN_STEPS:
        return Unclear("empty_completions", f"{len(share)} steps are too few")
    # Means, not medians: a small share is 0 in most steps of a small batch.
    late, early = share.values[-max(10, len(share) // 5) :], share.values[:AT_FIRST]
    level = float(late.mean())
    if level <= EMPTY_WARN:
        return None
    cause, told = _empty_cause(run, share, level, float(early.mean()))
    since = first_lasting(share, share.values > EMPTY_WARN)
    return Finding(
        check="empty_completions",
        severity="critical" if level > EMPTY_CRITICAL else "warning",
        since_step=int(share.steps[np.argmax(share.values > EMPTY_WARN)]) if since is None else since,
        cause=cause,
        message=f"{level:.1%} of the completions are empty: {told}",
        evidence=(f"mean share {number(float(early.mean()))} in the first steps, {number(level)} in the last fifth",),
        remedy=_EMPTY_REMEDIES[cause],
        source="microsoft/post-training-toolkit (limit of 10 %)",
    )


_EMPTY_REMEDIES = {
    "parser": "Look at the raw tokens of an empty completion: its text is lost after sampling.",
    "template_or_eos": "Look at a prompt as the model gets it (template, end token), and at the first sampled token.",
    "learned": "Give empty texts the least reward, and go on from a checkpoint before they began.",
}


def _empty_cause(run: Run, share: Series, level: float, early: float) -> tuple[str, str]:
    shortest = run.get("length_min")
    if shortest is not None and tail(shortest, LATE) > 1.0:
        return "parser", f"the shortest has {number(tail(shortest, LATE))} tokens all the same"
    if early > max(EMPTY_WARN, FROM_START * level):
        return "template_or_eos", "they are so from the first steps"
    if told := _length_stayed(run, share):
        return "parser", told
    return "learned", "there were hardly any at first: saying nothing pays"


def _length_stayed(run: Run, share: Series) -> str:
    """Return a sentence if the share of empty texts jumped and the length did not follow; else ""."""
    length = run.get("length")
    for jump in jumps(share) if length is not None else []:
        assert length is not None, "asked before"
        before, after = (
            length.values[(length.steps >= jump.step + a) & (length.steps < jump.step + b)]
            for a, b in ((-WINDOW, 0), (0, WINDOW))
        )
        if jump.change < LOST_SHARE or not len(before) or not len(after):
            continue
        # Texts that became empty have their end token only, and the others keep their length.
        missing = float(before.mean()) - float(after.mean())
        if missing < STAYED * jump.change * (float(before.mean()) - 1.0):
            return (
                f"their share went from {jump.before:.0%} to {jump.after:.0%} at step {jump.step}, and the mean length "
                f"stayed ({number(float(before.mean()))} and {number(float(after.mean()))} tokens): texts are lost "
                "after sampling"
            )
    return ""


@check(needs=("repetition",))
def repetition(run: Run) -> Result:
    """Texts repeat themselves.

    Symptom: the share of word triples that occurred earlier in the same text ends 0.2 above where it began, or lies
    above 0.5 throughout (worth knowing only: code and tables repeat by nature).

    Causes and what tells them apart:
    - repetition_pays: the reward rose meanwhile: loops are rewarded; a held-out judge would tell.
    - degenerate: the reward did not rise: the policy is breaking; entropy and KL show where it began.
    - from_start: the model loops from the first step: a small base model, or too cold a temperature.

    Remedy: pay less for repeated text; go on from a checkpoint before it began; sample at temperature 1.

    Source: post-training-toolkit's limit of 0.2; the split by the reward is steadyrl's own.
    """
    share, reward = run.get("repetition"), run.get("reward")
    assert share is not None, "a need"
    levels = measure(share)
    if levels is None or len(share) < MIN_STEPS:
        return Unclear("repetition", f"{len(share)} steps are too few")
    grew = levels.rose and levels.end > levels.first + REPEATS_MORE
    if not grew and min(levels.first, levels.end) <= REPEATS_ALWAYS:
        return None
    rewards = measure(reward) if reward is not None else None
    pays = rewards is not None and rewards.rose
    cause = ("repetition_pays" if pays else "degenerate") if grew else "from_start"
    return Finding(
        check="repetition",
        severity="warning" if grew else "info",
        since_step=first_lasting(share, share.values > levels.first + REPEATS_MORE) if grew else None,
        cause=cause,
        message=f"{levels.end:.0%} of the word triples are repetitions, {levels.first:.0%} at the start",
        evidence=(f"block means {number(levels.first)} and {number(levels.end)}",),
        remedy="Pay less for repeated text, and go on from a checkpoint before it began."
        if grew
        else "Sample at a higher temperature, if the texts should not repeat themselves.",
        overrides=() if grew else ("sampling.temperature=1.0",),
        source="microsoft/post-training-toolkit (limit of 0.2)",
    )
