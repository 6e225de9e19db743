"""From a trainer's log to a run: which trainer wrote it, what its names mean, which settings it had.

Every column of the log becomes a series or is named in ``Run.unknown``; nothing is computed that was not logged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np

from steadyrl.core.errors import ConfigError
from steadyrl.core.words import did_you_mean
from steadyrl.doctor.names import derive
from steadyrl.doctor.names.derive import first, number
from steadyrl.doctor.names.shapes import guesses, pays_for_right, words
from steadyrl.doctor.names.table import Name, Table, best_pattern, load, spell, wildcard
from steadyrl.doctor.names.traits import OF_CRITICS, traits
from steadyrl.doctor.readers.rows import usual_distance
from steadyrl.doctor.readers.source import PAIRS_KEY
from steadyrl.doctor.series import Column, RawLog, Run, Series, Traits
from steadyrl.doctor.statistics.units import together

TRAINERS = """
steadyrl trl-grpo trl-rloo trl-async-grpo trl-online-dpo trl-dpo trl-sft trl-reward trl-ppo trl-ppo-old verl openrlhf
nemo-rl prime-rl skyrl tinker slime areal areno roll torchtune trlx mlx-lm-lora deepspeed-chat llamafactory
"""
TABLES: tuple[Table, ...] = tuple(map(load, TRAINERS.split()))
COMMON = load("unknown")  # spellings that many share
SETTINGS = frozenset(
    key.rpartition(".")[2] for table in (*TABLES, COMMON) for keys in table.keys.values() for key in keys.split("|")
)
# Whose metric it is, where a part of the name before the last says so: of another model, or of another time.
NOT_THE_POLICY = re.compile(r"(^|[/._])(critic|value|vf|reward_model|rm|ref|teacher|draft|disc|time|timing|perf)")
# What is the policy's all the same: its KL to the reference, and the score that a reward model gives to its answers.
SCORES = frozenset({"score", "scores"})
OF_THE_POLICY = {"ref": frozenset({"kl", "kld"}), "rm": SCORES, "reward_model": SCORES}
LINES_OF_MANY = "verl_console"  # "step:1 - name:value", as loops of one's own print, too
TOTAL_COUNT = re.compile(
    r"(?:total|sum)_(?:num|number|count|n|samples|completions|responses|rollouts|examples)$", re.IGNORECASE
)
REMARK = re.compile(r"_?\([^()]+\)$")  # "reward (v2)"
OTHER = re.compile(
    r"\((?:.*\b)?(?:val|valid|eval|test|held|std|min|max|old|sft|base|best|ema|post|norm|clip)", re.IGNORECASE
)
DIGITS = 4  # after the point, at which usual learning rates are printed as 0
SELDOM = 5  # times fewer rows than another series of the quantity has
MOST_CLIPPED, FEWEST_SHARED, GO_TOGETHER = 0.3, 3, 0.5  # share that a first update clips; rows; correlation
MOST_NAMES = 2000  # of a log of one row: what has more, such as a vocabulary, is none
LATER = 10_000  # the rank of a common spelling, behind those of the trainer's own table
IMPOSSIBLE = {
    "entropy": "is below 0 in most rows, where no entropy of tokens can be, and is left out",
    "kl_ref": "is printed only where it is below -1, too seldom to say how it goes, and is left out",
    "length": "is never above 1, which is no number of tokens, and is left out",
}
GUESSED_ALONE = {"reward", "loss"}  # of which a guess is enough to take a table for a log
PAIRED = re.compile(r"chosen|reject|margin|accurac", re.IGNORECASE)  # of rewards of pairs
CLOCKS = {"time_logged", "data_epoch"}
# Whatever the trainer; "val" and "test" alone are other things with some.
HELD_OUT = ("eval_", "validation_", "heldout_", "held_out_", "holdout_", "unseen_", "ood_")
AT_END = re.compile(r"(.+?)[_/]\(?(?:val|validation|eval|evaluation|test|dev|held_?out|holdout|unseen|ood)\)?")
# Logged beside held-out measurements, but of the evaluation's speed and size, or of a value head ("val").
NOT_MEASURED = re.compile(
    r"runtime|\w+_per_second|epoch|time|model_preparation_time|var_explained|explained_var(?:iance)?|"
    r"(?!.*(?:correct|solved|success|passed|right))(?:(?:n|num)_\w+|\w+_count)"
)
# The most exact first; what is not known to be any of these comes after them.
ESTIMATORS = ("exact", "centred", "rms", "k3", "k1", "k2", "abs", "mean", "sampled", "uncentred")


@dataclass(frozen=True)
class _Match:
    """A column with its meaning, and its rank in the table: where estimators are equal, the earlier comes first."""

    name: Name
    source: str
    rank: int


@np.errstate(over="ignore", invalid="ignore")  # a diverged run logs 1e308
def identify(log: RawLog) -> Run:
    """Return a log as quantities with unit and estimator, and canonical settings.

    Args:
        log: As a reader gave it.
    """
    log = _with_means(_unwrapped(log))
    table = recognise(log)
    log = replace(log, settings={key.removeprefix(table.wrapper): value for key, value in log.settings.items()})
    identified = _vocabulary_matches(table, log)
    guessed = _guessed(table, log, identified)
    matches = sorted([*identified, *guessed], key=_exactness)
    series: dict[str, list[Series]] = {}
    for match in matches:
        column, name = log.columns[match.source], match.name
        values = _transformed(name.transform, np.asarray(column.values, np.float64))
        logged = Series(name.quantity, name.unit, name.estimator, match.source, column.steps, values)
        series.setdefault(name.quantity, []).append(logged)
    if table is COMMON:  # what is printed of single completions comes after what every step logs
        for estimates in series.values():
            rows = max(map(len, estimates))
            estimates.sort(key=lambda logged: len(logged) * SELDOM < rows)
    # The order matters: what training logs stands for the reward before what is held out does.
    notes = (*_stand_in(series, table), *_heldout_reward(series), *_without_rounded_rate(series))
    notes += (*(_clipped_texts(series) if table is COMMON else ()), *_without_impossible(series, table))
    # A teacher is all that a run learns from where its KL is logged, and there is no reward but 0.
    distils = "kl_teacher" in series and not any(reward.values.any() for reward in series.get("reward", ()))
    sources = {match.source for match in matches}
    algorithm, settings = derive.algorithm(table, log.settings, log), derive.settings(table, log.settings, log)
    return Run(
        path=log.path,
        trainer=table.trainer,
        algorithm=algorithm,
        series={quantity: tuple(estimates) for quantity, estimates in series.items()},
        settings=settings,
        notes=(*log.notes, *_notes(table, log, guessed), *notes),
        unknown=tuple(sorted(set(log.columns) - sources)),
        averaged_over=_averaged_over(log) if table.averages else 1,
        traits=replace(_pair_traits(log, traits(algorithm, settings, series, table.logs_critic)), distils=distils),
        keys=table.own_keys(log.settings, settings),
        config=log.settings,
        completions=log.completions,
        gains=log.gains,
        scores=log.scores,
        evaluations=log.evaluations,
    )


def _with_means(log: RawLog) -> RawLog:
    """Return a log with the mean in place of each total of rewards beside a total of completions.

    The mean of a batch takes the name without "total", also from what is printed of single completions.
    """
    counts = {name: column for name, column in log.columns.items() if TOTAL_COUNT.search(name)}
    means = dict(log.columns)
    for name, count in counts.items():
        prefix = TOTAL_COUNT.sub("", name)
        total = re.compile(rf"{re.escape(prefix)}(?:total|sum)_(\w*(?:reward|score|correct)\w*)", re.IGNORECASE)
        for source in log.columns if len(count.values) and count.values.min() >= 1 else ():
            match, column = total.fullmatch(source), log.columns[source]
            if match and np.array_equal(column.steps, count.steps):
                means.pop(source)
                means[f"{prefix}{match[1]}"] = replace(column, values=column.values / count.values)
    return replace(log, columns=means)


def _pair_traits(log: RawLog, run_traits: Traits) -> Traits:
    """Return traits that say that texts are given where rewards of chosen and of rejected ones are all there is.

    Over given texts the mean log-ratio to the reference is no KL, and may lie below 0.
    """
    of_pairs = {match[0].lower() for name in log.columns if (match := PAIRED.search(name))}
    all_words = {word for name in log.columns for word in words(name)}
    has_pairs = of_pairs >= {"chosen", "reject"} or of_pairs >= {"margin", "accurac"} or {"dpo", "loss"} <= all_words
    has_pairs |= bool(log.settings.get(PAIRS_KEY))
    rewarded = any("reward" in words(name) and not PAIRED.search(name) for name in log.columns)
    sampled = rewarded or "objective/kl" in log.columns
    return replace(run_traits, trains_on="given") if has_pairs and not sampled else run_traits


def _stand_in(series: dict[str, list[Series]], table: Table) -> tuple[str, ...]:
    """Let what pays for being right, or the mean return alone, stand for a reward that is not logged; return a note.

    A trainer's own mean return has the KL penalty in it, which a loop of somebody's own seldom puts there.
    """
    candidates = [quantity for quantity in series if quantity.startswith("reward_part/") and pays_for_right(quantity)]
    candidates = candidates or [quantity for quantity in series if quantity == "return_mean" and table is COMMON]
    if "reward" in series or len(candidates) != 1 or {"loss", "heldout/loss"} <= series.keys():
        return ()  # beside a loss on held-out texts it is the accuracy of a classifier
    series["reward"] = [replace(estimate, quantity="reward", unit="reward") for estimate in series.pop(candidates[0])]
    return (f"the reward is not logged; {series['reward'][0].source} stands for it",)


def _heldout_reward(series: dict[str, list[Series]]) -> tuple[str, ...]:
    """Let held-out problems stand for training where only their reward is logged; return a note of it."""
    twins: dict[str, list[Series]] = {}
    for quantity, estimates in series.items() if "reward" not in series else ():
        family, _, metric = quantity.partition("/")
        name = COMMON.names.get(spell(metric)) or COMMON.names.get(spell(estimates[0].source))
        if family == "heldout" and name is not None and name.quantity not in series:
            twin = partial(replace, quantity=name.quantity, unit=name.unit, estimator=name.estimator)
            twins.setdefault(name.quantity, [twin(logged) for logged in estimates])
    if "reward" not in twins:
        return ()
    series |= twins
    sources = ", ".join(estimates[0].source for estimates in twins.values())
    return (f"the training reward is not logged; {sources} {'stands' if len(twins) == 1 else 'stand'} for it",)


def _clipped_texts(series: dict[str, list[Series]]) -> tuple[str, ...]:
    """Take a "clip_ratio" for texts cut off where it begins too high for a first update and goes with the length."""
    shares, lengths = series.get("clip_fraction", ()), series.get("length", ())
    if len(shares) != 1 or not lengths or "truncated" in series or "ratio" not in shares[0].source.lower():
        return ()
    share, length = together(shares[0].finite(), lengths[0].finite())
    vary = len(share) >= FEWEST_SHARED and np.ptp(share.values) * np.ptp(length.values)
    if not vary or share.values[0] <= MOST_CLIPPED:
        return ()
    if np.corrcoef(share.values, length.values)[0, 1] <= GO_TOGETHER:
        return ()
    series["truncated"] = [
        replace(logged, quantity="truncated", unit="share") for logged in series.pop("clip_fraction")
    ]
    return (f"'{share.source}' goes with the length, and is taken for the share of texts that a limit cuts off",)


def _without_impossible(series: dict[str, list[Series]], table: Table) -> tuple[str, ...]:
    """Leave out what cannot be what its name says, or is chosen by its values; return a note of each.

    No entropy of tokens lies below 0, and somebody's own "length" of 0 to 1 is a score for it.
    """
    notes = []
    for quantity, reason in IMPOSSIBLE.items():
        estimates = series.pop(quantity, [])
        wrong = [len(logged) > 0 and _impossible(logged, table) for logged in estimates]
        notes += [f"'{logged.source}' {reason}" for logged, bad in zip(estimates, wrong, strict=True) if bad]
        if possible := [logged for logged, bad in zip(estimates, wrong, strict=True) if not bad]:
            series[quantity] = possible
    return tuple(notes)


def _impossible(logged: Series, table: Table) -> bool:
    if logged.quantity == "entropy":
        return logged.median < 0.0
    if logged.quantity == "kl_ref":  # of TRL's warning
        return "to become negative" in logged.source and len(logged) < max(SELDOM, np.ptp(logged.steps) / 2)
    length = table is COMMON and spell(logged.source).rpartition("/")[2] == "length"
    return length and bool((logged.values <= 1.0).all() and (logged.values % 1.0 > 0).any())


def _without_rounded_rate(series: dict[str, list[Series]]) -> tuple[str, ...]:
    """Leave out a learning rate of 0 in a log that prints no number small enough to show one; return a note of it."""
    rates = series.get("learning_rate", ())
    values = np.concatenate([np.empty(0), *(logged.values for estimates in series.values() for logged in estimates)])
    if not rates or any(rate.values.any() for rate in rates) or (values != np.round(values, DIGITS)).any():
        return ()
    del series["learning_rate"]
    return (f"the learning rate is printed as 0, in a log with {DIGITS} digits after the point at most",)


def _averaged_over(log: RawLog) -> int:
    """Return how many steps a row averages: as the trainer was set, else as far as most rows are apart."""
    logging_steps = number(log.settings, "logging_steps")
    if logging_steps is not None and logging_steps >= 1:  # below 1 it is a share of the steps
        return int(logging_steps)
    return usual_distance(max((column.steps for column in log.columns.values()), key=len, default=np.empty(0))) or 1


def _unwrapped(log: RawLog) -> RawLog:
    """Return a log without what stands before all its names with a slash, if only then its trainer is recognised."""
    split_names = [name.partition("/") for name in log.columns if "/" in name]
    if len({prefix for prefix, _, _ in split_names}) != 1 or recognise(log) is not COMMON:
        return log
    prefix = f"{split_names[0][0]}/"
    stripped = replace(
        log,
        columns={name.removeprefix(prefix): column for name, column in log.columns.items()},
        names={name.removeprefix(prefix): meaning for name, meaning in log.names.items()},
    )
    unwrapped = _unwrapped(stripped)
    return log if recognise(unwrapped) is COMMON else unwrapped


def recognise(log: RawLog) -> Table:
    """Return the table of the trainer that wrote a log: by its format, else by the most distinctive names.

    Between equals that one holds whose own rule fits, then the one that has the larger share of its distinctive names.
    Others print in verl's lines, too: they are its own where one name is distinctive of it, or one is known to it and
    none is distinctive of another.
    """
    of_format = next((table for table in TABLES if log.format in table.formats), COMMON)
    if of_format is not COMMON and (log.format != LINES_OF_MANY or _distinctive_count(of_format, log)):
        return of_format
    scored = [
        ((matches, derive.preferred(table, log.settings, log), matches / len(table.distinctive)), table)
        for table in TABLES
        if (matches := _distinctive_count(table, log)) >= table.needs
    ]
    if scored:
        return max(scored, key=itemgetter(0))[1]
    matches_of_format = filter(None, (_match(of_format, log, column) for column in log.columns))
    return of_format if any(match.rank < LATER for match in matches_of_format) else COMMON


def holds_known_metric(log: RawLog) -> bool:
    """Return whether any column is one that a check could look at, or scores are beside them.

    Clocks are none, and neither is a row of settings.
    """
    if log.evaluations:
        return True
    one_row = all(len(column.steps) < 2 for column in log.columns.values())
    if one_row and len(log.columns) > MOST_NAMES:
        return False
    table = recognise(log)
    identified = _vocabulary_matches(table, log)
    quantities = {match.name.quantity for match in identified} - CLOCKS
    guessed = _guessed(table, log, identified)
    settings = log.columns.keys() & SETTINGS
    if one_row and len(settings) > max(1, len({match.source for match in (*identified, *guessed)} - settings)):
        return False
    return bool(quantities) or not GUESSED_ALONE.isdisjoint(match.name.quantity for match in guessed)


def _distinctive_count(table: Table, log: RawLog) -> int:
    """Return how many of the table's distinctive patterns some column fits.

    What stands for "*" may be anything, and nothing of the trainer's own where the name is common, as "rewards/mean".
    """
    spellings = {spelling for column in log.columns for spelling in table.bare(column)}
    uncommon = spellings - COMMON.names.keys()
    return sum(
        any(wildcard(pattern, name) is not None for name in (uncommon if "*" in pattern else spellings))
        for pattern in table.distinctive
    )


def meaning_of(name: str) -> Name:
    """Return what a metric of ours stands for, or a common spelling, which says nothing of the unit.

    Raises:
        ConfigError: It is neither.
    """
    for table in (TABLES[0], COMMON):
        pattern = best_pattern(table.names, name)
        if pattern is not None:
            return table.names[pattern].filled(wildcard(pattern, name) or "")
    hint = did_you_mean(name, [*COMMON.names, *TABLES[0].names], "docs/metrics.md has them all")
    form = "a name of docs/metrics.md, or a common one such as reward or kl"
    raise ConfigError(f"got '{name:.80}' for what a metric is; expected {form}; {hint}")


def checked_names(names: Any) -> dict[str, str]:
    """Return what a user says that metrics of their own names are.

    Raises:
        ConfigError: They are no dict of texts, or stand for nothing that is known.
    """
    if not isinstance(names, Mapping) or not all(isinstance(text, str) for pair in names.items() for text in pair):
        raise ConfigError(f"got {names!r:.80} for names; expected a dict, such as {{'policy_divergence': 'kl'}}")
    for meaning in names.values():
        meaning_of(meaning)
    return dict(names)


def require_named(names: Mapping[str, str], runs: Iterable[Run]) -> None:
    """Refuse names for metrics of which no run has one.

    Raises:
        ConfigError: There is such a name.
    """
    logged = {name for run in runs for name in run.unknown}
    logged |= {estimate.source for run in runs for estimates in run.series.values() for estimate in estimates}
    # A name may have in front of it what a tracker put there.
    if missing := [name for name in names if not any(f"/{name}".endswith(f"/{source}") for source in logged)]:
        hint = did_you_mean(missing[0], sorted(logged), f"it has {', '.join(sorted(logged)[:10])}")
        raise ConfigError(f"no log has a metric '{missing[0]:.80}'; {hint}")


def _match(table: Table, log: RawLog, column: str) -> _Match | None:
    """Return the meaning of a column: as the user or the table has it, else as common spellings do; None for none."""
    if column in log.names:
        return _Match(meaning_of(log.names[column]), column, 0)
    if (heldout := _heldout(table, column)) is not None:
        return _Match(heldout, column, 0)
    for vocabulary in (table,) if table is COMMON else (table, COMMON):
        patterns = list(vocabulary.names)
        for spelling in vocabulary.bare(column):
            pattern = best_pattern(vocabulary.names, spelling)
            if pattern is not None:
                meaning = _meaning_by_choice(vocabulary, log, pattern).filled(wildcard(pattern, spelling) or "")
                return _Match(meaning, column, patterns.index(pattern) + LATER * (vocabulary is not table))
    if (at_end := AT_END.fullmatch(spell(column))) and (twin := COMMON.names.get(at_end[1])):
        return _Match(Name(f"heldout/{at_end[1]}", twin.unit, twin.estimator), column, LATER)
    spellings = (spell(column), spell(column).rpartition("/")[2])
    spelled = next((name for name in spellings if name.startswith(HELD_OUT)), None)
    if spelled is None or _not_measured(spelled[spelled.index("_") + 1 :]):
        return None
    return _Match(Name(f"heldout/{column}"), column, LATER)


def _vocabulary_matches(table: Table, log: RawLog) -> list[_Match]:
    """Return the columns whose meaning a vocabulary has.

    Of names that no vocabulary has the last part counts, where it tells a quantity that nothing else and no other does.
    """
    identified = [match for column in log.columns if (match := _match(table, log, column))]
    quantities = {match.name.quantity for match in identified}
    sources = {match.source for match in identified}
    by_quantity: dict[str, list[_Match]] = {}
    for column in log.columns:
        meaning = None if column in sources else _meaning_of_ending(column)
        if meaning is not None and meaning.quantity not in quantities:
            by_quantity.setdefault(meaning.quantity, []).append(_Match(meaning, column, LATER))
    return [*identified, *(same_quantity[0] for same_quantity in by_quantity.values() if len(same_quantity) == 1)]


def _guessed(table: Table, log: RawLog, identified: list[_Match]) -> list[_Match]:
    """Return what else may be told of the columns that have no place, by their words and values.

    A guess has the unit in which the trainer logs that quantity, where it logs it in no other. Of other models' columns
    those of a critic's own quantities count.
    """
    sources = {match.source for match in identified}
    of_policy, of_others = dict[str, Column](), dict[str, Column]()
    for logged, column in log.columns.items():
        model = NOT_THE_POLICY.search(logged)
        of_both = model is not None and not OF_THE_POLICY.get(model[2], frozenset()).isdisjoint(words(logged))
        other_model = model is not None and not of_both and "teacher" not in logged.lower()
        if logged not in sources and not logged.startswith(HELD_OUT):
            (of_others if other_model else of_policy)[logged] = column
    units: dict[str, set[str]] = {}
    for name in () if table is COMMON else table.names.values():
        units.setdefault(name.quantity, set()).add(name.unit)
    quantities = frozenset(match.name.quantity for match in identified)
    of_critic = {logged: name for logged, name in guesses(of_others, quantities).items() if name.quantity in OF_CRITICS}
    guessed = {**guesses(of_policy, quantities), **of_critic}
    only = {quantity: choices.pop() for quantity, choices in units.items() if len(choices) == 1}
    meanings = {source: replace(name, unit=only.get(name.quantity, name.unit)) for source, name in guessed.items()}
    return [_Match(name, source, LATER) for source, name in meanings.items()]


def _meaning_by_choice(table: Table, log: RawLog, pattern: str) -> Name:
    choice = table.choices.get(pattern)
    if choice is None:
        return table.names[pattern]
    for name, meaning in choice.beside.items():
        if name in log.columns:
            return meaning
    value = str(first(log.settings, choice.settings)).lower()
    return choice.meanings.get(value, table.names[pattern])


def _not_measured(metric: str) -> bool:
    return any(map(NOT_MEASURED.fullmatch, metric.split("/")))


def _heldout(table: Table, column: str) -> Name | None:
    """Return the meaning of a held-out measurement: it keeps the trainer's name, with the unit of its training twin."""
    prefixed = ((spelling, prefix) for spelling in (column, spell(column)) for prefix in table.heldout)
    spelling, prefix = next((pair for pair in prefixed if pair[0].startswith(pair[1])), ("", ""))
    metric = spelling[len(prefix) :]
    if not metric or _not_measured(metric):
        return None
    pattern = best_pattern(table.names, metric)
    twin = table.names[pattern] if pattern is not None else Name("")
    return Name(f"heldout/{metric}", twin.unit, twin.estimator)


def _exactness(match: _Match) -> tuple[bool, int, int, str]:
    """Return the order of columns: sound estimators before those with padding, then the most exact first."""
    kind, *qualifiers = match.name.estimator.split(" ")
    rank = ESTIMATORS.index(kind) if kind in ESTIMATORS else len(ESTIMATORS)
    return bool(qualifiers), rank, match.rank, match.source


def _transformed(transform: str, values: np.ndarray) -> np.ndarray:
    """Return the quantity's values of the logged ones [n]; a variance below 0 is no number."""
    if transform == "sqrt":
        return np.sqrt(np.where(values < 0, np.nan, values))
    if transform == "negate":
        return -values
    if transform == "complement":
        return 1.0 - values
    return values * float(transform) if transform else values


def _notes(table: Table, log: RawLog, guessed: list[_Match]) -> list[str]:
    logged = {spelling for column in log.columns for spelling in table.bare(column)}
    notes = [caveat for name, caveat in table.caveats.items() if name in logged]
    if table is COMMON and log.columns:
        notes = ["The names are of no trainer that is known here, so the units of KL, entropy and others are unknown."]
    if pairs := ", ".join(f"{match.source} as {match.name.quantity}" for match in guessed):
        notes.append(f"guessed by their words and values, so see that they are these: {pairs}")
    return notes


def _meaning_of_ending(logged: str) -> Name | None:
    """Return what the last parts of a name with slashes tell, as in "trainer.ai/grad_norm"; None if they tell nothing.

    A part of a reward has no place of its own in the name, so a last part that says "mean" alone tells nothing.
    """
    spelled = spell(logged)
    bare = REMARK.sub("", spelled)
    if bare != spelled and OTHER.search(logged) is None and (meaning := COMMON.names.get(bare)):
        return meaning
    *groups, last = spelled.split("/")
    if not groups or NOT_THE_POLICY.search("/".join(groups)):
        return None
    spellings = (f"{groups[-1]}/{last}", *COMMON.bare(last))
    return next((COMMON.names[spelling] for spelling in spellings if spelling in COMMON.names), None)
