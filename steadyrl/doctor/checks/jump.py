"""What changes from one step to the next although the policy did not: the scorer, and the value head."""

from __future__ import annotations

from itertools import starmap

import numpy as np

from steadyrl.core.stats import MAD_TO_STD
from steadyrl.doctor.check import Found, Result, Unknown, check
from steadyrl.doctor.series import Run, Series
from steadyrl.doctor.statistics.jumps import WINDOW, Jump, has_jump_form_at, jumps, jumps_at
from steadyrl.doctor.statistics.readings import KL_OLD_LARGE, number, reward_spread, update_size, within
from steadyrl.doctor.statistics.signals import SPIKE_WINDOW
from steadyrl.doctor.statistics.units import find, together

SAME_TIME = 2  # steps: a jump is dated to within two
GROWN = float(np.log(1.5))  # of the spread's logarithm: from half as much again on, the scores scatter more
CONSTANT_SHIFT = 3.0  # spreads: other verdicts that differ by so much would scatter by about as much themselves
MOST_CANDIDATES = 200  # steps whose surroundings are looked at
HEAD_SETTLES = 10  # steps in which a fresh value head may move as it likes
FAR_STEP = 8.0  # usual step-to-step changes of the mean prediction
FAR_OFF = 1.0  # standard deviations of the returns, by which the prediction has to jump
REWARD_STAYS = 4.0  # usual step-to-step changes of the reward
NO_SPREAD = 1e-6  # of the spread before
SURER = 0.9  # of the entropy before
LOST = ("empty", "truncated", "reward_unscored")


@check("reward_jump")
def reward_jump(run: Run) -> Result:
    reward, spread = run.needed("reward"), reward_spread(run)
    moved = _moved(run, reward, spread)
    if moved and run.averaged_over > 1:
        return Unknown(
            f"the rewards changed around step {moved[0][1].step}, and a row averages {run.averaged_over} steps, too "
            "many to tell a scorer that changed from a policy that learns quickly"
        )
    # Whether the log says anything of the policy, so that it can be told from what scores it.
    policy_known = update_size(run) is not None or any(run.get(name) for name in ("kl_ref", "entropy", "length"))
    for step in (jump.step for _, jump, _ in moved):
        if _policy_jumps(run, step):
            continue
        if spread is not None:
            before, after = spread.values[spread.steps < step], spread.values[spread.steps >= step]
            if len(before) and len(after) and np.median(after) <= NO_SPREAD * np.median(before):
                continue  # the reward became constant
        if any(jumps_at(run.get(name), step, SAME_TIME) for name in LOST):
            continue
        at_once = [(name, jump, wider) for name, jump, wider in moved if abs(jump.step - step) <= SAME_TIME]
        if not any(wider for _, _, wider in at_once) and (_selected(run, step) or not policy_known):
            continue
        cause, reason = _cause(run, spread, step, at_once)
        return Found(
            cause,
            "info" if cause == "other_prompts" else "warning",
            step,
            f"the rewards changed at step {step} from one step to the next, and the policy did not: {reason}",
            tuple(starmap(_sentence, at_once)),
        )
    return None


def _moved(run: Run, reward: Series, spread: Series | None) -> list[tuple[str, Jump, bool]]:
    """Return what of the rewards jumped, the earliest first, and whether it is a spread."""
    moved = [("reward", jump, False) for jump in jumps(reward)]
    for name, part in run.with_prefix("reward_part/").items():
        moved += [(f"the part {name}", jump, False) for jump in jumps(part) if has_jump_form_at(reward, jump.step)]
    spreads = {f"the spread of the part {name}": part for name, part in run.with_prefix("reward_part_std/").items()}
    for name, part in ({} if spread is None else {"reward_std": spread} | spreads).items():
        moved += [(name, jump, True) for jump in jumps(part, logarithm=True) if jump.change > GROWN]
    return sorted(moved, key=lambda measured: measured[1].step)


def _policy_jumps(run: Run, step: int) -> bool:
    """Return True if the policy changed as suddenly: by its own measurements, or by the size of the step."""
    size = update_size(run)
    if size is not None:
        sizes = within(size, step - SAME_TIME, step + 1).values
        if len(sizes) and float(sizes.max()) > max(KL_OLD_LARGE, 5.0 * size.median):
            return True
    series = ((run.get("length"), True), (find(run, "kl_ref"), False), (find(run, "entropy"), True))
    return any(jumps_at(metric, step, SAME_TIME, logarithm) for metric, logarithm in series)


def _selected(run: Run, step: int) -> bool:
    """Return True if a policy that chose the best of its completions earns the new rewards: that is quick learning.

    Its KL to the reference grows meanwhile, or where none is logged its entropy falls by a tenth.
    """
    reward_max, reward, kl = run.get("reward_max"), run.needed("reward"), find(run, "kl_ref")
    entropy = find(run, "entropy") if kl is None else None
    moved = kl or entropy
    if reward_max is None or moved is None:
        return False
    (before, after), (near, far) = (
        (within(series, step - WINDOW, step - 1).values, within(series, step, step + WINDOW - 1).values)
        for series in (reward, moved)
    )
    earned = float(reward_max.values[reward_max.steps < step].max(initial=-np.inf))
    if not min(map(len, (before, after, near, far))):
        return False
    changed = near.mean() < far.mean() if entropy is None else far.mean() < SURER * near.mean()
    return bool(before.mean() < after.mean() <= earned and changed)


def _sentence(name: str, jump: Jump, logarithm: bool) -> str:
    before, after = (float(np.exp(x)) if logarithm else x for x in (jump.before, jump.after))
    return f"{name} went from {number(before)} to {number(after)} at step {jump.step} (means of ten steps)"


def _cause(run: Run, spread: Series | None, step: int, moved: list[tuple[str, Jump, bool]]) -> tuple[str, str]:
    if jumps_at(run.get("length_prompt"), step, SAME_TIME, logarithm=True):
        return "other_prompts", "the prompts' length changed with them"
    if any(wider for _, _, wider in moved):
        return "judge_noise", "they scatter more, as verdicts of a noisier judge do"
    before = np.zeros(0) if spread is None else spread.values[spread.steps < step]
    usual = float(np.median(before)) if len(before) else 0.0
    shift = max(abs(jump.change) for _, jump, _ in moved)
    if usual > 0 and shift > CONSTANT_SHIFT * usual:
        return "reward_shift", f"they moved by {number(shift / usual)} of their spreads and scatter as before"
    return "judge_or_engine", "what scores them gives other verdicts"


@check("value_jump")
def value_jump(run: Run) -> Result:
    value, reward = together(run.needed("value_mean"), run.needed("reward"))
    spread = run.get("return_std") or reward_spread(run)
    width = 0.0 if spread is None else spread.median
    moves, rewards = np.abs(np.diff(value.values)), np.abs(np.diff(reward.values))
    for i in np.flatnonzero(moves > FAR_OFF * width)[:MOST_CANDIDATES]:
        before = slice(max(0, i - SPIKE_WINDOW), i)
        settled = moves[before][HEAD_SETTLES // 2 :] if i < SPIKE_WINDOW else moves[before]
        if i < HEAD_SETTLES or moves[i] <= FAR_STEP * MAD_TO_STD * float(np.median(settled)):
            continue
        step = int(value.steps[i + 1])
        if abs(value.values[i + 1] - reward.values[i]) < abs(value.values[i] - reward.values[i]):
            continue  # it comes to what is earned, as a head does that learns
        if rewards[i] > REWARD_STAYS * MAD_TO_STD * float(np.median(rewards[before])) or _policy_jumps(run, step):
            continue
        message = f"the mean prediction of the value head jumps at step {step}, the rewards do not"
        jump = f"mean prediction {number(float(value.values[i]))} before, {number(float(value.values[i + 1]))} at step"
        evidence = f"{jump} {step}; returns have a standard deviation of {number(width)}"
        return Found("value_reset", "warning", step, f"{message}: it lost its weights", (evidence,))
    return None
