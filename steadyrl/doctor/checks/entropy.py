"""The policy's entropy: collapsing, exploding, or no entropy per token at all."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from steadyrl.doctor.check import Cause, Check, Found, Result, Unknown, Value
from steadyrl.doctor.checks.sampler import SAMPLING_REMEDY, sampling_gap
from steadyrl.doctor.remedies import calmer, plain_sampling
from steadyrl.doctor.series import Run, Series
from steadyrl.doctor.statistics.measures import setting
from steadyrl.doctor.statistics.readings import (
    heldout_rises,
    large_updates,
    learns,
    levels,
    nothing_to_learn,
    number,
    reward_rises,
)
from steadyrl.doctor.statistics.signals import LASTING, MIN_STEPS, first_lasting, head, tail
from steadyrl.doctor.statistics.units import TOKEN, find
from steadyrl.types import Severity

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


def _collapse(run: Run) -> Result:
    entropy = _entropy(run)
    if entropy is None:
        return Unknown("the entropy is not known per token", ("entropy (exact)", "length"))
    if not entropy.values.any():
        return Unknown("the entropy is 0 in every row: it was not measured", ("entropy (exact)",))
    start, end = head(entropy), tail(entropy)
    if start <= 0 or end > FALLEN * start:
        return None
    since = first_lasting(entropy, entropy.values < 0.5 * start, LASTING)
    cause, because = _collapse_cause(run, since)
    return Found(
        cause,
        _collapse_severity(run, end / start, cause),
        since,
        f"The entropy fell to {end / start:.0%} of its start: {cause.replace('_', ' ')}.",
        (levels("the entropy", entropy, "nats/token"), *because),
    )


def _entropy(run: Run) -> Series | None:
    return find(run, "entropy")


def _collapse_severity(run: Run, share: float, cause: str) -> Severity:
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


def _more_entropy(run: Run) -> Mapping[str, Value]:
    return {"entropy_coef": 0.01, "clip": 0.28} if run.traits.critic else {"clip": 0.28}


BONUS = "Add an entropy bonus or widen the upper clip range to 0.28; sample at temperature 1. "
entropy_collapse = Check(
    name="entropy_collapse", topic="Entropy",
    title="The policy lost its entropy without having learned anything for it.",
    symptom="The entropy per token fell below 0.3 of the level that it started from. A policy without entropy tries "
    "nothing new: what it has not found by then it will not find. Falling entropy alone is no fault: a reward that "
    "rises has to be paid for with it, and such a run is told as information only.",
    healthy="The entropy falls slowly, and only while held-out measurements rise.",
    causes=(
        Cause("learned", "the reward rose and kept its gain, held-out measurements rose too or are not there",
              "None is needed while held-out measurements rise; watch them."),
        Cause("exploitation", "the reward rose, held-out measurements did not: the policy found what the reward "
              "overlooks",
              "Read completions, fix the reward, and stop at the best held-out checkpoint.",
              follows=("length_collapse",)),
        Cause("learning_rate", "large updates (KL to the old policy, clip fraction) when the entropy fell",
              "Lower the learning rate, make one epoch, and go back to a checkpoint before the fall.", change=calmer,
              follows=("learning_rate_too_high",), moves=("learning_rate", "epochs"), measured="lr_x10, lr_x100"),
        Cause("constant_reward", "rewards do not differ, so that only noise drives the policy",
              "Use prompts and rewards that tell completions apart.",
              follows=("no_signal_groups", "reward_constant", "kl_penalty_outweighs", "learning_rate_too_high"),
              measured="constant_reward"),
        Cause("degenerate", "the reward is flat and repetition grew: the policy says one thing over and over",
              "Penalise repetition in the reward, lower the learning rate, go back to before the fall.",
              change=calmer, follows=("reward_jump", "learning_rate_too_high"), moves=("learning_rate", "kl_coef")),
        Cause("no_entropy_pressure", "nothing of these, and the entropy bonus is 0", BONUS, change=_more_entropy,
              follows=("kl_penalty_outweighs", "reward_jump", "length_collapse", "learning_rate_too_high"),
              moves=("entropy_up", "clip")),
        Cause("unknown", "nothing of these, and the bonus is not known",
              f"{BONUS}Lower the learning rate, make one epoch; log the KL of one step's updates. More KL penalty is "
              "no reliable cure.", change=_more_entropy,
              follows=("kl_penalty_outweighs", "reward_jump", "length_collapse", "learning_rate_too_high"),
              moves=("learning_rate", "entropy_up")),
    ),
    find=_collapse, needs=("entropy",), min_steps=MIN_STEPS, applies=lambda run: run.traits.trains_on != "given",
    source="Entropy mechanism (arXiv 2505.22617, abstract: R = -a exp(H) + b); DAPO (arXiv 2503.14476: clip range "
    "0.2 / 0.28); of Skywork-OR1 (arXiv 2505.22312) and arXiv 2606.18487 (KL to the reference did not rescue a "
    "collapsed run) the abstracts",
)  # fmt: skip


def _explosion(run: Run) -> Result:
    entropy = _entropy(run)
    if entropy is None:
        return Unknown("the entropy is not known per token", ("entropy (exact)", "length"))
    # Of the first steps only: an explosion can be over within the first tenth of a run.
    start, end = head(entropy, 0.03, OPENING), tail(entropy)
    vocabulary = setting(run, "vocabulary")
    uniform = float(np.log(vocabulary)) if vocabulary else None
    blind = uniform is not None and end > NEAR_UNIFORM * uniform >= start
    if not blind and (end <= RISEN * start or end - start <= RISEN_BY):
        return None
    since = first_lasting(entropy, entropy.values > (start + end) / 2, LASTING)
    cause, because, rises = *_explosion_cause(run, since), reward_rises(run)
    return Found(
        cause,
        _explosion_severity(run, blind, rises),
        since,
        f"The entropy rose from {number(start)} to {number(end)} nats/token"
        f"{f' of {number(uniform)} at most' if uniform else ''}: {cause.replace('_', ' ')}.",
        (levels("the entropy", entropy, "nats/token"), *because),
    )


def _explosion_severity(run: Run, blind: bool, rises: bool | None) -> Severity:
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


def _less_bonus(run: Run) -> Mapping[str, Value]:
    coefficient = setting(run, "entropy_coef")
    return {"entropy_coef": float(f"{coefficient / 10:.1g}")} if coefficient else {}


entropy_explosion = Check(
    name="entropy_explosion", topic="Entropy",
    title="The policy forgets its language: the entropy rises towards that of random tokens.",
    symptom="The entropy rose to more than 2.5 times its start (by half a nat at least), or to 0.8 of ln V, the "
    "entropy of tokens drawn blindly. Some rise is healthy; this much ends in noise. Where the reward rises all the "
    "same it is told as information only, unless tokens are drawn blindly or completions no longer end.",
    healthy="The entropy stays below two and a half times its start.",
    causes=(
        Cause("warped_sampling", "tokens are drawn from a sharper distribution than the one that trains, which "
              "flattens the policy", SAMPLING_REMEDY, change=plain_sampling, follows=("warped_sampling",)),
        Cause("learning_rate", "large updates (KL to the old policy, clip fraction) when the entropy rose",
              "Lower the learning rate, make one epoch, and go back to a checkpoint before the rise.", change=calmer,
              follows=("learning_rate_too_high",), moves=("learning_rate", "epochs")),
        Cause("entropy_coef", "there is an entropy bonus, and it outweighs the reward",
              "Lower the entropy bonus to a tenth, or take it away.", change=_less_bonus, moves=("entropy_down",),
              measured="entropy_bonus"),
        Cause("noise_reward", "the reward does not rise, and none of the above: updates follow noise",
              "Score the same completions twice: if rewards differ, average more verdicts; else lower the learning "
              "rate and raise the KL penalty.", change=calmer,
              follows=("reward_constant", "no_signal_groups", "negative_kl", "learning_rate_too_high"),
              moves=("learning_rate",)),
        Cause("unknown", "the reward rises, or is not logged",
              "Log reward, clip fraction and the KL of one step's updates; meanwhile lower the learning rate.",
              change=calmer, follows=("learning_rate_too_high", "negative_kl"), moves=("learning_rate",)),
    ),
    find=_explosion, needs=("entropy",), min_steps=MIN_STEPS,
    source="verl#781 (its default entropy bonus of 0.001 made the entropy explode); TRL issues on flattening under "
    "a sampling mismatch (#235); a simulation of PPO on raw log-probs at temperature 0.7 (entropy 3.06 to 3.67)",
)  # fmt: skip


def _is_a_sum(run: Run) -> Result:
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
    return Found(
        "near_uniform",
        "warning",
        int(entropy.steps[0]),
        "The policy starts almost as if it drew tokens blindly.",
        (f"the entropy starts at {number(start)} nats/token; ln V is {number(most)}",),
    )


def _too_much(run: Run, entropy: Series, level: float, most: float) -> Found:
    length = run.get("length")
    per_token = None if length is None else level / max(float(np.median(length.values)), 1.0)
    is_sum = per_token is not None and PER_TOKEN[0] <= per_token <= PER_TOKEN[1]
    divided = () if per_token is None else (f"divided by the mean length it is {number(per_token)} nats/token",)
    found = f"{entropy.source or 'entropy'} is {number(level)} (median); ln V is {number(most)} at most"
    return Found(
        "sequence_sum" if is_sum else "unknown",
        "info" if is_sum else "warning",
        None,
        "What is logged as entropy is above ln V, which no entropy per token can be"
        + (": it is a sum over the completion." if is_sum else "."),
        (found, *divided),
    )


entropy_is_a_sum = Check(
    name="entropy_is_a_sum", topic="Entropy",
    title="What is logged as entropy per token cannot be one.",
    symptom="An entropy per token is at most ln V, the logarithm of the vocabulary's size: 10.8 for GPT-2, 11.8 for "
    "Llama 3, 11.9 for Qwen 2.5. Here it is above, or starts close to it, as if tokens were drawn blindly.",
    healthy="The entropy per token lies well below the logarithm of the vocabulary.",
    causes=(
        Cause("sequence_sum", "it is above ln V, and divided by the mean length it is a usual entropy per token: a "
              "sum over the completion, as TRL's objective/entropy is",
              "Read it as nats per sequence, and log the mean over tokens beside it."),
        Cause("near_uniform", "it lies between 0.8 and 1 of ln V from the first step on: an untrained output head, "
              "wrong logits, or a huge temperature. Models with fewer than 1000 tokens may start so",
              "Check that all weights were loaded, the output head among them, and the temperature. If completions "
              "read well, what is logged is no entropy per token but a sum."),
        Cause("unknown", "it is above ln V, and the length does not explain it",
              "Find out what is summed there: an entropy per token is at most ln V."),
    ),
    find=_is_a_sum, needs=("entropy",),
    source="ln V is the largest entropy of V outcomes; TRL 0.11 ppo_trainer.py: objective/entropy is a sum",
)  # fmt: skip
