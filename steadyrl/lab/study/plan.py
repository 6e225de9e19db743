"""What a study is: a file that says before the runs what is changed, what is measured and what would decide it.

An experiment changes one setting of a named earlier experiment. A study is refused if the resolved settings of the two
differ in more than the keys that it names, or in none of them.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steadyrl.core import config as configs
from steadyrl.core.config import Config
from steadyrl.core.errors import ConfigError
from steadyrl.core.metrics import CATALOGUE, describe
from steadyrl.core.stats import pass_rates
from steadyrl.core.words import shell_command
from steadyrl.doctor.readers.spelling import flat_settings
from steadyrl.lab.study.file import ABSOLUTE, HELDOUT, MINUS, Experiment, StudyFile

# Settings that do not make another experiment of a run.
_NOT_COMPARED = ("run.seed", "run.folder")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,40}")


@dataclass(frozen=True)
class Arm:
    """An experiment and its resolved settings."""

    experiment: Experiment
    config: Config
    """Its settings with the study's first seed."""
    changed: Mapping[str, tuple[Any, Any]]
    """The settings in which it differs from its base, by dotted key: before and after."""

    @property
    def name(self) -> str:
        """Return its short name."""
        return self.experiment.name


@dataclass(frozen=True)
class Study:
    """A study that may be run."""

    path: Path
    file: StudyFile
    arms: tuple[Arm, ...]  # in the order of the file
    seeds: tuple[int, ...]  # of this version, quick or whole
    quick: bool
    warm: Job | None = None  # the run whose policy all start from, or None
    accepts_changes: bool = False  # of data and code since the first runs

    def arm(self, name: str) -> Arm:
        """Return an arm by its name."""
        return next(arm for arm in self.arms if arm.name == name)

    def judged_by(self) -> dict[str, Any]:
        """Return what decides the study as plain data: it must not change once there are runs."""
        return {
            "metric": self.file.metric,
            "rule": self.file.rule.model_dump(),
            "stop": [rule.model_dump() for rule in self.file.stop],
            "expect": {arm.name: [e.model_dump() for e in arm.experiment.expect] for arm in self.arms},
        }

    def described(self) -> dict[str, Any]:
        """Return what readers of the folder are told of the study, as plain data; it decides nothing."""
        return {
            "file": self.path.name,
            "title": self.file.title,
            "question": self.file.question,
            "quick": self.quick,
            "seeds": list(self.seeds),
            "arms": [
                {
                    "name": arm.name,
                    "title": arm.experiment.title,
                    "from": arm.experiment.base,
                    "changed": {key: list(values) for key, values in arm.changed.items()},
                }
                for arm in self.arms
            ],
        }


@dataclass(frozen=True)
class Job:
    """One run of a study."""

    arm: str
    config: Config
    start: str = ""  # the key of the run whose policy it starts from; "" for the config's own model

    @property
    def key(self) -> str:
        """Return the name of its folder: the arm, the seed, and a digest of every setting that is not the default.

        A later version with further settings finds the runs of an earlier one.
        """
        plain = flat_settings(self.config.model_dump(mode="json", exclude_defaults=True))
        compared = {key: value for key, value in plain.items() if key not in _NOT_COMPARED}
        if self.start:
            compared["start"] = self.start
        digest = hashlib.sha256(json.dumps(compared, sort_keys=True).encode()).hexdigest()[:8]
        return f"{self.arm}-s{self.config.run.seed}-{digest}"


def read_study(path: Path | str, quick: bool = False, seeds: int | None = None) -> Study:
    """Read a study file, with so many of its seeds (None: all of the version); refuse what could not be answered.

    Raises:
        ConfigError: It cannot be read, has fewer seeds, or two arms differ in more or less than they name.
    """
    path = Path(path)
    data = configs.read_toml(path, "study", "see studies/")
    if not data.keys() & StudyFile.model_fields and data.keys() & Config.model_fields:
        raise ConfigError(
            f"'{path}' is a config and no study; `{shell_command('train', path)}` trains by it, and a study names it: "
            f"config = '{path.name}', with the experiments that change it (docs/studies.md)"
        )
    file = configs.validate(StudyFile, data, "")
    if seeds is not None and seeds > len(file.seeds):
        raise ConfigError(f"{path} names {len(file.seeds)} seeds, got --seeds {seeds}; add to 'seeds' in the file")
    chosen = file.seeds[:seeds] if seeds or not quick else file.quick.seeds
    if not chosen or len(set(chosen)) < len(chosen) or min(chosen) < 0:
        raise ConfigError(f"{path}: seeds are {chosen}; expected one or more different numbers of 0 or more")
    fixed = [*(file.quick.settings if quick else []), f"run.seed={chosen[0]}"]
    arms: dict[str, Arm] = {}
    for number, experiment in enumerate(file.experiments, 1):
        where = f"{path}, experiment {number} '{experiment.name}'"
        _check_names(where, experiment, arms)
        before, overrides = arms[experiment.base].config if experiment.base else None, experiment.overrides(quick)
        try:
            if before is not None:
                config = configs.resolve(configs.dump(before), overrides)
            elif isinstance(file.config, str):
                config = configs.load(path.parent / file.config, [*overrides, *fixed])
            else:
                config = configs.resolve(file.config, [*overrides, *fixed])
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from error
        changed = differences(before, config) if before is not None else {}
        if before is not None:
            _require_named(where, experiment, quick, changed)
        arms[experiment.name] = Arm(experiment, config, changed)
        _check_expectations(where, experiment, arms)
    if unknown := [name for name in file.picture if name not in arms]:
        raise ConfigError(f"{path}: picture names '{unknown[0]}', which is no experiment; there are: {', '.join(arms)}")
    _check_metrics(path, file, arms)
    warm = None
    if file.warm is not None:
        settings = [*file.warm.settings, *(file.warm.quick if quick else [])]
        warm = Job("warm-start", configs.load(path.parent / file.warm.config, settings))
    return Study(path, file, tuple(arms.values()), tuple(chosen), quick, warm)


def unnamed_rewards(study: Study) -> list[str]:
    """Say which parts of the reward the study asks about that no reward of its configs is called, a sentence each.

    A reward function or a task may measure them all the same, so they cannot be refused; but a misspelt one would leave
    its expectation undecided, and is to be corrected before there are runs.
    """
    file = study.file
    askers = {file.metric: "the study", **{rule.metric: "a reason to stop" for rule in file.stop}}
    for arm in study.arms:
        askers |= {expect.metric: f"experiment '{arm.name}'" for expect in arm.experiment.expect if expect.metric}
    rewards = sorted({name.rpartition(":")[2] for arm in study.arms for name in arm.config.rewards})
    metric_names = {*(f"reward/{name}" for name in rewards), *(entry.name for entry in CATALOGUE)}
    samples = max(arm.config.evaluate.samples for arm in study.arms)
    measured = (*rewards, "metric", "reward", *(pass_rates([0.0] * samples, 1.0, samples) if samples > 1 else ()))
    sets = {"", *(f"{name}/" for arm in study.arms for name in arm.config.evaluate.sets)}
    metric_names |= {f"{when}/{prefix}{name}" for when in HELDOUT for prefix in sets for name in measured}
    return [
        f"{who} asks about {name}, and no reward is called so; there are: {', '.join(rewards)}. If no reward "
        "function and no task measures it under this name, nothing is decided by it"
        for metric, who in askers.items()
        for name in metric.split(MINUS, 1)
        if name.partition("/")[0] in ("reward", *HELDOUT) and name not in metric_names
    ]


def jobs(study: Study) -> list[Job]:
    """Return every run of a study, one seed of all arms after the other, so that a part of it is of use."""
    return [job_of(study, arm, seed) for seed in study.seeds for arm in study.arms]


def job_of(study: Study, arm: Arm, seed: int) -> Job:
    """Return one run of an arm."""
    config = arm.config.model_copy(update={"run": arm.config.run.model_copy(update={"seed": seed})})
    return Job(arm.name, config, study.warm.key if study.warm else "")


def differences(before: Config, after: Config) -> dict[str, tuple[Any, Any]]:
    """Return the settings that differ, by dotted key; the seed and the folder do not count."""
    # A table without entries is no setting: that its entries went is said of each.
    first, second = (
        {key: value for key, value in flat_settings(configs.dump(config)).items() if value != {}}
        for config in (before, after)
    )
    return {
        key: (first.get(key), second.get(key))
        for key in {**first, **second}
        if key not in _NOT_COMPARED and first.get(key) != second.get(key)
    }


def _check_names(where: str, experiment: Experiment, arms: Mapping[str, Arm]) -> None:
    arm_names = ", ".join(arms) or "none yet"
    if not _NAME.fullmatch(experiment.name):
        raise ConfigError(f"{where}: expected a name of lower-case letters, digits, '.', '_' and '-', up to 41")
    if experiment.name in arms:
        raise ConfigError(f"{where}: the name is taken; give every experiment its own")
    if experiment.base and experiment.base not in arms:
        raise ConfigError(f"{where}: from = '{experiment.base}' names no earlier experiment; there are: {arm_names}")
    if experiment.change and experiment.bundle:
        raise ConfigError(f"{where}: got change and bundle; expected one of them")
    if experiment.base and not experiment.overrides(quick=False):
        raise ConfigError(f"{where}: expected a change, as in change = 'update.learning_rate=1e-4'")


def _require_named(where: str, experiment: Experiment, quick: bool, changed: Mapping[str, Any]) -> None:
    """Refuse an arm that differs from its base in more than the named keys, or not in all of them."""
    named = [override.partition("=")[0].strip() for override in experiment.overrides(quick)]

    def covers(name: str, key: str) -> bool:
        return key == name or key.startswith(f"{name}.")

    unnamed = [key for key in changed if not any(covers(name, key) for name in named)]
    if unnamed:
        raise ConfigError(
            f"{where}: it also changes {', '.join(unnamed)}; expected a change of {', '.join(named)} alone. "
            "Name them in 'bundle', or make an experiment of each"
        )
    if ignored := [name for name in named if name in _NOT_COMPARED]:
        raise ConfigError(
            f"{where}: {ignored[0]} makes no other experiment; name the seeds in 'seeds', and the folder with --folder"
        )
    idle = [name for name in named if not any(covers(name, key) for key in changed)]
    if idle:
        raise ConfigError(f"{where}: {', '.join(idle)} has that value already; remove it or give another")
    if experiment.change and len(changed) > 1:
        raise ConfigError(
            f"{where}: {named[0]} stands for several settings ({', '.join(changed)}); use 'bundle' for that"
        )


def _check_expectations(where: str, experiment: Experiment, arms: Mapping[str, Arm]) -> None:
    for number, expect in enumerate(experiment.expect, 1):
        label = f"{where}, expectation {number}"
        if expect.be in ABSOLUTE:
            if expect.value is None or expect.than:
                raise ConfigError(f"{label}: '{expect.be}' compares with a number; give 'value', and no 'than'")
            continue
        if expect.value is not None:
            raise ConfigError(f"{label}: '{expect.be}' compares with an experiment; remove 'value'")
        than = expect.than or experiment.base
        if than not in arms or than == experiment.name:
            raise ConfigError(f"{label}: compared with '{than}', which is no earlier experiment; set 'than'")
        if expect.be == "same" and not expect.margin:
            raise ConfigError(f"{label}: 'same' needs a margin, the difference that would matter")


def _check_metrics(path: Path, file: StudyFile, arms: Mapping[str, Arm]) -> None:
    """Refuse what no run writes: after the runs the plan could not be corrected any more."""
    expects = [(arm.name, expect) for arm in arms.values() for expect in arm.experiment.expect]
    named_metrics = [("metric", file.metric, "last"), *(("stop", rule.metric, "") for rule in file.stop)]
    named_metrics += [(f"experiment '{arm}'", expect.metric or file.metric, expect.take) for arm, expect in expects]
    # An algorithm or a backend of the user's own may write other names.
    arm_configs = [arm.config for arm in arms.values()]
    has_plugins = any(":" in name for config in arm_configs for name in (config.algorithm.name, config.backend.name))
    for where, metric, take in named_metrics:
        if take and metric.partition("/")[0] in HELDOUT:
            if take not in ("last", "gain"):
                raise ConfigError(
                    f"{path}, {where}: take = '{take}' of {metric}, which has one value a run; expected 'last', or "
                    "'gain' for after - before"
                )
            continue
        unknown = [name for name in (metric.split(MINUS, 1) if take else [metric]) if describe(name) is None]
        if unknown and not has_plugins:
            close = difflib.get_close_matches(unknown[0], [entry.name for entry in CATALOGUE], n=3, cutoff=0.0)
            raise ConfigError(
                f"{path}, {where}: no run writes a metric '{unknown[0]}'; expected one of docs/metrics.md, the nearest "
                f"are: {', '.join(close)}"
            )
