"""What the rewards can teach: groups that differ, advantages with a baseline, parts that pay."""

from __future__ import annotations

import re

import numpy as np

from steadyrl.core.types import Severity
from steadyrl.core.words import counted, percent
from steadyrl.doctor.check import FEWEST_ROWS, Found, Result, Unknown, check
from steadyrl.doctor.checks.reward import shows_no_gain, worsens
from steadyrl.doctor.names.shapes import pays_for_right
from steadyrl.doctor.series import Run, Series
from steadyrl.doctor.statistics import readings
from steadyrl.doctor.statistics.readings import ROWS, number, signal_lost
from steadyrl.doctor.statistics.signals import MIN_STEPS, end_rows, first_lasting, head, tail
from steadyrl.doctor.statistics.units import find, together

LITTLE_SIGNAL = 0.7  # share of groups that teach nothing: less than a third of every batch is of use
HALF_LOST, LONG = 0.5, 200  # the same from the start of so many steps in which nothing was learned
NO_SIGNAL_AT_ALL, NEARLY_ALL = 0.999, 0.9
AT_ONCE = 3  # rows
LATE = 0.2  # of the run: how it is now, rather than how it began
FIRST_ROWS = 5
LAST, STEPS = "last rows", "steps, as many as make whole rows so,"
WRITES = re.compile(r"(?:write|save|log|print|dump|record|debug)_", re.IGNORECASE)
ALIKE_WHEN_HOT = "They agree although they are sampled at temperature"
CERTAIN, STILL, DONE = 0.3, 0.1, 0.9  # of the first entropy and gradient; of the way to the greatest reward
RARE = "hardly ever pays"
EARN = ("too_easy", "same_answers", "cut_off")  # causes with completions that earn something
NO_TWO = "no two rewards of the run differ"
RIGHT, WRONG = 0.6, 0.4  # of the way from the least to the greatest reward
SAME, AT_END = 1e-9, 0.05  # of the rewards' range
EQUAL, MOSTLY = 1e-3, 0.9  # relative to the rewards' range: printing and rounding; share of the rows
ALONG, ROWS_ALONG, SLOPE = 0.99, 10, (0.9, 1.1)  # correlation and slope of mean advantage over mean reward
ENDLESS = 0.5  # share cut off, above which no level says that the problems are solved
RARELY = 0.05  # share of the rows in which a part pays
IDLE_ROWS, IDLE_STEPS, RARE_STEPS = 5, 10, 50  # what is hard to earn may first be earned after tens of steps


@check("no_signal_groups")
def no_signal_groups(run: Run) -> Result:
    reward = run.get("reward")
    if run.traits.critic:  # its baseline is the value head: equal rewards of a prompt still teach
        return None if reward is not None and np.ptp(reward.values) else Unknown("the reward never changes")
    if (measured := signal_lost(run)) is None:
        return Unknown("neither the share of groups with equal rewards, nor advantages, nor the spread within groups "
                       "is logged", ("no_signal", "reward_std_within", "advantage_std"))  # fmt: skip
    share, basis = measured
    few = min(FIRST_ROWS, len(share) // 3) if len(share) < MIN_STEPS <= run.covers(share) else FIRST_ROWS
    late = float(share.values[-max(few, int(LATE * len(share)), 1) :].mean())
    # What is learned within the first tenth shows in the first rows alone.
    early = min(float(share.values[:rows].mean()) for rows in (max(few, len(share) // 10, 1), AT_ONCE))
    nothing = bool((share.values >= NO_SIGNAL_AT_ALL).all())
    learned, moves = readings.learns(run), bool(readings.heldout_rises(run)) or worsens(run)
    long = run.covers(share) >= LONG
    mean = float(share.values.mean())
    if basis.startswith(ROWS):  # a row that averages several steps has no spread only if none of them has
        mean **= 1.0 / run.averaged_over
    # A row without any difference is a batch of which no group teaches anything, a whole step lost.
    idle = basis.startswith(ROWS) and mean > HALF_LOST and len(share) >= MIN_STEPS and learned is False and not moves
    half = min(late, mean) > HALF_LOST and long
    from_start = half and shows_no_gain(run) and not moves
    if len(share) < FEWEST_ROWS and not nothing and late > HALF_LOST and readings.direction(share) <= 0:
        level = f"{percent(late)} of the groups have equal rewards at the end"
        return Unknown(f"{level}, and {counted(len(share), 'row')} are too few to tell")
    if late <= HALF_LOST and not half and not idle:
        return None
    cause, reason = _equal_cause(run, share if basis.startswith(ROWS) else None)
    earns = cause in EARN or reason.endswith(RARE)
    worth_knowing = bool(learned) and early <= LITTLE_SIGNAL and earns
    if worth_knowing and late > LITTLE_SIGNAL and (stuck := _stuck(run)):
        cause, reason, worth_knowing = "same_answers", stuck, False
    worth_knowing &= not (cause in EARN[1:] and late >= NEARLY_ALL)  # nothing is left to learn from, or learned
    worth_knowing |= reward is None and not nothing  # they may all be right
    worth_knowing |= late <= LITTLE_SIGNAL and not from_start and not idle
    # Groups that agree, some of them right, may be what was learned, if the rewards' thirds say so within their noise.
    worth_knowing |= idle and late <= LITTLE_SIGNAL and cause in EARN and _may_gain(run)
    rows = "rows" if nothing or (idle and run.averaged_over == 1) else STEPS if idle else LAST
    temperature = readings.setting(run, "temperature") or 0.0
    hot = cause == "same_answers" and temperature >= 1.0
    advice = "Score a good and a bad answer by hand: their rewards have to differ." if reason == NO_TWO else ""
    advice = f"{ALIKE_WHEN_HOT} {temperature:g}: draw more of each prompt, or take other prompts." if hot else advice
    return Found(
        cause,
        "critical" if nothing else "info" if worth_knowing else "warning",
        int(share.steps[0]) if nothing or idle else first_lasting(share, share.values > min(LITTLE_SIGNAL, late)),
        f"{_share_text(basis, share, mean if idle else late, rows)} nothing: {reason}",
        (f"{basis}: {readings.both_ends(early, late) if len(share) > 1 else f'{number(late)} in the only row'}",),
        advice,
    )


def _stuck(run: Run) -> str:
    """Return a sentence if a policy that learned is sure of its answers before all of them are right; else ""."""
    entropy, norm, position = find(run, "entropy"), run.get("grad_norm"), _position(run)
    if entropy is None or norm is None or position is None or position[0] > DONE:
        return ""
    if tail(entropy, LATE) > CERTAIN * head(entropy) or tail(norm, LATE) > STILL * head(norm):
        return ""
    return (
        f"the policy gives one answer to a prompt, right in {percent(position[0])}, and looks for no other: its "
        f"entropy is {number(tail(entropy, LATE))} nats per token, {number(head(entropy))} at the start"
    )


def _share_text(basis: str, share: Series, level: float, rows: str) -> str:
    if not basis.startswith(ROWS):
        return f"{percent(level)} of the groups have equal rewards and teach"
    where = "the only row" if len(share) == 1 and rows != STEPS else f"{percent(level)} of the {rows}"
    return f"in {where} {basis.removeprefix(ROWS)}, so that {'it teaches' if len(share) == 1 else 'they teach'}"


def _equal_cause(run: Run, alike: Series | None) -> tuple[str, str]:
    """Return why rewards are equal; ``alike`` is 1 in the rows without a difference, None where these are not known."""
    if run.get("reward") is None:
        return "unknown", "the mean reward is not logged"
    if (rewards := _position(run)) is None:
        return "unknown", NO_TWO
    position, low, high = rewards
    reward_parts = run.with_prefix("reward_part/").items()
    ends = {name: float(part.values[-end_rows(part, LATE, FIRST_ROWS) :].mean()) for name, part in reward_parts
            if not readings.is_penalty(name, part)}  # fmt: skip
    unpaid = [name for name, end in ends.items() if 0.0 <= end <= RARELY * max(ends.values())]
    if position > RIGHT and unpaid:
        pays = "never pays" if not any(ends[name] for name in unpaid) else RARE
        return "too_hard", f"what is paid is the same for all, and {', '.join(unpaid)} {pays}"
    right_parts = {name: part for name, part in reward_parts if pays_for_right(name)}
    if right_parts and all(
        (x.values[-max(int(LATE * len(x)), 1) :] <= SAME).mean() >= MOSTLY for x in right_parts.values()
    ):
        levels = ", ".join(f"{name} {number(tail(part, LATE))}" for name, part in right_parts.items())
        return "too_hard", f"what is paid is the same for all, and nothing for being right ({levels})"
    cut = run.get("truncated")
    if position >= WRONG and cut is not None and tail(cut, LATE) > ENDLESS:
        sentence = f"they earn the same, while {percent(tail(cut, LATE))} of them count as cut off before they end"
        return "cut_off", f"{sentence}: what is paid hardly depends on the answer"
    evidence = f"the mean reward is {percent(position)} of the way from {number(low)} to {number(high)}"
    # What the whole pays beside a share of right answers says nothing of those.
    right = [(name, ends[name]) for name, part in reward_parts if name in ends and pays_for_right(name)
             and 0.0 <= part.least <= part.greatest <= 1.0]  # fmt: skip
    if position > RIGHT and len(right) == 1 and right[0][1] < RIGHT:
        answers = f"of the answers {percent(right[0][1])} are right at the end, by {right[0][0]}"
        return "same_answers", f"the completions of a prompt agree, right or wrong ({answers})"
    shares = (low, high) == (0.0, 1.0)  # elsewhere nothing says what a right answer earns
    if position > RIGHT:
        level = "are all right" if shares else "all earn about the most that is seen"
        return "too_easy", f"the completions of most prompts {level} ({evidence})"
    if position < WRONG and not _many_earn_some(run, position, high - low):
        level = "are all wrong" if shares else "all earn about the least that is seen"
        return "too_hard", f"the completions of most prompts {level} ({evidence})"
    return "same_answers", f"the completions of a prompt agree{_where_alike(run, alike, low, high)} ({evidence})"


def _where_alike(run: Run, alike: Series | None, low: float, high: float) -> str:
    """Return what the rewards of the rows without a difference say of them; "" where these are not known."""
    if alike is None:
        return ""
    alike, reward = together(alike, run.needed("reward"))
    rewards = reward.values[alike.values > 0]
    at_end = float((np.minimum(rewards - low, high - rewards) <= AT_END * (high - low)).mean()) if len(rewards) else 0.5
    some = ", some right, some wrong" if at_end >= MOSTLY else ""
    return ", and earn neither the least nor the most" if at_end <= RARELY else some


def _position(run: Run) -> tuple[float, float, float] | None:
    """Return where the mean reward ends between the least and the greatest (0 to 1), and these two; or None."""
    reward, least, greatest = run.needed("reward"), run.get("reward_min"), run.get("reward_max")
    low = least.least if least is not None else min(0.0, reward.least)
    high = greatest.greatest if greatest is not None else max(1.0, reward.greatest)
    end = float(reward.values[-end_rows(reward, LATE, FIRST_ROWS) :].mean())
    return None if high <= low else ((end - low) / (high - low), low, high)


def _many_earn_some(run: Run, position: float, width: float) -> bool:
    """Return True if more than half of the completions must earn more than the least, and prompts differ.

    Of rewards from 0 on with mean m and standard deviation s at most a share s^2 / (m^2 + s^2) is 0 (the second-moment
    method: Cauchy and Schwarz). Where s is small all earn about the same, be it for a form that is always paid.
    """
    spread = run.get("reward_std")
    return spread is not None and position / 2 < tail(spread, LATE) / width < position


@check("advantage_baseline")
def advantage_baseline(run: Run) -> Result:
    reason = _equals_reward(run)
    severity: Severity = "warning"
    if run.traits.grouped and readings.setting(run, "samples_per_prompt") == 1:
        reason, severity = "the method compares the completions of a prompt with each other, and draws one", "critical"
    if reason is None:
        return Unknown("neither the advantages' mean nor their bounds are logged", ("advantage_mean", "advantage_max"))
    if not reason:
        return None
    chosen = run.traits.grouped is False
    cause = "no_baseline" if chosen else "single_sample"
    return Found(cause, "info" if chosen else severity, None, f"the advantages have no baseline: {reason}", (reason,))


def _equals_reward(run: Run) -> str | None:
    """Return a sentence if the advantages are the rewards themselves, "" if not, None where nothing tells."""
    ends = [
        together(advantage, reward)
        for end in ("min", "max")
        if (advantage := run.get(f"advantage_{end}")) and (reward := run.get(f"reward_{end}"))
    ]
    if len(ends) == 2:
        width = max(float(np.abs(reward.values).max(initial=0.0)) for _, reward in ends)
        # Where all rewards are 0, every baseline leaves advantages of 0.
        same = [np.abs(a.values - r.values)[r.values != 0] <= EQUAL * max(width, SAME) for a, r in ends]
        if width <= SAME or not all(part.mean() >= MOSTLY for part in same if len(part)):
            return ""
        last_values = ", ".join(f"{advantage.last:.3g}" for advantage, _ in ends)
        return f"their least and greatest are those of the rewards in nearly every row ({last_values} in the last)"
    mean, reward = run.get("advantage_mean"), run.get("reward")
    if mean is None or reward is None:
        return None
    mean, reward = together(mean, reward)
    if len(mean) < ROWS_ALONG:
        return None
    if not np.ptp(reward.values) or not np.ptp(mean.values):
        return ""
    along = float(np.corrcoef(mean.values, reward.values)[0, 1])
    slope = along * float(mean.values.std() / reward.values.std())
    if along < ALONG or not SLOPE[0] <= slope <= SLOPE[1]:
        return ""
    return f"the mean advantage follows the mean reward (correlation {number(along)}, slope {number(slope)})"


@check("reward_part_idle")
def reward_part_idle(run: Run) -> Result | list[Result]:
    reward, reward_parts = run.needed("reward"), run.with_prefix("reward_part/")
    # A function that writes something down pays nothing on purpose.
    idle = {name: x for name, x in reward_parts.items() if not WRITES.match(name) and _never_moves(run, name, x)}
    if not idle or not np.ptp(reward.values):
        return None  # the whole reward is constant
    results: list[Result] = []
    unpaid = [name for name, part in idle.items() if part.first == 0.0]
    none_right = all(name in unpaid for name in reward_parts if pays_for_right(name))
    for cause, names in (
        ("never_right", [name for name in unpaid if pays_for_right(name)]),
        ("never_pays", [name for name in unpaid if not pays_for_right(name)]),
        ("never_differs", [name for name, part in idle.items() if part.first != 0.0]),
    ):
        fixed = [name for name in names if not np.ptp(idle[name].values)]
        owed = [name for name in fixed if not readings.is_penalty(name, idle[name])]
        # A gain that noise could explain is none where nothing that pays for being right ever pays.
        gains = readings.learns(run) or (not (cause == "never_right" and none_right) and _may_gain(run))
        harms = cause != "never_differs" and owed and run.covers(reward) >= RARE_STEPS and not gains
        evidence = tuple(f"{name} is {number(idle[name].first)} in {_rows_alike(idle[name])} rows" for name in names)
        level = "one number" if cause == "never_differs" else "0"
        rows = "throughout" if fixed == names else "in nearly all rows"
        message = f"these parts of the reward are {level} {rows}: {', '.join(names)}"
        if names:
            results.append(Found(cause, "warning" if harms else "info", None, message, evidence))
    return results


def _may_gain(run: Run) -> bool:
    """Return True if the last third of the rewards is above the first by what would be worth having, be it noise."""
    rewards = run.needed("reward").values
    if len(rewards) < 3:
        return False
    first, *_, last = (float(third.mean()) for third in np.array_split(rewards, 3))
    return last - first > readings.worth_having(run, first)


def _never_moves(run: Run, name: str, part: Series) -> bool:
    spread = run.get(f"reward_part_std/{name}")
    long = len(part) >= IDLE_ROWS and run.covers(part) >= IDLE_STEPS
    rare = len(part) >= MIN_STEPS and not part.first and int(np.count_nonzero(part.values)) <= RARELY * len(part)
    return long and (rare or not np.ptp(part.values)) and (rare or spread is None or not spread.values.any())


def _rows_alike(part: Series) -> str:
    same = int((part.values == part.first).sum())
    return f"all {same}" if same == len(part) else f"{same} of {len(part)}"
