"""Every knob: sections of typed settings, read from TOML, changed by ``section.key=value``, checked as a whole.

The sections of a task and of an algorithm are defined beside them (a ``Settings`` class each) and are validated
here by the same rules. A resolved config holds every value that a run used, defaults included.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic import BaseModel, Field, ValidationError

from steadyrl.core import plugins, sections
from steadyrl.core.arguments import checked
from steadyrl.core.errors import ConfigError, without_keys
from steadyrl.core.places import settings_read
from steadyrl.core.rundir import DEEPEST, MOST_CHARACTERS, RunDir, too_deep
from steadyrl.core.sections import FunctionSettings, RewardSettings
from steadyrl.core.sections import Section as Section  # where tasks and algorithms of users find it
from steadyrl.core.words import shell_command


class Config(Section):
    """All settings of a run."""

    run: sections.RunSection = Field(default_factory=sections.RunSection)
    model: sections.ModelSection = Field(default_factory=sections.ModelSection)
    backend: sections.BackendSection = Field(default_factory=sections.BackendSection)
    task: sections.TaskSection = Field(default_factory=sections.TaskSection)
    rewards: dict[str, Any] = Field(default_factory=dict)
    """weights by name; a table of settings where a reward has some"""
    sampling: sections.SamplingSection = Field(default_factory=sections.SamplingSection)
    sampler: sections.SamplerSection = Field(default_factory=sections.SamplerSection)
    curriculum: sections.CurriculumSection = Field(default_factory=sections.CurriculumSection)
    rollout: sections.RolloutSection = Field(default_factory=sections.RolloutSection)
    algorithm: sections.AlgorithmSection = Field(default_factory=sections.AlgorithmSection)
    update: sections.UpdateSection = Field(default_factory=sections.UpdateSection)
    evaluate: sections.EvaluateSection = Field(default_factory=sections.EvaluateSection)
    autopilot: sections.AutopilotSection = Field(default_factory=sections.AutopilotSection)


_TYPES = frozenset({"bool", "int", "float", "str", "list", "dict"})  # in the place of a value with several types
_OPAQUE = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[\w.~+/=-]{16,}")  # what a person would not choose as a name
# The value of a header that lets a caller in; "basic English" is none.
_HEADER = re.compile(r"(?i)\s*(?:bearer|(?:basic|token)(?=.*\d))\s+\S{6,}\s*")
_TOO_DEEP = (
    f"tables and lists stand more than {DEEPEST} deep inside one another; expected a flat config, as `steadyrl "
    "examples` has"
)
LARGEST = 1e9  # of a setting without a bound of its own

# By section: the setting that names its plug-in, which has settings of its own.
PLUGIN_NAMES = {"algorithm": "name", "task": "name", "backend": "name", "curriculum": "name", "sampler": "engine"}

SectionType = TypeVar("SectionType", bound=BaseModel)
# A text, a list of texts, or values by nested or dotted keys; see ``override_texts``.
Overrides = str | Sequence[str] | Mapping[str, Any]
_QUOTED_REWARD = re.compile(r"""rewards\.(?P<quote>['"])(?P<name>[^'"]+)(?P=quote)(?P<keys>(?:\..+)?)""")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_NEXT_OVERRIDE = re.compile(r"\s+(?=\w+\.[^\s=]+=)")


@checked
def load(path: Path | str, overrides: Overrides = ()) -> Config:
    """Read a TOML file, apply overrides (see ``override_texts``), and validate everything.

    Raises:
        ConfigError: With every problem found.
    """
    advice = "`steadyrl new` writes one for your own data, `steadyrl examples` copies one"
    data = read_toml(Path(path), "config", advice)
    if "experiments" in data:
        raise ConfigError(f"'{path}' is a study and no config; `{shell_command('study', 'run', path)}` makes its runs")
    return resolve(data, overrides)


def read_toml(path: Path, kind: str, advice: str) -> dict[str, Any]:
    """Return what a TOML file says; ``advice`` of an error says where to find one.

    Raises:
        ConfigError: It is not there, cannot be read, or is not TOML.
    """
    text = ""
    try:
        with path.open(encoding="utf-8-sig") as file:  # some editors begin a file with a byte-order mark
            text = file.read(MOST_CHARACTERS + 1)
        if len(text) > MOST_CHARACTERS:  # a device has no end
            raise ConfigError(f"'{path}' has more than {MOST_CHARACTERS:,} characters; expected a TOML file: {advice}")
        settings_read(path)
        return tomllib.loads(text)
    except FileNotFoundError as error:
        advice = "name it first, and settings behind it" if "=" in str(path) else advice
        raise ConfigError(f"there is no {kind} file '{path}'; expected a TOML file: {advice}") from error
    except IsADirectoryError as error:
        resume = f"; it is a run directory, and `{shell_command('train', '--resume', path)}` goes on with it"
        hint = resume if (path / "run.json").is_file() else ""
        raise ConfigError(f"'{path}' is a folder; expected a TOML file{hint}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the {kind} file '{path}': {error}; expected a TOML file") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}{_toml_hint(path, text, str(error))}") from error
    except RecursionError as error:
        raise ConfigError(f"{path}: {_TOO_DEEP}") from error


def _toml_hint(path: Path, text: str, error: str) -> str:
    """Return the line of a file that is no TOML and what a line looks like, as the end of a sentence."""
    if key := re.search(r"^\s*([\w.]+:\w+)\s*=", text, re.MULTILINE):
        return f'; an import path stands in quotes: "{key[1]}" = 1.0'
    if path.suffix != ".toml":
        return "; expected a TOML file, as `steadyrl new --data FILE` writes one"
    line = re.search(r"at line (\d+)", error)
    got = f": got {without_keys(text.split(chr(10))[int(line[1]) - 1].strip())[:80]}" if line else ""
    return f"{got}; expected name = value: a number, true or false, or a text in quotes, with comments behind #"


def override_texts(overrides: Overrides) -> list[str]:
    """Return overrides as texts "section.key=value", whose values are read as TOML, else taken as text.

    Args:
        overrides: One text with one or more overrides, a list of such texts, or a dict of values whose keys are nested
            (``{"run": {"steps": 20}}``) or dotted (``{"run.steps": 20}``).

    Raises:
        ConfigError: It is something else, or holds a value that TOML has no form for.
    """
    if isinstance(overrides, str):
        return _NEXT_OVERRIDE.split(overrides.strip()) if overrides.strip() else []
    if isinstance(overrides, Mapping):
        return [f"{key}={'' if value is None else toml_value(value, key)}" for key, value in _dotted(overrides, "")]
    if not isinstance(overrides, Sequence) or not all(isinstance(text, str) for text in overrides):
        raise ConfigError(
            f"overrides: got {overrides!r:.200}; expected texts such as 'run.steps=20', or a dict such as "
            "{'run.steps': 20}"
        )
    return list(overrides)


def _dotted(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _dotted(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def to_toml(settings: Mapping[str, Any], section: tuple[str, ...] = ()) -> str:
    """Return nested settings as the text of a TOML file; what is None, or an empty table, is left out.

    Raises:
        ConfigError: A value has no form in TOML.
    """
    values = {key: value for key, value in settings.items() if value is not None and not isinstance(value, Mapping)}
    lines = [f"{_toml_key(key)} = {toml_value(value, key)}\n" for key, value in values.items()]
    if section and lines:
        lines.insert(0, f"[{'.'.join(map(_toml_key, section))}]\n")
    tables = [to_toml(value, (*section, key)) for key, value in settings.items() if isinstance(value, Mapping)]
    return "\n".join(filter(None, ["".join(lines), *tables]))


def toml_value(value: Any, setting: str) -> str:
    """Return a text, a path, a number (NumPy's too), or a list or table of such as TOML writes it.

    Raises:
        ConfigError: It is something else.
    """
    if isinstance(value, str | Path):
        return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool | int | float):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(toml_value(item, setting) for item in value)}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_toml_key(key)} = {toml_value(item, setting)}' for key, item in value.items())}}}"
    if isinstance(value, np.generic):
        return toml_value(value.item(), setting)
    raise ConfigError(f"{setting}: got {value!r:.100}; expected a text, a number, true or false, or a list of these")


def _toml_key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else json.dumps(key, ensure_ascii=False)


def merge(data: Mapping[str, Any], overrides: Overrides) -> dict[str, Any]:
    """Return nested settings with overrides applied, not validated.

    Raises:
        ConfigError: An override is none.
    """
    if too_deep(data):
        raise ConfigError(f"the config: {_TOO_DEEP}")
    merged: dict[str, Any] = _plain(data)
    for override in override_texts(overrides):
        _apply(merged, override)
    return merged


def resolve(data: Mapping[str, Any], overrides: Overrides = ()) -> Config:
    """Validate nested settings (see ``load``), the task's and the algorithm's own included."""
    overrides = override_texts(overrides)
    merged = merge(data, overrides)
    if too_deep(merged):
        raise ConfigError(f"the overrides: {_TOO_DEEP}")
    if secret_settings := list(dict.fromkeys(_secret_settings(merged, ()))):
        raise ConfigError(
            f"{', '.join(secret_settings)}: holds a key, a password or what looks like one, and settings are written "
            "into every run; put it into an environment variable and remove it here"
        )
    config = validate(Config, merged, "")
    problems = list(_cross_section_problems(config, overrides))
    changed: dict[str, Any] = {}
    for kind in ("rewards", "task", "algorithm", "curriculum", "sampler", "backend"):
        try:
            if kind == "rewards":
                changed[kind] = {name: _validated_reward(name, value) for name, value in config.rewards.items()}
            else:
                changed[kind] = _with_plugin_settings(config, kind)
        except ConfigError as error:
            problems.append(str(error))
    config = config.model_copy(update=changed)
    if "rewards" in changed and not any(reward_weights(config).values()):
        problems.append(
            "rewards: every weight is 0 or none is given; expected at least one, as in retrieval = 1.0 for searches, "
            'or "my_rewards:brevity" = 1.0 for a function of your own'
        )
    if not problems:  # these checks read settings of plug-ins, which are valid only now
        problems = [*_autopilot_problems(config), *_plugin_problems(config)]
    if problems:
        raise ConfigError("; ".join(problems))
    return config


def of_run(run: RunDir, overrides: Overrides = ()) -> Config:
    """Return the settings of a run, with overrides; an error of its own settings names the file that holds them."""
    try:
        config = resolve(run.resolved())
    except ConfigError as error:
        raise ConfigError(f"'{run.resolved_file}': {error}") from error
    return resolve(run.resolved(), overrides) if overrides else config


def _secret_settings(value: object, keys: tuple[str, ...]) -> Iterator[str]:
    """Yield the settings that may hold a key, before any error could show it; ``keys`` lead to ``value``."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if without_keys(str(name), named=False) != str(name):  # the name itself may be a key, and is left out
                yield ".".join(keys) or "the config"
            else:
                yield from _secret_settings(inner, (*keys, str(name)))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _secret_settings(inner, keys)
    elif isinstance(value, str) and (_looks_secret(value, keys) or without_keys(value, named=False) != value):
        yield ".".join(keys)


def _looks_secret(text: str, keys: tuple[str, ...]) -> bool:
    """Say whether a text is a key by its place: its name, a header's value, or an address's part that nobody chose."""
    assignment = f"{keys[-1] if keys else ''}={text}"
    if without_keys(assignment) != assignment:
        return True
    in_headers = any(name.lower().endswith("headers") for name in keys)
    if _HEADER.fullmatch(text) or (in_headers and _OPAQUE.fullmatch(text)):
        return True
    scheme, separator, address = text.partition("://")
    if not separator or not scheme.isalpha():
        return False
    segments = re.split(r"[/?&#=]", address)[1:]
    return without_keys(address) != address or any(_OPAQUE.fullmatch(segment) for segment in segments)


def reward_weights(config: Config) -> dict[str, float]:
    """Return the weight of every reward by its name."""
    return {n: value.weight if isinstance(value, RewardSettings) else value for n, value in config.rewards.items()}


def in_steps(config: Config, problems: int) -> Config:
    """Return a config with the steps that its epochs take; as it is where it counts steps.

    The last step may begin the next pass. Problems that ``rollout.refill`` adds make the passes longer than they count
    for here, and a curriculum that chooses makes none; an epoch is then as many problems as there are.
    """
    if not config.run.epochs:
        return config
    steps = -(-config.run.epochs * problems // config.rollout.prompts_per_step)
    return config.model_copy(update={"run": config.run.model_copy(update={"steps": steps})})


def dump(config: Config) -> dict[str, Any]:
    """Return every value as plain data; ``resolve(dump(config)) == config``."""
    return config.model_dump(mode="json")


def defaults(algorithm: str) -> dict[str, Any]:
    """Return the default of every setting as plain data, with the settings of an algorithm that is built in."""
    config = Config(algorithm=sections.AlgorithmSection(name=algorithm))
    if algorithm in plugins.BUILT_IN["algorithm"]:
        config = config.model_copy(update={"algorithm": _with_plugin_settings(config, "algorithm")})
    return dump(config)


def in_force(config: Config, override: str) -> bool:
    """Say whether an override asks for what a config holds already, so that following it would change nothing."""
    dotted_key, _, text = override.partition("=")
    value: Any = dump(config)
    for name in _split_key(dotted_key.strip()):
        if not isinstance(value, Mapping) or name not in value:
            return False
        value = value[name]
    return bool(value == parse_value(text.strip()))


def free_on_resume(config: Config) -> list[str]:
    """Return the settings that a run may change on its way without becoming another one, by their dotted names."""
    return sorted(_free_names(config, ""))


def _free_names(section: BaseModel, prefix: str) -> Iterator[str]:
    if isinstance(section, Section):
        yield from (f"{prefix}{name}" for name in section.free_on_resume)
    for name in type(section).model_fields:
        value = getattr(section, name)
        inner = value.items() if isinstance(value, Mapping) else [("", value)]
        for key, subsection in inner:
            if isinstance(subsection, BaseModel):
                yield from _free_names(subsection, f"{prefix}{name}.{key}{'.' if key else ''}")


def validate(section: type[SectionType], data: Mapping[str, Any], prefix: str) -> SectionType:
    """Build a section; what pydantic finds becomes a ConfigError of lines that a person can act on."""
    try:
        instance = section.model_validate(data)
    except ValidationError as error:
        # pydantic reports a problem for each type that a setting may have; they become one line.
        by_value: dict[tuple[Any, ...], list[Any]] = {}
        for problem in error.errors():
            location = problem["loc"]
            is_of_type = len(location) > 1 and str(location[-1]).partition("[")[0] in _TYPES
            by_value.setdefault(location[:-1] if is_of_type else location, []).append(problem)
        settings_by_fault: dict[str, list[str]] = {}  # what is wrong with several settings is said once
        for problems in by_value.values():
            setting, _, fault = _problem_line(section, prefix, problems).partition(": ")
            settings_by_fault.setdefault(fault, []).append(setting)
        lines = [f"{', '.join(dict.fromkeys(names))}: {fault}" for fault, names in settings_by_fault.items()]
        raise ConfigError("; ".join(lines)) from error
    if lines := list(_too_large(instance, prefix)):
        raise ConfigError("; ".join(lines))
    return instance


def _too_large(section: BaseModel, prefix: str) -> Iterator[str]:
    """Yield a line for every number that no arithmetic of a run can hold, where the setting has no bound of its own."""
    for name, field in type(section).model_fields.items():
        value, setting = getattr(section, name), f"{prefix}{'.' if prefix else ''}{name}"
        if isinstance(value, BaseModel):
            yield from _too_large(value, setting)
        bounded = any(hasattr(limit, "le") or hasattr(limit, "lt") for limit in field.metadata)
        if isinstance(value, int | float) and not bounded and abs(value) > LARGEST:
            yield f"{setting}: got {value!r:.40}; expected a number up to {LARGEST:g}"


def settings_class(plugin: object, base: type[SectionType]) -> type[SectionType] | None:
    """Return the class ``Settings`` of a plug-in, or None if it has none that is derived from ``base``."""
    settings = getattr(plugin, "Settings", None)
    return settings if isinstance(settings, type) and issubclass(settings, base) else None


def _with_plugin_settings(config: Config, kind: str) -> BaseModel:
    """Return a section with the settings that its plug-in defines for itself validated."""
    section = getattr(config, kind)
    name = getattr(section, PLUGIN_NAMES[kind])
    if (kind, name) == ("sampler", "own"):
        if section.args:
            raise ConfigError("sampler.args has no effect with sampler.engine = 'own'; remove it, or name an engine")
        return sections.SamplerSection()
    if kind == "backend" and not plugins.is_module(kind, name):
        if section.args:
            raise ConfigError(f"backend.args has no effect with backend.name = '{name}'; remove it")
        return config.backend
    settings = settings_class(plugins.load(kind, name), BaseModel)
    if settings is None:
        raise ConfigError(
            f"{kind}.name: '{name}' is no {kind}: it has no class 'Settings'; expected one derived from "
            "steadyrl.core.config.Section"
        )
    if not isinstance(section.args, Mapping):
        raise ConfigError(f"{kind}.args: got {section.args!r:.200}; expected a table of settings")
    validated: BaseModel = section.model_copy(update={"args": validate(settings, section.args, f"{kind}.args")})
    return validated


def _validated_reward(name: str, value: object) -> float | BaseModel:
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST:
        return float(value)
    setting, settings = f"rewards.{name}", settings_class(_reward_plugin(name), RewardSettings) or FunctionSettings
    if not isinstance(value, Mapping):
        got = f"{_safe_repr(settings, value):.40}"
        raise ConfigError(f"{setting}: got {got}; expected a finite number, at most {LARGEST:g}")
    return validate(settings, value, setting)


def _reward_plugin(name: str) -> Any:
    """Return the plug-in of a reward, or None for a name that only the task may know."""
    return plugins.load("reward", name) if name in plugins.BUILT_IN["reward"] or ":" in name else None


def _plugin_problems(config: Config) -> list[str]:
    """Return what plug-ins find wrong with the config as a whole, each by its own ``check(config, settings)``."""
    sections_by_kind = {kind: getattr(config, kind) for kind in ("sampler", "backend", "algorithm")}
    settings_of_plugins = [
        (plugins.load(kind, getattr(section, PLUGIN_NAMES[kind])), section.args)
        for kind, section in sections_by_kind.items()
        if isinstance(section.args, BaseModel)
    ]
    settings_of_plugins += [(_reward_plugin(n), s) for n, s in config.rewards.items() if isinstance(s, RewardSettings)]
    checks = [(getattr(plugin, "check", None), settings) for plugin, settings in settings_of_plugins]
    return [problem for check, settings in checks if check for problem in check(config, settings)]


def _cross_section_problems(config: Config, overrides: Sequence[str]) -> Iterator[str]:
    """Yield what is wrong between sections of which each is right by itself."""
    if config.update.minibatches > config.rollout.rollouts:
        yield (
            f"update.minibatches is {config.update.minibatches} but a step has only {config.rollout.rollouts} rollouts "
            "(rollout.prompts_per_step x rollout.samples_per_prompt); lower it or collect more"
        )
    engine, name = config.sampler.engine, config.backend.name
    if engine != "own" and name != "torch" and name in plugins.BUILT_IN["backend"]:  # one of these samples elsewhere
        yield (
            f"sampler.engine = '{engine:.120}' serves the weights of backend.name = 'torch'; got '{name}'; set "
            "sampler.engine = 'own'"
        )
    # Of a file alone it is no mistake, for saved configs hold every value.
    if config.run.epochs and any(override.partition("=")[0].strip() == "run.steps" for override in overrides):
        yield (
            f"run.steps = {config.run.steps} has no effect while run.epochs = {config.run.epochs} says how long the "
            "run is; set run.epochs=0 too"
        )


def _autopilot_problems(config: Config) -> Iterator[str]:
    pilot, args = config.autopilot, config.algorithm.args.model_dump()
    if pilot.mode == "off":
        return
    if not config.update.learning_rate:
        yield "update.learning_rate is 0, which no factor moves; give the autopilot a rate above 0"
    if not config.run.doctor_every:
        yield "run.doctor_every is 0, but the autopilot acts on findings; expected 1 or more"
    if pilot.kl_ref_target and not args.get("kl_coef"):
        yield (
            f"autopilot.kl_ref_target is {pilot.kl_ref_target:g}, and there is no algorithm.args.kl_coef above 0 to "
            "move; set one, or the target to 0"
        )
    if pilot.kl_ref_target and args.get("kl_control") == "adaptive":
        yield "autopilot.kl_ref_target and algorithm.args.kl_control='adaptive' move one number; set one"


def _plain(value: Any) -> Any:
    """Return a copy that TOML could hold: settings from Python have paths, tuples and numbers of NumPy in them."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value.item() if isinstance(value, np.generic) else value


def _apply(data: dict[str, Any], override: str) -> None:
    dotted_key, sign, text = override.partition("=")
    keys = _split_key(dotted_key.strip())
    if not sign or not all(keys):
        raise ConfigError(
            f"'{override:.120}' is no override; expected section.key=value, as in update.learning_rate=1e-4"
        )
    for i, key in enumerate(keys[:-1]):
        if keys[0] == "rewards" and i == 1 and not isinstance(data.get(key, {}), dict):
            data[key] = {"weight": data[key]}  # a reward that was a weight alone
        data = data.setdefault(key, {})
        if not isinstance(data, dict):
            raise ConfigError(f"'{dotted_key.strip():.120}': {'.'.join(keys[: i + 1])} is a value, not a section")
    value = parse_value(text.strip())
    if keys[0] == "rewards" and len(keys) == 2 and isinstance(data.get(keys[1]), dict):
        data, keys = data[keys[1]], ["weight"]  # a reward that has a table keeps its other settings
        if isinstance(value, dict):
            data.update(value)
            return
    data[keys[-1]] = value


def _split_key(key: str) -> list[str]:
    """Split a dotted key; the name of a reward may be an import path, which has dots before its colon, and quotes."""
    if quoted := _QUOTED_REWARD.fullmatch(key):
        return ["rewards", quoted["name"], *quoted["keys"].split(".")[1:]]
    module, colon, attribute = key.partition(":")
    if not key.startswith("rewards.") or not colon:
        return key.split(".")
    function, *keys = attribute.split(".")
    return ["rewards", f"{module.removeprefix('rewards.')}:{function}", *keys]


def parse_value(text: str) -> Any:
    """Return a value of TOML; what is none, or has more settings behind it, is a text."""
    try:
        table = tomllib.loads(f"value = {text}")
        return table["value"] if len(table) == 1 else text
    except tomllib.TOMLDecodeError:
        return text
    except RecursionError as error:
        raise ConfigError(f"'{text:.40} ...': {_TOO_DEEP}") from error


def _problem_line(section: type[BaseModel], prefix: str, problems: Sequence[Any]) -> str:
    problem = problems[0]
    # Of several types the last key is the name of one of them.
    keys = [str(key) for key in problem["loc"][: len(problem["loc"]) - (len(problems) > 1)]]
    setting = ".".join([*([prefix] if prefix else []), *keys])
    if problem["type"] == "extra_forbidden":
        return f"{setting}: unknown setting; {_suggestion(section, keys)}"
    if problem["type"] == "missing":
        return f"{setting}: is missing and has no default; give it a value"
    if callable(function := next((key for key in problem["loc"] if callable(key)), problem["input"])):
        path = f"{getattr(function, '__module__', 'module')}:{getattr(function, '__qualname__', 'name')}"
        if keys[-1:] == ["[key]"]:  # pydantic's mark of a problem with the key of a dict
            setting = ".".join(keys[:-2])
        return f"{setting}: got {function!r:.100} itself; expected its import path as a text, such as '{path}'"
    *expectations, last = [_expectation(problem) for problem in problems]
    if problem["type"] == "model_type":
        last += f", such as {setting}.{_setting_names(section, keys)[0]}"
    expected = f"{', '.join(expectations)} or {last}" if expectations else last
    return f"{setting}: got {_safe_repr(section, problem['input'])}; expected {expected}"


def _safe_repr(section: type[BaseModel], value: object) -> str:
    """Return a value as an error shows it: in a confidential section only its kind, unless it is a number."""
    if not (issubclass(section, Section) and section.confidential) or isinstance(value, int | float):
        return f"{value!r:.200}"
    kinds: dict[type, str] = {str: "a text", dict: "a table", list: "a list"}
    return kinds.get(type(value), "something else")


def _expectation(problem: Any) -> str:
    """Return what a value should have been, in the words of TOML where pydantic has Python's."""
    words = {
        "string_type": "text in quotes",
        "bool_type": "true or false",
        "int_type": "a whole number",
        "float_type": "a number",
        "finite_number": "a finite number",
        "dict_type": "a table of settings",
        "list_type": "a list of tables, each below its name in double brackets"
        if isinstance(problem["input"], Mapping)
        else 'a list, such as ["a", "b"] or [0.1, 0.2]',
        "model_type": "a section of settings",
    }
    if problem["type"] in words:
        return words[problem["type"]]
    text: str = problem["msg"].removeprefix("Value error, ").removeprefix("expected ").removeprefix("Input should be ")
    return f"a number {text}" if text.startswith(("greater", "less")) else text


def _suggestion(section: type[BaseModel], keys: Sequence[str]) -> str:
    """Return the key that an unknown one may be meant to be: its namesake elsewhere, one like it, or a plug-in's."""
    *path, name = keys
    names = _setting_names(section, path)
    namesakes = [f"{key}.{name}" for key in _setting_names(Config, []) if name in _setting_names(Config, [key])]
    peers = plugins.of_peers("settings")
    homes = [answer for answer in peers.values() if section is Config and answer.endswith(f".args.{name}")]
    if not namesakes and (answer := peers.get(name) or next(iter(homes), "")):
        return f"it is {answer} here"
    of_plugin = [".".join([*path, "args", name])] if "args" in names else []
    if len(namesakes) > 1:  # a name, such as "name", that says nothing of the section
        namesakes = []
    # In a file a section begins with its name in brackets.
    if (path or section is not Config) and name in Config.model_fields:
        namesakes, of_plugin = [name], []
    alike = [] if namesakes else difflib.get_close_matches(name, names, n=1)
    close = alike or [*of_plugin, *namesakes]
    all_names = ", ".join(sorted(names)) or "none"
    return f"did you mean {' or '.join(map(repr, close))}?" if close else f"known are: {all_names}"


def _setting_names(section: type[BaseModel], path: Sequence[str]) -> list[str]:
    current: Any = section
    for name in path:
        field = getattr(current, "model_fields", {}).get(name)
        current = field.annotation if field else None
    return list(getattr(current, "model_fields", {}))
