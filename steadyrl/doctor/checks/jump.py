"""What changes from one step to the next although the policy did not: the scorer, and the value head."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from steadyrl.doctor.check import Cause, Check, Found, Result
from steadyrl.doctor.checks.reward import learning_reward
from steadyrl.doctor.series import Run, Series
from steadyrl.doctor.statistics.jumps import Jump, jumps, jumps_at, shows_at
from steadyrl.doctor.statistics.readings import KL_OLD_LARGE, number, reward_spread, update_size, within
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
    reward, spread = run.needed("reward"), reward_spread(run)
    moved = sorted(_moved(run, reward, spread), key=lambda m: m.jump.step)
    for since in (m.jump.step for m in moved):
        if (spread is not None and _constant_after(spread, since)) or _policy_jumps(run, since):
            continue
        if any(jumps_at(run.get(name), since, SAME_TIME) for name in LOST):
            continue
        at_once = [m for m in moved if abs(m.jump.step - since) <= SAME_TIME]
        cause, told = _cause(run, spread, since, at_once)
        return Found(
            cause,
            "info" if cause == "other_prompts" else "warning",
            since,
            f"the rewards changed at step {since} from one step to the next, and the policy did not: {told}",
            tuple(map(_sentence, at_once)),
        )
    return None


def _moved(run: Run, reward: Series, spread: Series | None) -> Iterator[_Moved]:
    yield from (_Moved("reward", jump, False) for jump in jumps(reward))
    for name, part in run.parts("reward_part/").items():
        yield from (_Moved(f"the part {name}", jump, False) for jump in jumps(part) if shows_at(reward, jump.step))
    spreads = {f"the spread of the part {name}": part for name, part in run.parts("reward_part_std/").items()}
    for name, part in ({} if spread is None else {"reward_std": spread} | spreads).items():
        yield from (_Moved(name, jump, True) for jump in jumps(part, logarithm=True) if jump.change > GROWN)


def _constant_after(spread: Series, since: int) -> bool:
    before, after = spread.values[spread.steps < since], spread.values[spread.steps >= since]
    return bool(len(before) and len(after) and np.median(after) <= NO_SPREAD * np.median(before))


def _policy_jumps(run: Run, since: int) -> bool:
    """Return True if the policy changed as suddenly: by its own measurements, or by the size of the step."""
    size = update_size(run)
    if size is not None:
        there = within(size, since - SAME_TIME, since + 1).values
        if len(there) and float(there.max()) > max(KL_OLD_LARGE, 5.0 * float(np.median(size.values))):
            return True
    series = ((run.get("length"), True), (find(run, "kl_ref"), False), (find(run, "entropy"), True))
    return any(jumps_at(one, since, SAME_TIME, logarithm) for one, logarithm in series)


def _sentence(moved: _Moved) -> str:
    before, after = moved.jump.before, moved.jump.after
    if moved.spread:
        before, after = float(np.exp(before)), float(np.exp(after))
    return f"{moved.name} went from {number(before)} to {number(after)} at step {moved.jump.step} (means of ten steps)"


def _cause(run: Run, spread: Series | None, since: int, moved: list[_Moved]) -> tuple[str, str]:
    if jumps_at(run.get("length_prompt"), since, SAME_TIME, logarithm=True):
        return "other_prompts", "the prompts' length changed with them"
    if any(m.spread for m in moved):
        return "judge_noise", "they scatter more, as verdicts of a noisier judge do"
    before = np.zeros(0) if spread is None else spread.values[spread.steps < since]
    usual = float(np.median(before)) if len(before) else 0.0
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
    value, reward = together(run.needed("value_mean"), run.needed("reward"))
    spread = run.get("return_std") or reward_spread(run)
    width = 0.0 if spread is None else float(np.median(spread.values))
    moves, rewards = np.abs(np.diff(value.values)), np.abs(np.diff(reward.values))
    for i in np.flatnonzero(moves > FAR_OFF * width)[:MOST_CANDIDATES]:
        before = slice(max(0, i - SPIKE_WINDOW), i)
        settled = moves[before][HEAD_SETTLES // 2 :] if i < SPIKE_WINDOW else moves[before]
        if i < HEAD_SETTLES or moves[i] <= FAR_STEP * MAD_TO_STD * float(np.median(settled)):
            continue
        since = int(value.steps[i + 1])
        if rewards[i] > REWARD_STAYS * MAD_TO_STD * float(np.median(rewards[before])) or _policy_jumps(run, since):
            continue
        told = f"the mean prediction of the value head jumps at step {since}, the rewards do not: it lost its weights"
        jump = f"mean prediction {number(float(value.values[i]))} before, {number(float(value.values[i + 1]))} at step"
        shown = f"{jump} {since}; returns have a standard deviation of {number(width)}"
        return Found("value_reset", "warning", since, told, (shown,))
    return None


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
