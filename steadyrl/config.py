"""Every knob: sections of typed settings, read from TOML, changed by ``section.key=value``, checked as a whole.

The sections of a task and of an algorithm are defined beside them (a ``Settings`` class each) and are validated
here by the same rules. A resolved config holds every value that a run used, defaults included.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, ValidationError

from steadyrl import plugins
from steadyrl.errors import ConfigError
from steadyrl.sections import (
    AlgorithmSection,
    AutopilotSection,
    BackendSection,
    CurriculumSection,
    EvaluateSection,
    JudgeSection,
    ModelSection,
    RolloutSection,
    RunSection,
    SamplerSection,
    SamplingSection,
    TaskSection,
    UpdateSection,
)
from steadyrl.sections import (
    Section as Section,  # where tasks and algorithms of users find it
)


class Config(Section):
    """All settings of a run."""

    run: RunSection = Field(default_factory=RunSection)
    model: ModelSection = Field(default_factory=ModelSection)
    backend: BackendSection = Field(default_factory=BackendSection)
    task: TaskSection = Field(default_factory=TaskSection)
    rewards: dict[str, float] = Field(default_factory=dict)
    judge: JudgeSection = Field(default_factory=JudgeSection)
    sampling: SamplingSection = Field(default_factory=SamplingSection)
    sampler: SamplerSection = Field(default_factory=SamplerSection)
    curriculum: CurriculumSection = Field(default_factory=CurriculumSection)
    rollout: RolloutSection = Field(default_factory=RolloutSection)
    algorithm: AlgorithmSection = Field(default_factory=AlgorithmSection)
    update: UpdateSection = Field(default_factory=UpdateSection)
    evaluate: EvaluateSection = Field(default_factory=EvaluateSection)
    autopilot: AutopilotSection = Field(default_factory=AutopilotSection)


SectionType = TypeVar("SectionType", bound=BaseModel)


def load(path: Path | str, overrides: Sequence[str] = ()) -> Config:
    """Read a TOML file, apply overrides, and validate everything.

    Args:
        path: The config file.
        overrides: "section.key=value" each; the value is read as TOML, else taken as text.

    Raises:
        ConfigError: With every problem found.
    """
    path = Path(path)
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"there is no config file '{path}'; expected a TOML file (see examples/)") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the config file '{path}': {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    return resolve(data, overrides)


def resolve(data: Mapping[str, Any], overrides: Sequence[str] = ()) -> Config:
    """Validate nested settings (see ``load``), the task's and the algorithm's own included."""
    merged = _copy(data)
    for override in overrides:
        _apply(merged, override)
    config = validate(Config, merged, "")
    problems = [*_reward_problems(config), *_size_problems(config), *_sampler_problems(config)]
    problems += [*judge_problems(config.judge), *_override_problems(config, overrides)]
    sections: dict[str, TaskSection | AlgorithmSection | CurriculumSection] = {}
    for kind, section in (("task", config.task), ("algorithm", config.algorithm), ("curriculum", config.curriculum)):
        try:
            sections[kind] = section.model_copy(update={"args": _own(kind, section.name, section.args)})
        except ConfigError as error:
            problems.append(str(error))
    if not problems:
        config = config.model_copy(update=sections)
        problems = _autopilot_problems(config)
    if problems:
        raise ConfigError("; ".join(problems))
    return config


def in_steps(config: Config, problems: int) -> Config:
    """Return a config with the steps that its epochs take; as it is where it counts steps.

    The last step may begin the next pass. Problems that ``rollout.refill`` adds make the passes longer than they count
    for here, and a curriculum that chooses makes none; an epoch is then as many problems as there are.

    Args:
        config: The resolved settings.
        problems: How many there are for training.
    """
    if not config.run.epochs:
        return config
    steps = -(-config.run.epochs * problems // config.rollout.prompts_per_step)
    return config.model_copy(update={"run": config.run.model_copy(update={"steps": steps})})


def dump(config: Config) -> dict[str, Any]:
    """Return every value as plain data; ``resolve(dump(config)) == config``."""
    return config.model_dump(mode="json")


def free_on_resume(config: Config) -> list[str]:
    """Return the settings that a run may change on its way without becoming another one, by their dotted names."""
    return sorted(_free(config, ""))


def _free(section: BaseModel, where: str) -> Iterator[str]:
    if isinstance(section, Section):
        yield from (f"{where}{name}" for name in section.free_on_resume)
    for name in type(section).model_fields:
        value = getattr(section, name)
        inner = value.items() if isinstance(value, Mapping) else [("", value)]
        for key, one in inner:
            if isinstance(one, BaseModel):
                yield from _free(one, f"{where}{name}.{key}{'.' if key else ''}")


def validate(section: type[SectionType], data: Mapping[str, Any], where: str) -> SectionType:
    """Build a section, turning what pydantic found into lines a person can act on.

    Args:
        section: The class to build.
        data: What the user gave.
        where: Dotted path of the section, "" at the top.

    Raises:
        ConfigError: With every problem found.
    """
    try:
        return section.model_validate(data)
    except ValidationError as error:
        lines = [_line(section, where, problem) for problem in error.errors()]
        raise ConfigError("; ".join(dict.fromkeys(lines))) from error


def _own(kind: str, name: str, args: object) -> BaseModel:
    """Validate the settings that a task or an algorithm defines for itself."""
    settings = getattr(plugins.load(kind, name), "Settings", None)
    if not isinstance(settings, type) or not issubclass(settings, BaseModel):
        raise ConfigError(
            f"{kind}.name: '{name}' is no {kind}: it has no class 'Settings'; expected one derived from "
            "steadyrl.config.Section"
        )
    if not isinstance(args, Mapping):
        raise ConfigError(f"{kind}.args: got {args!r}; expected a table of settings")
    return validate(settings, args, f"{kind}.args")


def _reward_problems(config: Config) -> list[str]:
    if any(weight != 0 for weight in config.rewards.values()):
        return []
    return ["rewards: every weight is 0 or none is given; expected at least one, as in retrieval = 1.0"]


def _size_problems(config: Config) -> list[str]:
    rollouts = config.rollout.prompts_per_step * config.rollout.samples_per_prompt
    if config.update.minibatches <= rollouts:
        return []
    return [
        f"update.minibatches is {config.update.minibatches} but a step has only {rollouts} rollouts "
        "(rollout.prompts_per_step x rollout.samples_per_prompt); lower it or collect more"
    ]


def _sampler_problems(config: Config) -> list[str]:
    if config.sampler.engine == "own":
        return []
    sampling, url, found = config.sampling, config.sampler.url, []
    if not url.startswith(("http://", "https://")):
        found.append(f"sampler.url: got '{url}'; expected an address such as http://localhost:8000")
    if config.backend.name == "toy":
        found.append("sampler.engine = 'vllm' serves the weights of backend.name = 'torch'; got 'toy'")
    if sampling.top_p < 1 or sampling.top_k > 0:
        found.append(
            f"sampling.top_p = {sampling.top_p:g}, top_k = {sampling.top_k}: vLLM does not tell which tokens truncation"
            " left, which log-probs are normalised over; set top_p = 1 and top_k = 0, or sampler.engine = 'own'"
        )
    if sampling.logprobs == "raw":
        found.append("sampling.logprobs = 'raw' is measured by sampler.engine = 'own' only; set one or the other")
    return found


def judge_problems(judge: JudgeSection) -> list[str]:
    """Return what is wrong with the settings of a judge; never what may be a key, which a config must not hold."""
    found = _address_problems(judge.base_url)
    if judge.key_env and not re.fullmatch(r"[A-Z_][A-Z0-9_]*", judge.key_env):
        found.append(
            "judge.key_env: expected the name of an environment variable in capitals, such as OPENAI_API_KEY; the key "
            "itself must not stand in a config"
        )
    taken = {"model", "messages", "stream", "n", "api_key"} & set(judge.request)
    if taken:
        found.append(f"judge.request: '{min(taken)}' cannot be set here; expected fields such as temperature")
    if not judge.criteria:
        found.append("judge.criteria is empty; expected at least one, as in correct = 'it does what is asked'")
    return found


def _address_problems(address: str) -> list[str]:
    if not address:
        return []
    expected = ["judge.base_url: expected an address such as http://localhost:8000/v1"]
    if re.search(r"[\s\x00-\x1f]", address):
        return expected  # urlsplit would drop some of it, and ask elsewhere than the text says
    try:
        url = urlsplit(address)
        if url.scheme not in ("http", "https") or not url.hostname or url.port == 0:
            return expected
    except ValueError:  # half an IPv6 address, or a port that is no number up to 65535
        return expected
    if url.username or url.password or url.query or url.fragment:
        return [
            "judge.base_url has a user, a password or a query in it, which would be written into every run; expected "
            "the plain address, and the key in the environment variable that judge.key_env names"
        ]
    return []


def _override_problems(config: Config, overrides: Sequence[str]) -> list[str]:
    """Return what overrides ask for in vain; of a file alone it is no mistake, for saved configs hold every value."""
    if not config.run.epochs or all(override.partition("=")[0].strip() != "run.steps" for override in overrides):
        return []
    return [
        f"run.steps = {config.run.steps} has no effect while run.epochs = {config.run.epochs} says how long the run "
        "is; set run.epochs=0 too"
    ]


def _autopilot_problems(config: Config) -> list[str]:
    pilot, args, found = config.autopilot, config.algorithm.args.model_dump(), []
    if pilot.kl_low >= pilot.kl_high:
        found.append(f"autopilot.kl_low is {pilot.kl_low:g}; expected less than autopilot.kl_high = {pilot.kl_high:g}")
    if pilot.mode == "off":
        return found
    if not config.update.learning_rate:
        found.append("update.learning_rate is 0, which no factor moves; give the autopilot a rate above 0")
    if not config.run.doctor_every:
        found.append("run.doctor_every is 0, but the autopilot acts on findings; expected 1 or more")
    if pilot.kl_ref_target and not args.get("kl_coef"):
        found.append(
            f"autopilot.kl_ref_target is {pilot.kl_ref_target:g}, and there is no algorithm.args.kl_coef above 0 to "
            "move; set one, or the target to 0"
        )
    if pilot.kl_ref_target and args.get("kl_control") == "adaptive":
        found.append("autopilot.kl_ref_target and algorithm.args.kl_control='adaptive' move one number; set one")
    return found


def _copy(data: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copy(value) if isinstance(value, Mapping) else value for key, value in data.items()}


def _apply(data: dict[str, Any], override: str) -> None:
    key, sign, text = override.partition("=")
    parts = key.strip().split(".")
    if not sign or not all(parts):
        raise ConfigError(f"'{override}' is no override; expected section.key=value, as in update.learning_rate=1e-4")
    if parts[0] == "rewards" and len(parts) > 2:  # an import path has dots of its own
        parts = ["rewards", ".".join(parts[1:])]
    for i, part in enumerate(parts[:-1]):
        data = data.setdefault(part, {})
        if not isinstance(data, dict):
            raise ConfigError(f"'{override}': {'.'.join(parts[: i + 1])} is a value, not a section")
    data[parts[-1]] = _value(text.strip())


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _line(section: type[BaseModel], where: str, problem: Any) -> str:
    location = [str(part) for part in problem["loc"]]
    place = ".".join([*([where] if where else []), *location])
    if problem["type"] == "extra_forbidden":
        return f"{place}: unknown setting; {_suggestion(section, location)}"
    if problem["type"] == "missing":
        return f"{place}: is missing and has no default; give it a value"
    return f"{place}: got {problem['input']!r}; expected {_expectation(problem)}"


def _expectation(problem: Any) -> str:
    """Return what a value should have been, in the words of TOML where pydantic has Python's."""
    words = {
        "string_type": "text in quotes",
        "bool_type": "true or false",
        "int_type": "a whole number",
        "float_type": "a number",
        "finite_number": "a finite number",
        "dict_type": "a table of settings",
        "model_type": "a section of settings",
    }
    if problem["type"] in words:
        return words[problem["type"]]
    text: str = problem["msg"].removeprefix("Value error, ").removeprefix("expected ").removeprefix("Input should be ")
    return f"a number {text}" if text.startswith(("greater", "less")) else text


def _suggestion(section: type[BaseModel], location: Sequence[str]) -> str:
    """Return the key that an unknown one may have been meant to be: one like it, or its namesake elsewhere."""
    *path, name = location
    known = _keys(section, path)
    close = difflib.get_close_matches(name, known, n=1)
    if not close:
        close = [f"{other}.{name}" for other in _keys(section, []) if name in _keys(section, [other])]
    return f"did you mean '{close[0]}'?" if close else f"known are: {', '.join(known) or 'none'}"


def _keys(section: type[BaseModel], path: Sequence[str]) -> list[str]:
    current: Any = section
    for part in path:
        field = getattr(current, "model_fields", {}).get(part)
        current = field.annotation if field else None
    return sorted(getattr(current, "model_fields", {}))
