"""Whether completions end: cut off by the length limit, empty."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from steadyrl.core.words import percent
from steadyrl.doctor.check import Found, Result, Unknown, check
from steadyrl.doctor.checks.reward import shows_no_gain
from steadyrl.doctor.series import Run, Series
from steadyrl.doctor.statistics.jumps import WINDOW, jumps
from steadyrl.doctor.statistics.readings import (
    both_ends,
    direction,
    ends,
    fell,
    heldout_rises,
    learns,
    number,
    rises,
    setting,
)
from steadyrl.doctor.statistics.signals import first_lasting, head, tail
from steadyrl.doctor.statistics.units import together

SOME, NOTABLE, GREW, MANY, MOSTLY, NEARLY_ALL = 0.05, 0.15, 0.25, 0.3, 0.5, 0.9  # shares cut off
PINNED_SHARE, PINNED_SOME = 0.5, 0.25  # of the rows
PINNED_ROWS = 8  # with one length: fewer may be answers of one form, such as a table of a given size
CROWDED = 0.92  # of the greatest mean length, which means of other prompts come so near to below a limit only
# The share of lengths that a limit ends, by their mean in parts of it: of a normal spread of 0.3 of the mean.
OF_LIMIT, CUT_THERE = (0.6, 0.67, 0.77, 0.85, 0.91, 0.955, 1.0), (0.0, 0.05, 0.2, 0.4, 0.6, 0.8, 1.0)
USUAL = (64, 100)  # tokens, of which limits are multiples
PINNED_LEAST = 32.0  # tokens, below which answers can all have one length
ALIKE, GROWN_ROWS, GROWN_TIMES = 0.01, 5, 1.5  # relative; rows at the end; times the first length
ALL, HALF_TOKEN = 0.999, 0.5  # share cut off that is all; by which lengths differ, in tokens
PINNED = 1e-6  # relative: a mean of different lengths is no such number
EMPTY_WARN, EMPTY_CRITICAL = 0.01, 0.1
AT_FIRST, FROM_START = 3, 0.5  # steps before much is learned; of the later share that has to be there already
LOST_SHARE, STAYED = 0.1, 0.5  # growth of the share; part of the length that truly empty texts would take away
LATE = 0.2  # of the run: how it is now


def cut_off(run: Run) -> tuple[Series, str] | None:
    """Return the share of completions that the limit ends and how it is known, or None where it is not.

    Where it is not logged, end tokens that are counted and never seen say that none ended. Else the mean length is
    compared with the limit that is set, or that the lengths show.
    """
    share = run.get("truncated")
    if share is not None:
        return share, ""
    ended = run.get("ended_tokens")
    if ended is not None and not ended.values.any():
        basis = f"{ended.source} is 0 in each of the {len(ended)} rows: no completion holds an end token"
        return replace(ended, quantity="truncated", unit="share", values=np.ones(len(ended))), basis
    length, limit = run.get("length"), setting(run, "max_new_tokens")
    greatest = 0.0 if length is None else length.greatest
    if length is None or greatest <= 0:
        return None
    if limit is not None and greatest > limit * (1.0 + PINNED):
        limit = None  # of a single turn, or of another run
    if limit is None and not _shows_limit(length):
        return None
    basis = f"meets {greatest:g} tokens and never passes that"
    if limit is not None:
        basis = f"is up to {percent(greatest / limit)} of the limit"
    basis = f"the share is estimated from the mean length, which {basis}"
    reached = np.interp(length.values / (limit or greatest), OF_LIMIT, CUT_THERE)
    return replace(length, quantity="truncated", unit="share", values=reached), basis


def _shows_limit(length: Series) -> bool:
    """Return True if the greatest mean length is a limit: it comes again as a whole number, or others crowd below it.

    A mean of different lengths is hardly ever a whole number, and not the same one again. Means that grew to where they
    no longer vary by a hundredth, as those of other prompts do, have met a limit, too.
    """
    greatest = length.greatest
    alike = length.values[-GROWN_ROWS:] >= (1.0 - ALIKE) * greatest
    grown = greatest >= max(GROWN_TIMES * head(length, 0.0, AT_FIRST), PINNED_LEAST)
    if len(alike) == GROWN_ROWS and alike.all() and grown:
        return True
    if greatest != round(greatest) or greatest < PINNED_LEAST or len(length) < 2:
        return False
    times = int((np.abs(length.values - greatest) <= PINNED * greatest).sum())
    usual = any((greatest + end) % step == 0 for step in USUAL for end in (0, 1))  # an end token may not be counted
    crowded = times > 1 and tail(length, LATE) >= CROWDED * greatest and len(length) >= PINNED_ROWS
    return crowded or (usual and times == len(length)) or times >= max(PINNED_ROWS, PINNED_SOME * len(length))


@check("truncated")
def truncated(run: Run) -> Result:
    if (measured := cut_off(run)) is None:
        return Unknown("the log has no share of completions cut off, and no lengths that show a limit", ("truncated",))
    share, basis = measured
    level = float(share.values[-max(5, int(LATE * len(share))) :].mean())
    start, limit = float(share.values[: max(AT_FIRST, len(share) // 10)].mean()), setting(run, "max_new_tokens")
    if level <= SOME:
        return None
    if endless := _ends_elsewhere(run, share):
        return endless
    rising = rises(run)
    # A share that the lengths bound from above may have been any lower one at the start; one that grew with the reward
    # is what was paid for.
    paid = rising and direction(share) > 0 and start <= level - GREW
    if paid and level >= NEARLY_ALL:
        cause, reason = "pays", "longer ones earn more, and hardly any has room for more"
    elif paid or start <= (level / 2.0 if basis else min(NOTABLE, level / 2.0)):
        cause, reason = "grew", "the policy learned to go on"
    elif min(start, level) >= NEARLY_ALL:
        cause, reason = "never_ends", "hardly any ever ends"
    else:
        cause, reason = "limit_too_low", "answers need more room, or the policy does not know how to end"
    # Longer answers may pay, and yet a share that grows says that the policy forgets how to end.
    many, mostly = (GREW, GREW) if cause in ("grew", "pays") else (MANY, MOSTLY)
    harmless = level <= NOTABLE or (level <= mostly and (learns(run) is True or level < start / 2.0))
    # What the lengths bound from above is no proof while the reward clearly rises.
    harmless |= bool(basis) and cause != "never_ends" and (rising or len(share) < AT_FIRST)
    harmless |= level <= many and not (shows_no_gain(run) or fell(run, "reward"))
    # What is learned so, as held-out problems say, is not what the limit cuts off.
    harmless |= cause == "limit_too_low" and learns(run) is True and heldout_rises(run) is True
    ended, roughly = run.get("ended_tokens"), "about " if basis and level < 1.0 else ""
    no_end_token = ended is not None and share.source == ended.source
    course = f"share cut off: {both_ends(*ends(share))}"
    if len(share) == 1:
        course = f"share cut off: {number(level)} in the only row"
    longest = run.get("length_max")
    room = f"; the limit is {limit:g} tokens" if limit else ""
    room = f"; the longest has {longest.greatest:.0f} tokens" if longest is not None and not limit else room
    return Found(
        cause,
        "info" if harmless else "critical" if no_end_token else "warning",
        first_lasting(share, share.values > NOTABLE) if len(share) >= AT_FIRST else int(share.steps[0]),
        f"{roughly}{percent(level)} of the completions are cut off by the length limit: {reason}",
        (course + room, *((basis,) if basis else ())),
        change={} if level <= NOTABLE else None,
    )


def _ends_elsewhere(run: Run, share: Series) -> Result:
    """Find completions that all count as cut off though their lengths differ: the limit would make them equal."""
    shortest, longest = run.get("length_min"), run.get("length_max")
    all_cut = share.values >= ALL
    if shortest is None or longest is None or all_cut.mean() < NEARLY_ALL:
        return None
    shortest, longest = (together(share.select(all_cut), ends)[1] for ends in together(shortest, longest))
    differ = shortest.values < longest.values - HALF_TOKEN
    # The longest of every step that has one cut off is the limit itself, which does not change.
    if not len(differ) or (differ.mean() <= PINNED_SHARE and np.ptp(longest.values) <= HALF_TOKEN):
        return None
    which = "all" if all_cut.all() else "nearly all"
    message = f"{which} completions count as cut off though their lengths differ: something else than the limit ends "
    message += "them"
    lengths = f"{number(shortest.last)} to {number(longest.last)} tokens in the last row"
    return Found("other_end", "info", None, message, (lengths,))


@check("empty_completions")
def empty_completions(run: Run) -> Result:
    share = run.needed("empty")
    # Means, not medians: a small share is 0 in most steps of a small batch.
    level, early = float(share.values[-max(10, len(share) // 5) :].mean()), float(share.values[:AT_FIRST].mean())
    if level <= EMPTY_WARN:
        return None
    shortest = run.get("length_min")
    if shortest is not None and tail(shortest, LATE) > 1.0:
        cause, reason = "parser", f"the shortest has {number(tail(shortest, LATE))} tokens all the same"
    elif early > max(EMPTY_WARN, FROM_START * level):
        cause, reason = "template_or_eos", "they are so from the first steps"
    elif stayed := _length_stayed(run, share):
        cause, reason = "parser", stayed
    else:
        cause, reason = "learned", "there were hardly any at first: saying nothing pays"
    onset = first_lasting(share, share.values > EMPTY_WARN)
    # A few in single steps of small batches are chance: healthy runs have them, and they go by themselves.
    return Found(
        cause,
        "critical" if level > EMPTY_CRITICAL else "info" if onset is None else "warning",
        int(share.steps[np.argmax(share.values > EMPTY_WARN)]) if onset is None else onset,
        f"{percent(level)} of the completions are empty: {reason}",
        (f"mean share {number(early)} in the first steps, {number(level)} in the last fifth",),
    )


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
        mean_before, mean_after = float(before.mean()), float(after.mean())
        # Texts that became empty have their end token only, and the others keep their length.
        if mean_before - mean_after < STAYED * jump.change * (mean_before - 1.0):
            return (
                f"their share went from {percent(jump.before)} to {percent(jump.after)} at step {jump.step}, and the "
                f"mean length stayed ({number(mean_before)} and {number(mean_after)}): texts are lost after sampling"
            )
    return ""
