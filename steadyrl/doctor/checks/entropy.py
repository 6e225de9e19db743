"""The policy's entropy: collapsing, exploding, or no entropy per token at all."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from steadyrl.doctor.check import Cause, Check, Found, Result, Unknown, Value
from steadyrl.doctor.checks.sampler import SAMPLING_REMEDY, sampling_gap
from steadyrl.doctor.remedies import calmer, plain_sampling
from steadyrl.doctor.series import Run
from steadyrl.doctor.statistics.readings import (
    LN_LARGEST_VOCABULARY,
    heldout_rises,
    large_updates,
    learns,
    levels,
    nothing_to_learn,
    number,
    setting,
)
from steadyrl.doctor.statistics.signals import LASTING, MIN_STEPS, first_lasting, head, tail
from steadyrl.doctor.statistics.units import TOKEN, find

# Relative to the first healthy block: absolute limits contradict one another (1.0 in one tool, 0.2 a working target
# elsewhere). A healthy run was seen at 0.28 while its reward rose by 60 %.
FALLEN, COLLAPSED = 0.3, 0.1
RISEN, RISEN_BY = 2.5, 0.5  # times the start, and nats per token
OPENING = 3  # steps
NO_END = 0.8  # share of completions that are cut off
NEAR_UNIFORM = 0.8  # of ln V
SMALL_VOCABULARY = 1000  # a toy that starts uniform is in order, a language model that does is not
PER_TOKEN = (0.01, 6.0)  # nats: what a language model's entropy per token may be


def _collapse(run: Run) -> Result:
    entropy = find(run, "entropy")
    if entropy is None:
        return Unknown("the entropy is not known per token", ("entropy (exact)", "length"))
    if not entropy.values.any():
        return Unknown("the entropy is 0 in every row: it was not measured", ("entropy (exact)",))
    start, end = head(entropy), tail(entropy)
    if start <= 0 or end > FALLEN * start:
        return None
    since = first_lasting(entropy, entropy.values < 0.5 * start, LASTING)
    cause, because = _collapse_cause(run, since)
    lost = end < COLLAPSED * start and learns(run) is False
    return Found(
        cause,
        "info" if cause == "learned" else "critical" if lost else "warning",
        since,
        f"the entropy fell to {end / start:.0%} of its start",
        (levels("the entropy", entropy, "nats/token"), *because),
    )


def _collapse_cause(run: Run, since: int | None) -> tuple[str, tuple[str, ...]]:
    reward, elsewhere = run.get("reward"), heldout_rises(run)
    seen = (levels("the reward", reward),) if reward is not None else ()
    if learns(run):
        if elsewhere is False:
            return "exploitation", (*seen, "held-out measurements did not rise")
        return "learned", (*seen, "held-out measurements rose too" if elsewhere else "there is no held-out measurement")
    if large := large_updates(run, since):
        return "learning_rate", (*large, *seen)
    if idle := nothing_to_learn(run):
        return "constant_reward", (idle,)
    return "unknown", (*_bonus(run), *seen)


def _bonus(run: Run) -> tuple[str, ...]:
    """Return a sentence with the coefficient of the entropy bonus, where it is known."""
    logged = run.get("entropy_coef")
    coefficient = setting(run, "entropy_coef") if logged is None else float(np.median(logged.values))
    return () if coefficient is None else (f"the entropy bonus is {coefficient:g}",)


def _more_entropy(run: Run) -> Mapping[str, Value]:
    return {"entropy_coef": 0.01, "clip": 0.28} if run.traits.critic else {"clip": 0.28}


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
        Cause("unknown", "nothing of these; without an entropy bonus nothing holds the entropy up",
              "Add an entropy bonus or widen the upper clip range to 0.28; sample at temperature 1; lower the "
              "learning rate, make one epoch. Where texts repeat themselves, penalise that in the reward. More KL "
              "penalty is no reliable cure.", change=_more_entropy,
              follows=("kl_penalty_outweighs", "reward_jump", "length_collapse", "learning_rate_too_high"),
              moves=("entropy_up", "clip", "learning_rate")),
    ),
    find=_collapse, needs=("entropy",), min_steps=MIN_STEPS, applies=lambda run: run.traits.trains_on != "given",
    source="Entropy mechanism (arXiv 2505.22617, abstract: R = -a exp(H) + b); DAPO (arXiv 2503.14476: clip range 0.2 "
    "/ 0.28); of Skywork-OR1 (arXiv 2505.22312) and arXiv 2606.18487 (KL to the reference did not rescue a collapsed "
    "run) the abstracts",
)  # fmt: skip


def _explosion(run: Run) -> Result:
    entropy = find(run, "entropy")
    if entropy is None:
        return Unknown("the entropy is not known per token", ("entropy (exact)", "length"))
    # Of the first steps only: an explosion can be over within the first tenth of a run.
    start, end = head(entropy, 0.03, OPENING), tail(entropy)
    vocabulary, cut = setting(run, "vocabulary"), run.get("truncated")
    blind = vocabulary is not None and end > NEAR_UNIFORM * float(np.log(vocabulary)) >= start
    if not blind and (end <= RISEN * start or end - start <= RISEN_BY):
        return None
    since = first_lasting(entropy, entropy.values > (start + end) / 2, LASTING)
    cause, because = _explosion_cause(run, since)
    # Blind tokens and texts without an end are lost language, whatever the reward does.
    speechless = blind or (cut is not None and tail(cut) > NO_END >= head(cut))
    return Found(
        cause,
        "critical" if blind and learns(run) is False else "warning" if speechless or not learns(run) else "info",
        since,
        f"the entropy rose from {number(start)} to {number(end)} nats/token"
        + (f" of {number(float(np.log(vocabulary)))} at most" if vocabulary else ""),
        (levels("the entropy", entropy, "nats/token"), *because),
    )


def _explosion_cause(run: Run, since: int | None) -> tuple[str, tuple[str, ...]]:
    gap, reward = sampling_gap(run), run.get("reward")
    if gap is not None and gap.sure and gap.gap < 0:
        return "warped_sampling", (gap.sentence,)
    if large := large_updates(run, since):
        return "learning_rate", large
    if (bonus := _bonus(run)) and not bonus[0].endswith(" 0"):
        return "entropy_coef", bonus
    return "unknown", () if reward is None else (levels("the reward", reward),)


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
              "flattens the policy",
              SAMPLING_REMEDY, change=plain_sampling, follows=("warped_sampling",)),
        Cause("learning_rate", "large updates (KL to the old policy, clip fraction) when the entropy rose",
              "Lower the learning rate, make one epoch, and go back to a checkpoint before the rise.", change=calmer,
              follows=("learning_rate_too_high",), moves=("learning_rate", "epochs")),
        Cause("entropy_coef", "there is an entropy bonus, and it outweighs the reward",
              "Lower the entropy bonus to a tenth, or take it away.", change=_less_bonus, moves=("entropy_down",),
              measured="entropy_bonus"),
        Cause("unknown", "none of these; where the reward does not rise, updates follow noise",
              "Score the same completions twice: if rewards differ, average more verdicts; else lower the learning "
              "rate and raise the KL penalty. Log reward, clip fraction and the KL of one step's updates.",
              change=calmer, follows=("reward_constant", "no_signal_groups", "negative_kl", "learning_rate_too_high"),
              moves=("learning_rate",)),
    ),
    find=_explosion, needs=("entropy",), min_steps=MIN_STEPS,
    source="verl#781 (its default entropy bonus of 0.001 made the entropy explode); TRL issues on flattening under a "
    "sampling mismatch (#235); a simulation of PPO on raw log-probs at temperature 0.7 (entropy 3.06 to 3.67)",
)  # fmt: skip


def _is_a_sum(run: Run) -> Result:
    logged = (s.finite() for s in run.series["entropy"] if s.unit in (TOKEN, ""))
    entropy = next((series for series in logged if len(series) >= OPENING), None)
    if entropy is None:
        return None
    vocabulary, length = setting(run, "vocabulary"), run.get("length")
    most = float(np.log(vocabulary)) if vocabulary else LN_LARGEST_VOCABULARY
    level, start = float(np.median(entropy.values)), head(entropy)
    near = vocabulary is not None and vocabulary >= SMALL_VOCABULARY and start > NEAR_UNIFORM * most
    if level <= most and not near:
        return None
    per_token = None if length is None else level / max(float(np.median(length.values)), 1.0)
    is_sum = level > most and per_token is not None and PER_TOKEN[0] <= per_token <= PER_TOKEN[1]
    found = f"{entropy.source or 'entropy'} starts at {number(start)}, its median is {number(level)}; ln V is"
    return Found(
        "sequence_sum" if is_sum else "unknown",
        "info" if is_sum else "warning",
        int(entropy.steps[0]),
        "what is logged as entropy is no entropy per token, or tokens are drawn almost blindly",
        (
            f"{found} {number(most)} at most",
            f"divided by the mean length it is {number(per_token)}" if per_token else "",
        ),
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
        Cause("unknown", "it is above ln V and the length does not explain it, or it lies between 0.8 and 1 of ln V "
              "from the first step on: an untrained output head, wrong logits, a huge temperature. Models with fewer "
              "than 1000 tokens may start so",
              "Check that all weights were loaded, the output head among them, and the temperature. If completions "
              "read well, find out what is summed there."),
    ),
    find=_is_a_sum, needs=("entropy",),
    source="ln V is the largest entropy of V outcomes; TRL 0.11 ppo_trainer.py: objective/entropy is a sum",
)  # fmt: skip
