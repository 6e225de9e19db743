"""What changes from one step to the next although the policy did not: the scorer, and the value head."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from steadyrl.doctor.check import Cause, Check, Found, Result
from steadyrl.doctor.checks.reward import learning_reward
from steadyrl.doctor.series import Run, Series
from steadyrl.doctor.statistics.jumps import Jump, jumps, jumps_at, shows_at
from steadyrl.doctor.statistics.measures import reward_spread
from steadyrl.doctor.statistics.readings import KL_OLD_LARGE, number, update_size, within
from steadyrl.doctor.statistics.signals import MIN_STEPS, SPIKE_WINDOW
from steadyrl.doctor.statistics.units import find, together
from steadyrl.stats import MAD_TO_STD

SAME_TIME = 2  # steps: a jump is dated to within two
GROWN = float(np.log(1.5))  # of the spread's logarithm: from half as much again on, the scores scatter more
CONSTANT_SHIFT = 3.0  # spreads: other verdicts that differ by so much would scatter by about as much themselves
MOST_CANDIDATES = 200  # steps whose surroundings are looked at
HEAD_SETTLES = 10  # steps in which a fresh value head may move as it likes
FAR_STEP = 8.0  # usual step-to-step changes of the mean prediction
FAR_OFF = 1.0  # standard deviations of the returns, by which the prediction has to jump
REWARD_STAYS = 4.0  # usual step-to-step changes of the reward
NO_SPREAD = 1e-6  # of the spread before
LOST = ("empty", "truncated", "reward_unscored")


@dataclass(frozen=True)
class _Moved:
    """A measurement of the reward that jumped."""

    name: str
    jump: Jump
    spread: bool


def _reward_jump(run: Run) -> Result:
    reward = run.needed("reward")
    moved = sorted(_moved(run, reward), key=lambda m: m.jump.step)
    for first in moved:
        since = first.jump.step
        if not _constant_after(run, since) and not _policy_jumps(run, since) and not _texts_lost(run, since):
            together_with = [m for m in moved if abs(m.jump.step - since) <= SAME_TIME]
            cause, told = _cause(run, since, together_with)
            return Found(
                cause,
                "info" if cause == "other_prompts" else "warning",
                since,
                f"the rewards changed at step {since} from one step to the next, and the policy did not: {told}",
                tuple(map(_sentence, together_with)),
            )
    return None


def _moved(run: Run, reward: Series) -> Iterator[_Moved]:
    spread = reward_spread(run)
    if spread is not None:
        yield from (_Moved("reward_std", jump, True) for jump in jumps(spread, logarithm=True) if jump.change > GROWN)
    yield from (_Moved("reward", jump, False) for jump in jumps(reward))
    for name, part in run.parts("reward_part/").items():
        shown = (jump for jump in jumps(part) if shows_at(reward, jump.step))
        yield from (_Moved(f"the part {name}", jump, False) for jump in shown)
    for name, part in run.parts("reward_part_std/").items():
        grown = (jump for jump in jumps(part, logarithm=True) if jump.change > GROWN)
        yield from (_Moved(f"the spread of the part {name}", jump, True) for jump in grown)


def _constant_after(run: Run, since: int) -> bool:
    spread = reward_spread(run)
    if spread is None:
        return False
    before, after = (np.median(spread.values[there]) for there in (spread.steps < since, spread.steps >= since))
    return bool(after <= NO_SPREAD * before)


def _policy_jumps(run: Run, since: int) -> bool:
    """Return True if the policy changed as suddenly: by its own measurements, or by the size of the step."""
    entropy, kl = find(run, "entropy"), find(run, "kl_ref")
    if jumps_at(run.get("length"), since, SAME_TIME, logarithm=True) or jumps_at(kl, since, SAME_TIME):
        return True
    size = update_size(run)
    there = np.zeros(0) if size is None else within(size, since - SAME_TIME, since + 1).values
    usual = 0.0 if size is None else float(np.median(size.values))
    large = len(there) > 0 and float(there.max()) > max(KL_OLD_LARGE, 5.0 * usual)
    return large or jumps_at(entropy, since, SAME_TIME, logarithm=True)


def _texts_lost(run: Run, since: int) -> bool:
    return any(jumps_at(run.get(name), since, SAME_TIME) for name in LOST)


def _sentence(moved: _Moved) -> str:
    before, after = moved.jump.before, moved.jump.after
    if moved.spread:
        before, after = float(np.exp(before)), float(np.exp(after))
    return f"{moved.name} went from {number(before)} to {number(after)} at step {moved.jump.step} (means of ten steps)"


def _cause(run: Run, since: int, moved: list[_Moved]) -> tuple[str, str]:
    if jumps_at(run.get("length_prompt"), since, SAME_TIME, logarithm=True):
        return "other_prompts", "the prompts' length changed with them"
    if any(m.spread for m in moved):
        return "judge_noise", "they scatter more, as verdicts of a noisier judge do"
    spread = reward_spread(run)
    usual = float(np.median(spread.values[spread.steps < since])) if spread is not None else 0.0
    shift = max(abs(m.jump.change) for m in moved)
    if usual > 0 and shift > CONSTANT_SHIFT * usual:
        return "reward_shift", f"they moved by {number(shift / usual)} of their spreads and scatter as before"
    return "judge_or_engine", "what scores them gives other verdicts"


reward_jump = Check(
    name="reward_jump", topic="Reward",
    title="Rewards change from one step to the next, and the policy does not.",
    symptom="The mean reward, one of its parts or the spread of the rewards has another level from some step on, by "
    "more than 7 standard errors of ten steps, and the whole change is there within three steps. Length, entropy and "
    "KL to the reference go on as before, and so do the shares of empty, cut off and unscored completions. A policy "
    "that learns by small updates changes its rewards gradually; what changes them at once is what scores them. Not "
    "judged are a reward that became constant, jumps that go with one of the policy, and parts whose jump does not "
    "show in the whole reward.",
    healthy="Rewards change as gradually as the policy does.",
    causes=(
        Cause("judge_noise", "the spread of the rewards grew by half or more: verdicts became noisier",
              "Score some completions twice: verdicts that differ have to be averaged, or the judge fixed.",
              measured="reward_noise, judge_garbage"),
        Cause("reward_shift", "the level moved by more than 3 spreads and the spread stayed: a constant was added or "
              "taken away. Advantages of a group baseline do not notice; a value head does",
              "Find what was added to the rewards and take it off again; go on from a checkpoint before.",
              measured="reward_offset"),
        Cause("judge_or_engine", "the level moved by less and the spread stayed: another scorer, prompt of the judge "
              "or index",
              "Score completions of the steps before with the scorer as it is now: the rewards have to be the same. "
              "Log the spread of each part.", measured="judge_garbage"),
        Cause("other_prompts", "the prompts' length jumped at the same step: the problems changed; worth knowing only",
              "Nothing, if the change of problems was meant."),
    ),
    find=_reward_jump, needs=("reward",), min_steps=MIN_STEPS, applies=learning_reward, shows=("reward", "reward_std"),
    source="steadyrl's own rule; rates of false alarms in docs/doctor/statistics.md",
)  # fmt: skip


def _value_jump(run: Run) -> Result:
    value, reward = run.needed("value_mean"), run.needed("reward")
    value, reward = together(value, reward)
    spread = run.get("return_std") or reward_spread(run)
    width = 0.0 if spread is None else float(np.median(spread.values))
    moves, rewards = np.abs(np.diff(value.values)), np.abs(np.diff(reward.values))
    for i in np.flatnonzero(moves > FAR_OFF * width)[:MOST_CANDIDATES]:
        before = slice(max(0, i - SPIKE_WINDOW), i)
        settled = moves[before][HEAD_SETTLES // 2 :] if i < SPIKE_WINDOW else moves[before]
        if i < HEAD_SETTLES or moves[i] <= FAR_STEP * MAD_TO_STD * float(np.median(settled)):
            continue
        if rewards[i] > REWARD_STAYS * MAD_TO_STD * float(np.median(rewards[before])):
            continue
        if not _policy_jumps(run, int(value.steps[i + 1])):
            return _reset(run, value, int(i) + 1, width)
    return None


def _reset(run: Run, value: Series, at: int, width: float) -> Found:
    since, before, after = int(value.steps[at]), float(value.values[at - 1]), float(value.values[at])
    explained = run.get("explained_variance")
    there = None if explained is None else within(explained, since, since)
    more = there is not None and len(there) > 0
    return Found(
        "value_reset",
        "warning",
        since,
        f"the mean prediction of the value head jumps at step {since} and the rewards do not: it lost its weights",
        (
            f"mean prediction {number(before)} before, {number(after)} at step {since}; returns have a standard "
            f"deviation of {number(width)}",
            *(
                (f"the explained variance is {number(float(there.values[0]))} there",)
                if there is not None and more
                else ()
            ),
        ),
    )


value_jump = Check(
    name="value_jump", topic="Value",
    title="The value head predicts something else from one step to the next, and the rewards do not change.",
    symptom="The mean prediction moves in one step by more than 8 of its usual steps and by more than one standard "
    "deviation of the returns, after the first ten steps, while the mean reward moves as always. Not judged where the "
    "reward or the policy itself changes as suddenly.",
    healthy="The mean prediction of the value head moves by small steps.",
    causes=(
        Cause("value_reset", "the head lost its weights, as when a run is resumed without them or with a fresh "
              "optimizer. Until it has learned again its advantages carry its own error, and the explained variance "
              "is far below 0",
              "Resume with the value head's weights and its optimizer state, from a checkpoint before the jump; or "
              "hold the policy until the explained variance is back.", measured="value_head_reset"),
    ),
    find=_value_jump, needs=("value_mean", "reward"), min_steps=MIN_STEPS,
    applies=lambda run: run.traits.critic is not False,
    source="steadyrl's own rule",
)  # fmt: skip
