"""What several checks ask of a run: a setting, does the reward rise, are the updates large, what would matter."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from steadyrl.core.stats import paired_difference
from steadyrl.core.words import percent
from steadyrl.doctor.series import Run, Series
from steadyrl.doctor.statistics.levels import FEWEST, drop, measure, scatter
from steadyrl.doctor.statistics.signals import LASTING, end_rows, first_lasting, head, strays, tail
from steadyrl.doctor.statistics.units import find, together

# Healthy updates move the policy by 0.001 to 0.05 nats per token; usual limits that stop the epochs are 0.01 to 0.05.
KL_OLD_LARGE = 0.1
# A working run was seen at 0.24 (the sample in Stable-Baselines3's logger page); sick ones at 0.2 to 0.4 and above.
CLIP_LARGE = 0.3
LOST_UPDATE, FEW_LARGE = 1.0, 3  # nats per token, of one step or of few in a row: nothing of the old policy remains
LN_LARGEST_VOCABULARY = 12.6  # ln of 300,000: above every vocabulary in use
AT_ONCE = 0.5  # change of ln entropy within ten steps; noise and learning make a tenth of it
ROWS = "rows in which "  # how what is known of whole batches begins
LITTLE_SPREAD, BETWEEN = 1e-9, 0.01  # of equal rewards; of the usual loss: a least one below may be printed as 0
MOSTLY_ROWS = 0.9  # of the rows without a loss, whose rewards are at an end
NO_SIGNAL = 0.9  # share of groups without any difference in reward, above which nothing is learned from
FIRST, QUICK = 3, 4.0  # rows, after which a quick rise may be over; deviations of single rows of the later half
SETTLED = 80  # rows, of which that half tells the deviation
WORTH_SPREAD, WORTH_LEVEL = 0.25, 0.1
NEAR_TOP, SEVERAL_AT_MOST = 0.8, 3  # of the highest level; rows that reach it
MOST_OF_IT = 0.75  # of the way to the best completions' reward: healthy runs come further
NEAR_BEST, ALL_ALIKE = 0.95, 0.01  # of the way to the best completions' reward; of the first spread of rewards
LOST_ENTROPY = 0.1  # of its start
FEW = 5  # rows that a level is taken over at least, where there are twice as many
FEWEST_PROBLEMS = 20  # held out, that an interval is taken over
# Measurements of which more is not better, or that are no goal.
NO_GOAL = (
    "length", "size", "truncated", "clip", "empty", "time", "kl", "entropy", "loss", "tokens", "repetition", "unscored",
    "std", "violation", "error", "fail", "false", "refus", "invalid", "halluc", "timeout", "penal", "perplexity", "ppl",
)  # fmt: skip
PENALTY = re.compile(r"penal|banned|forbidden|violat", re.IGNORECASE)
MOSTLY = 0.5  # share of the spikes that a cause must accompany
FAR_BEYOND = 1000.0  # times a limit: what is cut to less than a thousandth is not limited but taken away
FEW_WITHIN = 0.1  # of the rows may lie below that


def number(x: float) -> str:
    """Return a number for a sentence: three digits, and no power of ten below a million."""
    text = f"{x:.3g}"
    return f"{float(text):.0f}" if 1e3 <= abs(x) < 1e6 else text


def both_ends(start: float, end: float) -> str:
    """Return what a level was at both ends of a log, said once where it is the same."""
    first, last = number(start), number(end)
    return f"{first} at the start{f', {last} at' if first != last else ' and'} the end (means)"


def levels(name: str, series: Series, unit: str = "") -> str:
    """Return a sentence with the mean of a series at its start and at its end, or with its only value.

    The median of rewards that are mostly 0 would hide the others.
    """
    if len(series) == 1:
        return f"{name} was {number(tail(series))}{' ' + unit if unit else ''} at step {series.steps[0]}, the only row"
    start, end = map(number, ends(series))
    return (
        f"{name} went from {start} (first steps, from {series.steps[0]}) to {end}"
        f"{' ' + unit if unit else ''} (last steps, to {series.steps[-1]})"
    )


def ends(series: Series) -> tuple[float, float]:
    """Return the means of the first and of the last rows; of a few rows the first ones are not the last ones, too."""
    rows = end_rows(series, 0.1, min(FEW, len(series) // 2))
    return float(series.values[:rows].mean()), float(series.values[-rows:].mean())


def within(series: Series, start: int, stop: int) -> Series:
    """Return the part of a series with start <= step <= stop."""
    inside = slice(np.searchsorted(series.steps, start), np.searchsorted(series.steps, stop, side="right"))
    return series.select(inside)


def direction(series: Series) -> int:
    """Return 1 if a series ends higher than it started, -1 if lower, 0 if noise could explain the difference.

    The end is compared with the first tenth and with the first few steps: a quick rise to a plateau is over
    within the first tenth.
    """
    blocks = measure(series)
    if blocks is None:
        return 0
    if blocks.rose or blocks.fell:
        return 1 if blocks.rose else -1
    first_rows, settled = max(5, len(series) // 30), series.values[len(series) // 2 :]
    per_block = len(series) / len(blocks.means)
    quick_rise = QUICK * float(settled.std()) if len(series) >= SETTLED else np.inf
    for rows, least in ((FIRST, quick_rise), (first_rows, blocks.least * np.sqrt(max(per_block / first_rows, 1.0)))):
        change = blocks.end - float(series.values[:rows].mean())
        if abs(change) > least:
            return int(np.sign(change))
    return 0


def steps_of(run: Run) -> int:
    """Return the steps that the run has or will have: planned ones where that is known, to the last logged one else."""
    return max(int(setting(run, "steps") or 0), run.span[1] + 1)


def leans(series: Series) -> bool:
    """Return True if a gain of a series is clear, or likelier than noise."""
    course = measure(series)
    return direction(series) > 0 or (course is not None and course.change.leans)


def learns(run: Run) -> bool | None:
    """Return True if the reward shows any gain: a likely gain, a clear rise, or one held out; None if unknown.

    Enough to take harm out of a finding, not to claim success.
    """
    reward = run.get("reward")
    if reward is None:
        return None
    if len(reward) < FEWEST:
        rises = np.ptp(reward.values) > 0 and (np.diff(reward.values) >= 0).all()
        return True if rises or direction(reward) > 0 else None
    return leans(reward) or gained(run)


def fell(run: Run, quantity: str) -> bool:
    """Return True if a quantity ended below its start, slowly or at once, by more than noise."""
    series = run.get(quantity)
    return series is not None and (direction(series) < 0 or drop(series) is not None)


def rises(run: Run) -> bool:
    """Return True if the mean reward rises, by more than noise."""
    reward = run.get("reward")
    return reward is not None and direction(reward) > 0


def gained(run: Run) -> bool:
    """Return True if held-out problems earned more after training than before it, by more than noise."""
    gains = [gain for gain in run.gains.values() if len(gain) >= FEWEST_PROBLEMS]
    return any(paired_difference(np.zeros(len(gain)), gain).low > 0 for gain in gains)


def goals(run: Run, family: str) -> dict[str, Series]:
    """Return the measurements of a family of which more is better."""
    measurements = run.with_prefix(family)
    return {name: series for name, series in measurements.items() if not any(word in name.lower() for word in NO_GOAL)}


def heldout_rises(run: Run) -> bool | None:
    """Return True if more held-out measurements rose than fell; None without two evaluations.

    Each has few points: the later half is compared with the first point, and 2 % of it count as no change.
    """
    measurements = [series for series in goals(run, "heldout/").values() if len(series) >= 2]
    if not measurements:
        return None
    rose = 0
    for series in measurements:
        first, later = float(series.values[0]), float(np.mean(series.values[len(series) // 2 :]))
        rose += int(later > first + 0.02 * abs(first)) - int(later < first - 0.02 * abs(first))
    return rose > 0


def update_size(run: Run) -> Series | None:
    """Return how far a step's updates move the policy, nats per token, or None where it is not logged.

    Without the steps in which only the value head learns.
    """
    size, warmup_steps = find(run, "kl_old"), setting(run, "value_warmup_steps") or 0.0
    updates = None if size is None else size.select(size.steps >= warmup_steps)
    return replace(updates, values=np.abs(updates.values)) if updates else None


def entropy_lost(run: Run) -> bool:
    """Return whether next to nothing is left of the entropy: the policy has moved as far as it can."""
    entropy = find(run, "entropy")
    return entropy is not None and tail(entropy) < LOST_ENTROPY * highest_start(entropy) > 0.0


def highest_start(series: Series) -> float:
    """Return the level at the start, of the first tenth or of the first rows: what falls at once is soon past both."""
    return max(head(series), head(series, 0.0, FIRST))


def entropy_lost_since(run: Run) -> int | None:
    """Return the step from which next to nothing is left of the entropy; None where some is left at the end."""
    entropy = find(run, "entropy")
    if entropy is None or not entropy_lost(run):
        return None
    # Never empty: the highest of the first rows is at or above a share of itself.
    above = np.flatnonzero(entropy.values >= LOST_ENTROPY * highest_start(entropy))
    return int(entropy.steps[min(int(above[-1]) + 1, len(entropy) - 1)])


def large_signs(run: Run) -> list[tuple[int, str]]:
    """Return what shows that updates moved the policy too far: the first step and a sentence for each sign."""
    signs = []
    for name, series, limit in (
        ("KL of one step's updates", update_size(run), KL_OLD_LARGE),
        ("clip fraction", None if run.traits.clips_by_design else run.get("clip_fraction"), CLIP_LARGE),
    ):
        if series is None:
            continue
        first_step = first_lasting(series, series.values > limit, LASTING)
        if first_step is None and name.startswith("KL"):
            first_step = _lost_soon(series)
        if first_step is not None:
            usual = number(float(np.median(series.values[series.values > limit])))
            sentence = f"the {name} is above {limit} from step {first_step} on (median of such steps: {usual})"
            signs.append((first_step, sentence))
    return signs


def _lost_soon(size: Series) -> int | None:
    """Return the first of few large steps in a row that leave nothing of the old policy, which cannot move on then."""
    if len(size) < FEW_LARGE:
        return None
    rows = np.lib.stride_tricks.sliding_window_view(size.values, FEW_LARGE)
    lost = (rows > KL_OLD_LARGE).all(axis=1) & (rows.sum(axis=1) > LOST_UPDATE)
    return int(size.steps[int(lost.argmax())]) if lost.any() else None


def large_updates(run: Run, until: int | None) -> tuple[str, ...]:
    """Return the sentences of ``large_signs`` that began at or before a step; None takes all."""
    return tuple(sentence for first_step, sentence in large_signs(run) if until is None or first_step <= until)


def moves_at_once(run: Run) -> bool:
    """Return True if the first ten steps really change the policy, so that they explain ratios far from 1."""
    kl = find(run, "kl_ref")
    entropy = find(run, "entropy")
    far = kl is not None and float(np.abs(kl.values[:10]).max()) > KL_OLD_LARGE
    return far or (entropy is not None and float(np.ptp(np.log(np.maximum(entropy.values[:10], 1e-9)))) > AT_ONCE)


def updates_per_step(run: Run) -> float | None:
    """Return the optimizer steps that one batch trains, or None where neither log nor settings tell."""
    logged = run.get("updates")
    if logged is not None:
        return float(np.median(logged.values))
    epochs, minibatches = setting(run, "epochs"), setting(run, "minibatches")
    return epochs * minibatches if epochs and minibatches else None


def nothing_to_learn(run: Run) -> str:
    """Return a sentence if the rewards hardly ever differ, so that there is no gradient to speak of; else ""."""
    lost = signal_lost(run)
    if lost is None or lost[0].median < NO_SIGNAL:
        return ""
    basis, share = lost[1], percent(float(lost[0].values.mean()))
    if basis.startswith(ROWS):
        return f"in {share} of the rows {basis.removeprefix(ROWS)}"
    return f"in {share} of the groups all rewards are equal"


def signal_lost(run: Run) -> tuple[Series, str] | None:
    """Return the share of groups without any difference in reward and how it is known, or None where it is not."""
    share = run.get("no_signal")
    if share is not None:
        return share, f"share of groups without signal ({share.source or 'no_signal'})"
    low, high = run.get("advantage_min"), run.get("advantage_max")
    logged = [(name, run.get(name)) for name in ("advantage_std", "reward_std_within", "reward_std")]
    if (std := logged[0][1]) is not None and (mean := run.get("advantage_mean")) is not None:
        std, mean = together(std, mean)  # advantages that are alike, and not 0, still move the policy
        logged[0] = ("advantage_std", replace(std, values=std.values + np.abs(mean.values)))
    candidates = [(series, f"{ROWS}{series.source or name} is 0") for name, series in logged if series is not None]
    least, greatest = run.get("reward_min"), run.get("reward_max")
    if least is not None and greatest is not None:
        least, greatest = together(least, greatest)
        candidates.append((replace(greatest, values=greatest.values - least.values), f"{ROWS}all rewards are equal"))
    if low is not None and high is not None:
        low, high = together(low, high)
        largest = replace(high, values=np.maximum(np.abs(low.values), np.abs(high.values)))
        candidates.insert(0, (largest, f"{ROWS}all advantages are 0"))
    # A trainer that skips what teaches nothing logs no advantages there.
    longest = max((len(series) for series, _ in candidates), default=0)
    if not candidates and (loss := _idle_losses(run)) is not None:
        candidates, longest = [(loss, f"{ROWS}the loss is exactly 0")], len(loss)
    for series, basis in candidates:
        if 2 * len(series) > longest:
            zeros = (series.values <= LITTLE_SPREAD).astype(float)
            return replace(series, quantity="no_signal", unit="share", values=zeros), basis
    return None


def _idle_losses(run: Run) -> Series | None:
    """Return the size of the loss, 0 where no group of a step taught anything; None where its zeros may be rounding.

    Losses that are exactly 0 in many rows and large in the others, with nothing between, are of steps without a
    gradient, if their rewards are the least or the greatest of all: those are what all completions have in common.
    """
    loss, reward = run.get("loss_policy") or run.get("loss"), run.get("reward")
    if loss is None or reward is None:
        return None
    loss, reward = together(loss, reward)
    size, zero = np.abs(loss.values), loss.values == 0
    if min(zero.sum(), (~zero).sum()) < FEW or size[~zero].min() < BETWEEN * np.median(size[~zero]):
        return None
    at_end = np.isin(reward.values, (reward.least, reward.greatest))
    return replace(loss, values=size) if at_end[zero].mean() >= MOSTLY_ROWS else None


def setting(run: Run, name: str) -> float | None:
    """Return a setting if it is known and a number."""
    value = run.settings.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def untold(needed: Mapping[str, object]) -> str:
    """Return a sentence with what is None of what a check needs, by its words; without any all else is 0."""
    lacking = [words for words, value in needed.items() if value is None]
    return f"neither log nor settings tell {' and '.join(lacking)}" if lacking else f"{' or '.join(needed)} is 0"


def cut_away(sizes: np.ndarray, limit: float) -> bool:
    """Return whether a limit leaves next to nothing of sizes [n] in nearly all rows."""
    return limit > 0 and float(np.quantile(sizes, FEW_WITHIN)) >= FAR_BEYOND * limit


def kl_coef(run: Run, like: Series) -> np.ndarray | None:
    """Return the coefficient of the KL penalty at the steps of ``like`` [n], the last known one at each; or None."""
    logged = run.get("kl_coef")
    if logged is not None:
        indices = np.searchsorted(logged.steps, like.steps, side="right") - 1  # [n], -1 before the first one
        return np.asarray(logged.values[np.maximum(indices, 0)])
    fixed = setting(run, "kl_coef")
    return None if fixed is None else np.full(len(like), fixed)


def reward_spread(run: Run) -> Series | None:
    """Return the spread of a step's rewards: of all, of those of one prompt, or of the only part; or None."""
    spreads = list(run.with_prefix("reward_part_std/").values())
    return run.get("reward_std") or run.get("reward_std_within") or (spreads[0] if len(spreads) == 1 else None)


def worth_having(run: Run, level: float) -> float:
    """Return the smallest change of the mean reward that matters, in units of the reward.

    A quarter of the spread between completions: so much moves one completion in ten past another. Where the spread is
    not logged, a tenth of the level, or a quarter of the scatter of the means, which is less than the spread.
    """
    spread, reward = run.get("reward_std") or run.get("reward_std_within"), run.get("reward")
    typical = float(np.median(spread.values)) if spread is not None else 0.0
    if typical > 0 or reward is None:
        return WORTH_SPREAD * typical
    size = abs(level) or float(np.abs(reward.values).mean())  # it may be 0 in most rows
    return max(WORTH_LEVEL * size, WORTH_SPREAD * scatter(reward.values))


def highest(reward: Series) -> float | None:
    """Return the most that a mean reward can be, or None where the log does not tell.

    It is 1 of a share, and a level that several rows reach exactly and none exceeds.
    """
    maximum, minimum = float(reward.values.max()), float(reward.values.min())
    if minimum >= 0.0 and maximum <= 1.0:
        return 1.0
    return maximum if int((reward.values == maximum).sum()) >= SEVERAL_AT_MOST else None


def at_top(reward: Series) -> bool:
    """Return True if a reward begins and ends near its highest level: resting there is no fault."""
    top = highest(reward)
    return top is not None and min(head(reward), tail(reward)) >= NEAR_TOP * top > 0.0


def solved(run: Run) -> bool:
    """Return True if the mean reward came to what the best completions earn, or no completion differs any more.

    Then nothing holds the policy back, whatever else pulls at it.
    """
    reward, best_rewards, spread = run.get("reward"), run.get("reward_max"), reward_spread(run)
    if reward is None:
        return False
    if spread is not None and spread.values.any() and tail(spread) <= ALL_ALIKE * head(spread):
        return True
    if best_rewards is None:
        return False
    best, start = float(best_rewards.values.max()), head(reward)
    return tail(reward) - start >= NEAR_BEST * (best - start) > 0.0


def near_best(run: Run, share: float = MOST_OF_IT) -> bool | None:
    """Return whether the reward rises most of the way, a share, to what can be earned; None where that is not known.

    What can be earned is what the best completions earn, or the sum of the weights, the most that rewards between 0 and
    1 pay.
    """
    reward, best_rewards = run.get("reward"), run.get("reward_max")
    if reward is None or not learns(run) or direction(reward) < 0:
        return False
    weights = reward_weights(run).values()
    paid = sum(max(weight, 0.0) for weight in weights)
    if weights and not paid:
        return False  # rewards that only take away, perhaps by a wrong sign
    best = max(paid, float(best_rewards.values.max()) if best_rewards is not None else -np.inf)
    start = head(reward)
    return tail(reward) - start >= share * (best - start) if best > 0 else None


def falls_short(run: Run) -> bool:
    """Return True if the reward does not come near the best.

    Where the best is not known, it falls short if it rises by less than a standard deviation of the completions'
    rewards.
    """
    reward, spread, is_near_best = run.get("reward"), reward_spread(run), near_best(run)
    if reward is None or is_near_best is not None:
        return reward is not None and not is_near_best
    return spread is not None and tail(reward) - head(reward) < head(spread)


def reward_weights(run: Run) -> Mapping[str, float]:
    """Return the weights of a run's rewards by their keys in a config of ours; a reward with settings has a table."""
    rewards = {key: value for key, value in run.config.items() if key.startswith("rewards.")}
    keys = [k for k in rewards if k.endswith(".weight") or f"{k.rpartition('.')[0]}.weight" not in rewards]
    return {key: float(rewards[key]) for key in keys if isinstance(rewards[key], int | float)}


def is_penalty(name: str, part: Series) -> bool:
    """Return whether a part of the reward only takes away: it is 0 where nothing is wrong."""
    return PENALTY.search(name) is not None or bool(part.values.max() <= 0 and part.values.any())


def share_with_spike(series: Series | None, steps: np.ndarray, before: int = 5) -> float:
    """Return the share of ``steps`` at which, or up to ``before`` points before which, a series left its usual range.

    Args:
        series: Spikes count upwards and downwards; None has none.
        steps: [m], m >= 1.
        before: In logged points of the series.
    """
    if series is None:
        return 0.0
    count = np.zeros(len(series) + 1)
    count[1:][strays(series)] = 1.0
    count = np.cumsum(count)  # [n + 1], spikes among the first i points
    stops = np.searchsorted(series.steps, steps, side="right")
    return float((count[stops] > count[np.maximum(stops - before - 1, 0)]).mean())


def coincident_cause(run: Run, steps: np.ndarray, candidates: Mapping[str, Sequence[str]]) -> tuple[str, str]:
    """Return what leaves its usual range at, or just before, at least half of some steps, and a sentence.

    Args:
        run: The run.
        steps: [m], m >= 1.
        candidates: Quantities by the cause that they show, the nearest first; "unknown" where none does.
    """
    for cause, quantities in candidates.items():
        for quantity in quantities:
            share = share_with_spike(run.get(quantity), steps)
            if share >= MOSTLY:
                return cause, f"{quantity} leaves its usual range at or before {percent(share)} of these steps"
    return "unknown", "nothing else that is logged jumps with it"
