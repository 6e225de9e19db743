"""Reward against what it stands for: held-out measurements and other parts that fall while the reward rises."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from steadyrl.core.stats import answers_are, decide, largest_difference, student_quantile
from steadyrl.core.types import Severity
from steadyrl.core.words import counted, percent
from steadyrl.doctor.check import Found, Passed, Result, Unknown, check
from steadyrl.doctor.names.shapes import FORM, pays_for_right
from steadyrl.doctor.series import Evaluation, Run, Series
from steadyrl.doctor.statistics.levels import RISK, measure
from steadyrl.doctor.statistics.readings import goals, is_penalty, learns, number, within

TOTALS = ("reward", "reward/mean", "total")  # the reward as a whole, on held-out problems
LOST_SHARE = 0.25  # of what held-out problems had gained, that has to be lost again
FEWEST_ROWS = 3
HALVED = 0.5  # of the first third of the log
DOUBLED, PERPLEXITY = 2.0, re.compile(r"perplexity|(?<![a-z])ppl(?![a-z])", re.IGNORECASE)
IDLE, LEVEL = 0.02, 0.1  # of the whole's gain
RARELY = 0.02  # of the answers that are right
LONG_ENOUGH = 30  # steps, half of them once the whole is level, in which a form may be learned before the answers
# Of scores before and after training: what is no goal, and changes that count where the number of answers is not said.
COSTS = re.compile(
    r"loss|time|second|token|length|chars?|latency|perplex|ppl|(?<![a-z])kl|entropy|trunc|error|halluc|fallback|cost|memory|step|"
    r"batch|optim|(?<![a-z])lr|learning|epoch|params|size|illegal|violation|fail|wrong|(?<![a-z])std|(?<![a-z])(?:min|max)"
    r"(?![a-z])|negative|toxic|repeti|gpu|seed|temperature|beta|grad|norm|count|invalid|refus|damage|penalt|unsafe|leak|distance|"
    r"throughput|speed|no answer|unpars|== ?0|(?<![a-z])(?:gap|lev|r?m[as]e)(?![a-z])|"
    r"长度|上限|时间|训练样本|学习率|幻觉|\u2193",
    re.IGNORECASE,
)
AIM = re.compile(
    r"accura|correct|exact|answer|solve|success|score|reward|pass|(?<![a-z])(?:acc|em|f1|win|mean|avg|average|overall)(?![a-z])|"
    r"gsm|math|mmlu|aime|humaneval|mbpp|held|准确|正确|得分|奖励|胜率",
    re.IGNORECASE,
)
SPOILED, SPOILS = re.compile(r"repeti|duplicat|toxic|halluc|幻觉", re.IGNORECASE), 0.1  # shares of answers, and a rise
LEAST_CHANGE, LEAST_RELATIVE = 0.01, 0.03
FEW, MOST_SHOWN = range(1, 20), 4  # answers that show nothing, and scores of a message
PROXY = re.compile(rf"reward|奖励|{FORM.pattern}", re.IGNORECASE)


@check("reward_hacking")
def reward_hacking(run: Run) -> Result | list[Result]:
    reward, heldout, reward_parts = run.needed("reward"), goals(run, "heldout/"), goals(run, "reward_part/")
    if hacked := _hacks_rise(run, reward) or _text_degrades(run, reward):
        return hacked
    if not heldout and len(reward_parts) < 2 and not any(map(pays_for_right, reward_parts)):
        message = "only the trained reward is logged, which rises in a hacked run as well"
        return Unknown(message, ("heldout/*", "reward_part/*"))
    if given_up := _rightness_falls(reward, reward_parts):
        return given_up
    results: list[Result] = [_past_peak(name, series, reward) for name, series in heldout.items()]
    if (idle := _never_right(run, reward, reward_parts)) is not None:
        return [*results, idle]
    rewards = measure(reward)
    if rewards is None or rewards.fell or not (rewards.rose or heldout):
        return results
    for name, series in (heldout or reward_parts).items():
        levels = measure(series)
        # Of a held-out score a line that clearly falls is enough, and in the training reward nothing would show.
        if levels is None or not (levels.fell or (heldout and levels.change.estimate < -levels.change.detectable)):
            continue
        grave = bool(heldout) and not _is_traded(name, heldout, reward_parts)
        low = levels.first - levels.means > levels.least
        begins = min(int(np.flatnonzero(~low)[-1]) + 1, len(low) - 1) if levels.fell else 0
        onset = levels.steps[begins]  # clearly below the start from there
        change = levels.change
        line = f"a line through it loses {number(-change.high)} to {number(-change.low)}, with 95 % confidence"
        fall = f"{'heldout/' if heldout else ''}{name} falls from {number(levels.first)} to {number(levels.end)}"
        ends = f"from {number(rewards.first)} to {number(max(rewards.end, rewards.late))}"
        rise = f"the reward {'rises' if rewards.rose else 'goes'} {ends}"
        noise = levels.explained if levels.ordered else f"{name}: {levels.explained if levels.fell else line}"
        cause = "held_out_falls" if grave else "part_falls"
        severity: Severity = "info" if not grave else "critical" if rewards.rose else "warning"
        results.append(Found(cause, severity, int(onset), f"{rise} while {fall}", (fall, noise)))
    return results


@check("heldout_worse")
def heldout_worse(run: Run) -> Result:
    measured = {
        name: decide(scores[0], scores[1], largest_difference(scores[0], scores[1]))
        for name, scores in run.scores.items()
        if scores.shape[1] > 1
    }
    if not measured:
        return Unknown("fewer than two held-out problems were scored both before and after training", ("evaluations",))
    worse = [name for name, decision in measured.items() if decision.word == "worse"]
    if not worse:
        return None
    courses = [
        f"{name} {number(d.change.mean_before)} -> {number(d.change.mean_after)}" for name, d in measured.items()
    ]
    return Found(
        "everywhere" if len(worse) == len(measured) else "one_decoding",
        "warning",
        None,
        f"held-out answers became worse if they are {' or '.join(worse)}: {', '.join(courses)}",
        tuple(answers_are(name, decision.word, decision.reason) for name, decision in measured.items()),
    )


@check("heldout_no_gain")
def heldout_no_gain(run: Run) -> Result:
    scores = [evaluation for evaluation in run.evaluations if not evaluation.course]
    if not scores:
        return Unknown("the log has no scores before and after training", ("scores",))
    gains = {score: _gain(score) for score in scores if not COSTS.search(score.name) and score.answers not in FEW}
    later = [score for score in gains if score.from_training and not _is_proxy(score.name)]
    lost = [score for score in later if gains[score] < 0]
    if len(lost) > len(later) / 2.0:
        after = f"fell after '{lost[0].stages[0]}' {_beyond(later, True)}"
        evidence = f"of {counted(len(later), 'score')} {len(lost)} {after}"
        return Found("past_peak", "warning", None, f"a later checkpoint scores less: {_courses(lost)}", (evidence,))
    trained = [score for score in gains if not score.from_training and not FORM.search(score.name)]
    aims = [score for score in trained if not _is_proxy(score.name)] or trained
    aims = [score for score in aims if AIM.search(score.name)] or aims
    # Several rows of shares between two stages are of problems, whatever their names.
    shares = all(0.0 <= x <= _scale(score) for score in aims for x in (score.before, score.after))
    named = any(AIM.search(f"{score.name} {score.problems} {' '.join(score.stages)}") for score in trained)
    if not named and (len(aims) < FEWEST_ROWS or not shares):
        message = "no score before and after training is of enough answers, and of what is right in them"
        return Unknown(f"{message}: {_courses([s for s in scores if not COSTS.search(s.name)] or scores)}")
    rose, fell = ([score for score in aims if gains[score] == sign] for sign in (1, -1))
    spoiled = [s for s in scores if SPOILED.search(s.name) and s.after - s.before > SPOILS * _scale(s)]
    if spoiled and all(_is_proxy(score.name) for score in rose):
        right = [score for score in aims if not _is_proxy(score.name)]
        kind = "no score of whether they are right rose" if right else "no score says whether they are right"
        evidence = f"{kind}: {_courses(right or aims)}"
        return Found("spoiled", "warning", None, f"training spoils the answers: {_courses(spoiled)}", (evidence,))
    counts = f"of {counted(len(aims), 'score')} {len(rose) or 'none'} rose, and {len(fell) or 'none'} fell"
    if rose:
        if len(fell) > len(aims) / 4.0:
            return Found("mixed", "info", None, f"{counts}: {_courses(fell)}")
        if not fell and len(rose) > len(aims) / 2.0 and not any(score.arm for score in aims):
            return Passed(f"scores before and after training: {_courses(aims)}")
        return Unknown(f"{counts}: {_courses(aims)}")
    if any(score.after - score.before > _least(score) for score in aims):
        return Unknown(f"the scores rose, and no more than their noise: {_courses(aims)}")
    if proxies := [score for score, gain in gains.items() if gain > 0]:
        unraised = _courses(dict.fromkeys([*fell, *aims]))
        cause, message = "proxy_alone", f"only proxies rose: {_courses(proxies)}; the other scores did not: {unraised}"
    elif fell:
        cause, message = "fell", f"scores are lower after training: {_courses(fell)}"
    else:
        cause, message = "no_gain", f"training did not raise the scores: {_courses(aims)}"
    return Found(cause, "warning", None, message, (f"{counts} {_beyond(aims, bool(fell))}",))


def _is_proxy(name: str) -> bool:
    return PROXY.search(name) is not None and not pays_for_right(name)


def _gain(score: Evaluation) -> int:
    """Return 1 for a score that rose beyond its noise, -1 for one that fell so, and 0 for neither."""
    mean, scale = (score.before + score.after) / 2.0, _scale(score)
    shares = score.answers > 0 and 0.0 <= mean <= scale
    error = float(np.sqrt(2.0 * mean * (scale - mean) / score.answers)) if shares else 0.0
    change = score.after - score.before
    return int(np.sign(change)) if abs(change) > max(2.0 * error, _least(score)) else 0


def _least(score: Evaluation) -> float:
    """Return the change of a score that counts."""
    return max(LEAST_CHANGE * _scale(score), LEAST_RELATIVE * max(abs(score.before), abs(score.after)))


def _beyond(scores: Sequence[Evaluation], moved: bool) -> str:
    """Say which changes of scores count: those beyond noise, where it is read of how many answers each is a mean."""
    if all(score.answers for score in scores):
        return "beyond its noise"
    remark = ", which noise may explain: no number of answers stands beside them"
    return f"by more than {percent(LEAST_RELATIVE)}{remark if moved else ''}"


def _scale(score: Evaluation) -> float:
    """Return the score of answers that are all right, as far as it can be told."""
    return 1.0 if max(abs(score.before), abs(score.after)) <= 1.0 else 100.0


def _courses(scores: Iterable[Evaluation]) -> str:
    """List the first of some courses, each with its two stages where they are others than those of the one before."""
    courses, named = list[str](), ("before", "after")
    for score in scores:
        before, after = (stage.lower() for stage in score.stages)
        # In lines the score's own name stands in that of its stage: "baseline accuracy".
        unlike = (before, after) != named and score.name.lower() not in f"{before} {after}"
        stages, named = f' ("{score.stages[0]}" to "{score.stages[1]}")' if unlike else "", (before, after)
        problems = f" ({score.problems})" if score.problems else ""
        courses.append(f"{score.name}{problems} {number(score.before)} -> {number(score.after)}{stages}")
    hidden = len(courses) - MOST_SHOWN
    return ", ".join(courses[:MOST_SHOWN]) + (f" and {hidden} more" if hidden > 0 else "")


def _hacks_rise(run: Run, reward: Series) -> Result:
    """Find completions that cheat, which the log counts, becoming more while the reward rises."""
    hacks = run.get("hacks")
    levels = None if hacks is None else measure(hacks)
    if hacks is None or levels is None or levels.change.low <= 0 or not learns(run):
        return None
    course = f"{hacks.source} rises from {number(levels.first)} to {number(levels.end)}"
    change = levels.change
    evidence = f"{hacks.source} gains {number(change.low)} to {number(change.high)} over the log, with 95 % confidence"
    message = f"{course} while the reward goes {_from_to(reward)}: answers that cheat are what pays"
    return Found("hacks_rise", "critical", None, message, (evidence,))


def _from_to(series: Series) -> str:
    return f"from {number(series.first)} to {number(series.last)}"


def _thirds(name: str, series: Series) -> tuple[list[float], str]:
    """Return the means of the three thirds of a log, and a sentence with them."""
    means = [float(third.mean()) for third in np.array_split(series.values, 3)]
    return means, f"{name}: {', '.join(map(number, means))} in the three thirds of the log"


def _text_degrades(run: Run, reward: Series) -> Result:
    """Find a perplexity of held-out texts or answers that doubles, third by third, while the reward rises."""
    for name, series in run.with_prefix("heldout/").items():
        if PERPLEXITY.search(name) is None or len(series) < FEWEST_ROWS or not learns(run):
            continue
        (first, middle, last), evidence = _thirds(name, series)
        if 0.0 < first < middle < last and last >= DOUBLED * first:
            message = f"the reward rises {_from_to(reward)} while {name} rises {_from_to(series)}"
            return Found("text_degrades", "warning", int(series.steps[0]), message, (evidence,))
    return None


def _rightness_falls(reward: Series, reward_parts: Mapping[str, Series]) -> Result:
    """Find a part for being right that falls to half while the whole rises, row after row; three rows can show it."""
    if reward.last <= reward.first:
        return None
    for name, part in reward_parts.items():
        if len(part) < FEWEST_ROWS or not pays_for_right(name) or part.first <= 0:
            continue
        (first, middle, last), evidence = _thirds(name, part)
        levels = measure(part)
        if first > middle > last and last <= HALVED * first and (levels is None or levels.fell):
            message = f"the reward rises {_from_to(reward)} while {name} falls {_from_to(part)}"
            return Found("rightness_falls", "warning", int(part.steps[0]), message, (evidence,))
    return None


def _never_right(run: Run, reward: Series, reward_parts: Mapping[str, Series]) -> Result:
    """Find parts for being right of which none earns anything to speak of while the whole rises by others."""
    right = {name: part for name, part in reward_parts.items() if pays_for_right(name) and not is_penalty(name, part)}
    if not right or not learns(run):
        return None
    third = max(len(reward) // 3, 1)
    gain = float(reward.values[-third:].mean() - reward.values[:third].mean())
    level = float(np.ptp(reward.values[-third:])) < LEVEL * gain
    if run.covers(reward) < (LONG_ENOUGH / 2 if level else LONG_ENOUGH):
        return None
    late = {name: float(np.abs(part.values[-max(len(part) // 3, 1) :]).mean()) for name, part in right.items()}
    rising = any((levels := measure(part)) is None or levels.rose for part in right.values())
    # A share of right answers counts by itself, and one that is low and does not rise is none that is learned.
    if max(late.values()) > max(IDLE * min(gain, 1.0), 0.0 if rising else RARELY):
        return None
    evidence = tuple(f"{name} is {number(value)} in the last third of the log" for name, value in late.items())
    message = f"the reward rises by {number(gain)} while {', '.join(right)} earns next to nothing: another part pays "
    return Found("rightness_idle", "warning", None, f"{message}without an answer that is right", evidence)


def _is_traded(name: str, heldout: Mapping[str, Series], reward_parts: Mapping[str, Series]) -> bool:
    """Return True if a measurement is one that the reward itself gives away for others, in training as on the rest."""
    overall = next((heldout[total] for total in TOTALS if total in heldout and name not in TOTALS), None)
    same, total = (None if series is None else measure(series) for series in (reward_parts.get(name), overall))
    return (total is not None and total.end > total.first) or (same is not None and same.fell)


def _past_peak(name: str, series: Series, reward: Series) -> Result:
    levels = measure(series)
    if levels is None or levels.fell:
        return None
    top = int(levels.means.argmax())
    best, onset = float(levels.means[top]), int(levels.steps[top])
    gain, lost = best - levels.first, best - levels.end
    # The best of many blocks is high by chance, too. So "a quarter of the gain is lost" has to be beyond the noise as a
    # whole, of the three means that are in it and of whichever block is best.
    error = levels.noise * float(np.sqrt((1.0 - LOST_SHARE) ** 2 + LOST_SHARE**2 + 1.0))
    noise = error * student_quantile(levels.freedom, 1.0 - RISK / (len(levels.means) - 1))
    if top == 0 or gain <= levels.least or lost - LOST_SHARE * gain <= noise:
        return None
    rewards = measure(within(reward, onset, int(reward.steps[-1])))
    if rewards is None or rewards.fell:
        return None
    message = f"heldout/{name} was best from step {onset} ({number(best)}) and fell to {number(levels.end)}, while the "
    message += "training reward did not fall"
    evidence = f"heldout/{name}: {number(levels.first)} at first; {levels.explained}"
    return Found("past_peak", "warning", onset, message, (evidence,), change={"steps": max(onset, 1)})
