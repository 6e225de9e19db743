"""The policy's entropy: collapsing, exploding, or no entropy per token at all."""

from __future__ import annotations

from typing import Literal

import numpy as np

from steadyrl.doctor.check import Unclear, check
from steadyrl.doctor.checks.measures import setting
from steadyrl.doctor.checks.readings import (
    heldout_rises,
    large_updates,
    learns,
    levels,
    nothing_to_learn,
    number,
    reward_rises,
)
from steadyrl.doctor.checks.remedies import calmer
from steadyrl.doctor.checks.sampler import SAMPLING_REMEDY, sampling_gap, sampling_overrides
from steadyrl.doctor.checks.units import TOKEN, find
from steadyrl.doctor.series import Run, Series
from steadyrl.doctor.signals import MIN_STEPS, first_lasting, head, tail
from steadyrl.types import Finding

# Relative to the first healthy block: absolute limits contradict one another (1.0 in one tool, 0.2 a working target
# elsewhere). A healthy run was seen at 0.28 while its reward rose by 60 %.
FALLEN, COLLAPSED = 0.3, 0.1
RISEN, RISEN_BY = 2.5, 0.5  # times the start, and nats per token
OPENING = 3  # steps
NO_END = 0.8  # share of completions that are cut off
NEAR_UNIFORM = 0.8  # of ln V
LN_LARGEST_VOCABULARY = 12.6  # ln of 300,000: above every vocabulary in use
SMALL_VOCABULARY = 1000  # a toy that starts uniform is in order, a language model that does is not
PER_TOKEN = (0.01, 6.0)  # nats: what a language model's entropy per token may be
REPETITION_RISE = 0.1  # share of repeated word 3-grams
LASTING = 5


@check(needs=("entropy",))
def entropy_collapse(run: Run) -> Finding | Unclear | None:
    """The policy lost its entropy without having learned anything for it.

    Symptom:
        The entropy per token fell below 0.3 of the level that it started from. A policy without entropy tries
        nothing new: what it has not found by then it will not find. Falling entropy alone is no fault: a reward that
        rises has to be paid for with it, and such a run is told as information only.

    Causes and what tells them apart:
        - "learned": the reward rose and kept its gain, held-out measurements rose too or are not there.
        - "exploitation": the reward rose, held-out measurements did not: the policy found what the reward overlooks.
        - "learning_rate": large updates (KL to the old policy, clip fraction) when the entropy fell.
        - "constant_reward": rewards do not differ, so that only noise drives the policy.
        - "degenerate": the reward is flat and repetition grew: the policy says one thing over and over.
        - "no_entropy_pressure": nothing of these, and the entropy bonus is 0.
        - "unknown": nothing of these, and the bonus is not known.

    Remedy:
        Learning rate to a third or less, one epoch, an entropy bonus, a wider upper clip range (0.28), temperature 1.
        More KL penalty is no reliable cure. Go back to a checkpoint before the fall.

    Source:
        Entropy mechanism (arXiv 2505.22617, abstract: R = -a exp(H) + b); DAPO (arXiv 2503.14476: clip range 0.2 /
        0.28); of Skywork-OR1 (arXiv 2505.22312: on-policy updates, temperature 1) and arXiv 2606.18487 (KL to the
        reference did not rescue a collapsed run) the abstracts.
    """
    entropy = _entropy(run)
    if entropy is None:
        return Unclear("entropy_collapse", "the entropy is not known per token", ("entropy (exact)", "length"))
    if len(entropy) < MIN_STEPS:
        return None
    start, end = head(entropy), tail(entropy)
    if start <= 0 or end > FALLEN * start:
        return None
    since = first_lasting(entropy, entropy.values < 0.5 * start, LASTING)
    cause, because = _collapse_cause(run, since)
    idle = "no_signal_groups" if "no_signal" in run.series else "reward_constant"
    follows = {"learning_rate": "learning_rate_too_high", "constant_reward": idle}
    return Finding(
        check="entropy_collapse",
        severity=_collapse_severity(run, end / start, cause),
        since_step=since,
        cause=cause,
        message=f"The entropy fell to {end / start:.0%} of its start: {cause.replace('_', ' ')}.",
        evidence=(levels("the entropy", entropy, "nats/token"), *because),
        remedy=_COLLAPSE_REMEDIES[cause],
        overrides=_collapse_overrides(run, cause),
        source="arXiv 2505.22617 (reward is bought with entropy); DAPO, arXiv 2503.14476 (clip range 0.2 / 0.28)",
        follows=follows.get(cause, ""),
    )


def _entropy(run: Run) -> Series | None:
    return find(run, "entropy", TOKEN, ("exact", "sampled", ""))


def _collapse_severity(run: Run, share: float, cause: str) -> Literal["critical", "warning", "info"]:
    if cause == "learned":
        return "info"
    if cause == "exploitation":
        return "warning"
    return "critical" if share < COLLAPSED and reward_rises(run) is False and not learns(run) else "warning"


def _collapse_cause(run: Run, since: int | None) -> tuple[str, tuple[str, ...]]:
    # A strict test that finds no rise in few noisy steps has not shown that there is none.
    rises, elsewhere = reward_rises(run) or learns(run), heldout_rises(run)
    reward = run.get("reward")
    seen = (levels("the reward", reward),) if reward is not None else ()
    if rises and elsewhere is False:
        return "exploitation", (*seen, "held-out measurements did not rise")
    if rises:
        return "learned", (*seen, "held-out measurements rose too" if elsewhere else "there is no held-out measurement")
    large = large_updates(run, since)
    if large:
        return "learning_rate", (*large, *seen)
    idle = nothing_to_learn(run)
    if idle:
        return "constant_reward", (idle,)
    repetition = run.get("repetition")
    if rises is False and repetition is not None and tail(repetition) > head(repetition) + REPETITION_RISE:
        return "degenerate", (levels("the share of repeated 3-grams", repetition), *seen)
    bonus = run.get("entropy_coef")
    coefficient = setting(run, "entropy_coef") if bonus is None else float(bonus.values[-1])
    if coefficient == 0:
        return "no_entropy_pressure", ("the entropy bonus is 0", *seen)
    return "unknown", seen


_COLLAPSE_REMEDIES = {
    "learned": "None is needed while held-out measurements rise; watch them.",
    "exploitation": "Read completions, mend the reward, and stop at the best held-out checkpoint.",
    "learning_rate": "Lower the learning rate, make one epoch, and go back to a checkpoint before the fall.",
    "constant_reward": "Use prompts and rewards that tell completions apart.",
    "degenerate": "Penalise repetition in the reward, lower the learning rate, go back to before the fall.",
    "no_entropy_pressure": "Add an entropy bonus or widen the upper clip range; sample at temperature 1.",
    "unknown": "Lower the learning rate, make one epoch, add an entropy bonus; log the KL of one step's updates.",
}


def _collapse_overrides(run: Run, cause: str) -> tuple[str, ...]:
    if cause in ("learning_rate", "degenerate"):
        return calmer(run)
    if cause in ("no_entropy_pressure", "unknown"):
        bonus = ("algorithm.args.entropy_coef=0.01",) if run.algorithm == "ppo" else ()
        return (*bonus, "algorithm.args.clip_high=0.28")
    return ()


@check(needs=("entropy",))
def entropy_explosion(run: Run) -> Finding | Unclear | None:
    """The policy forgets its language: the entropy rises towards that of random tokens.

    Symptom:
        The entropy rose to more than 2.5 times its start (by half a nat at least), or to 0.8 of ln V, the entropy of
        tokens drawn blindly. Some rise is healthy; this much ends in noise. Where the reward rises all the same it is
        told as information only, unless tokens are drawn blindly or completions no longer end.

    Causes and what tells them apart:
        - "warped_sampling": tokens are drawn from a sharper distribution than the one that trains, which flattens
          the policy (see that check).
        - "learning_rate": large updates (KL to the old policy, clip fraction) when the entropy rose.
        - "entropy_coef": there is an entropy bonus, and it outweighs the reward.
        - "noise_reward": the reward does not rise, and none of the above: updates follow noise.
        - "unknown": the reward rises, or is not logged.

    Remedy:
        Lower the learning rate or the bonus; mend the sampling; go back to a checkpoint before the rise.

    Source:
        verl#781 (its default entropy bonus of 0.001 made the entropy explode); TRL issues on flattening under warped
        sampling (#235); a simulation of PPO on raw log-probs at temperature 0.7 (entropy 3.06 to 3.67).
    """
    entropy = _entropy(run)
    if entropy is None:
        return Unclear("entropy_explosion", "the entropy is not known per token", ("entropy (exact)", "length"))
    if len(entropy) < MIN_STEPS:
        return None
    # Of the first steps only: an explosion can be over within the first tenth of a run.
    start, end = head(entropy, 0.03, OPENING), tail(entropy)
    vocabulary = setting(run, "vocabulary")
    uniform = float(np.log(vocabulary)) if vocabulary else None
    blind = uniform is not None and end > NEAR_UNIFORM * uniform >= start
    if not blind and (end <= RISEN * start or end - start <= RISEN_BY):
        return None
    since = first_lasting(entropy, entropy.values > (start + end) / 2, LASTING)
    cause, because, rises = *_explosion_cause(run, since), reward_rises(run)
    return Finding(
        check="entropy_explosion",
        severity=_explosion_severity(run, blind, rises),
        since_step=since,
        cause=cause,
        message=f"The entropy rose from {number(start)} to {number(end)} nats/token"
        f"{f' of {number(uniform)} at most' if uniform else ''}: {cause.replace('_', ' ')}.",
        evidence=(levels("the entropy", entropy, "nats/token"), *because),
        remedy=_EXPLOSION_REMEDIES[cause],
        overrides=_explosion_overrides(run, cause),
        source="verl#781 (entropy bonus), trl#235 (sampling)",
        follows={"learning_rate": "learning_rate_too_high", "warped_sampling": "warped_sampling"}.get(cause, ""),
    )


def _explosion_severity(run: Run, blind: bool, rises: bool | None) -> Literal["critical", "warning", "info"]:
    cut = run.get("truncated")
    # Blind tokens and texts without an end are lost language, whatever the reward does.
    speechless = blind or (cut is not None and tail(cut) > NO_END >= head(cut))
    if rises:
        return "warning" if speechless else "info"
    return "critical" if blind and rises is False else "warning"


def _explosion_cause(run: Run, since: int | None) -> tuple[str, tuple[str, ...]]:
    gap, large = sampling_gap(run), large_updates(run, since)
    if gap is not None and gap.sure and gap.gap < 0:
        return "warped_sampling", (gap.sentence,)
    if large:
        return "learning_rate", large
    bonus = run.get("entropy_coef")
    coefficient = setting(run, "entropy_coef") if bonus is None else float(np.median(bonus.values))
    if coefficient:
        return "entropy_coef", (f"the entropy bonus is {coefficient:g}",)
    reward = run.get("reward")
    if reward is not None and reward_rises(run) is False:
        return "noise_reward", (levels("the reward", reward),)
    return "unknown", ()


_EXPLOSION_REMEDIES = {
    "warped_sampling": SAMPLING_REMEDY,
    "learning_rate": "Lower the learning rate, make one epoch, and go back to a checkpoint before the rise.",
    "entropy_coef": "Lower the entropy bonus to a tenth, or take it away.",
    "noise_reward": "Score the same completions twice: if rewards differ, average more verdicts; else lower the "
    "learning rate and raise the KL penalty.",
    "unknown": "Log reward, clip fraction and the KL of one step's updates; meanwhile lower the learning rate.",
}


def _explosion_overrides(run: Run, cause: str) -> tuple[str, ...]:
    if cause == "warped_sampling":
        return sampling_overrides(run)
    if cause == "entropy_coef":
        coefficient = setting(run, "entropy_coef") or 0.0
        return (f"algorithm.args.entropy_coef={coefficient / 10:.1g}",)
    return calmer(run)


@check(needs=("entropy",))
def entropy_is_a_sum(run: Run) -> Finding | None:
    """What is logged as entropy per token cannot be one.

    Symptom:
        An entropy per token is at most ln V, the logarithm of the vocabulary's size: 10.8 for GPT-2, 11.8 for Llama 3,
        11.9 for Qwen 2.5. Here it is above, or starts close to it, as if tokens were drawn blindly.

    Causes and what tells them apart:
        - "sequence_sum": it is above ln V, and divided by the mean length it is a usual entropy per token: a sum over
          the completion, as TRL's ``objective/entropy`` is.
        - "near_uniform": it lies between 0.8 and 1 of ln V from the first step on: an untrained output head, wrong
          logits, or a huge temperature. Models with fewer than 1000 tokens may start so.
        - "unknown": it is above ln V, and the length does not explain it.

    Remedy:
        Sum: read it as nats per sequence. Uniform: check that the weights were loaded, head included.

    Source:
        ln V is the largest entropy of V outcomes; TRL 0.11 ``ppo_trainer.py``: objective/entropy is a sum per sequence.
    """
    entropy = next(
        (s.finite() for s in run.series["entropy"] if s.unit in (TOKEN, "") and len(s.finite()) >= 3),
        None,
    )
    if entropy is None:
        return None
    vocabulary = setting(run, "vocabulary")
    most = float(np.log(vocabulary)) if vocabulary else LN_LARGEST_VOCABULARY
    level = float(np.median(entropy.values))
    if level > most:
        return _too_much(run, entropy, level, most)
    start = head(entropy)
    if not vocabulary or vocabulary < SMALL_VOCABULARY or start <= NEAR_UNIFORM * most:
        return None
    return Finding(
        check="entropy_is_a_sum",
        severity="warning",
        since_step=int(entropy.steps[0]),
        cause="near_uniform",
        message="The policy starts almost as if it drew tokens blindly.",
        evidence=(f"the entropy starts at {number(start)} nats/token; ln V is {number(most)}",),
        remedy="Check that all weights were loaded, the output head among them, and the temperature. If completions "
        "read well, what is logged is no entropy per token but a sum.",
        source="ln V is the largest entropy of V tokens",
    )


def _too_much(run: Run, entropy: Series, level: float, most: float) -> Finding:
    length = run.get("length")
    per_token = None if length is None else level / max(float(np.median(length.values)), 1.0)
    is_sum = per_token is not None and PER_TOKEN[0] <= per_token <= PER_TOKEN[1]
    divided = () if per_token is None else (f"divided by the mean length it is {number(per_token)} nats/token",)
    found = f"{entropy.source or 'entropy'} is {number(level)} (median); ln V is {number(most)} at most"
    return Finding(
        check="entropy_is_a_sum",
        severity="info" if is_sum else "warning",
        since_step=None,
        cause="sequence_sum" if is_sum else "unknown",
        message="What is logged as entropy is above ln V, which no entropy per token can be"
        + (": it is a sum over the completion." if is_sum else "."),
        evidence=(found, *divided),
        remedy="Read it as nats per sequence, and log the mean over tokens beside it."
        if is_sum
        else "Find out what is summed there: an entropy per token is at most ln V.",
        source="ln V is the largest entropy of V tokens; TRL 0.11: objective/entropy is a sum per sequence",
    )
