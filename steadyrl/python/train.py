"""Training from Python in a few lines: a model, prompts and a reward, and settings that fit them.

run = steadyrl.train(model="base", prompts=["one red", "two blue"], reward=lambda completion: completion.count("e"))
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from steadyrl.backends.huggingface.facts import model_facts
from steadyrl.cli.progress import Progress
from steadyrl.cli.terminal import near
from steadyrl.core import config as configs
from steadyrl.core import plugins
from steadyrl.core.arguments import checked
from steadyrl.core.config import Config, Overrides
from steadyrl.core.counting.count import heard_by
from steadyrl.core.rundir import RunDir
from steadyrl.core.sections import BackendSection, ModelSection, RunSection
from steadyrl.loop import launch
from steadyrl.loop.defaults import ALGORITHM, defaults
from steadyrl.loop.train import Watch, joined
from steadyrl.python.inputs import FOLDER, model_path, nested, prompts_args, reward_entries
from steadyrl.python.live import NotebookView, in_notebook
from steadyrl.python.result import Run
from steadyrl.show.report.write import write_summary

# Backends that load a model folder; of others no size is known.
_FOLDER_BACKENDS = ("torch", "fsdp", "mlx")
# What the line of settings shows, by the section and the place in it.
_PRINTED = (
    ("algorithm", "name"), ("model", "lora_rank"), ("update", "learning_rate"), ("update", "schedule"),
    ("update", "warmup_steps"), ("run", "steps"), ("rollout", "prompts_per_step"), ("rollout", "samples_per_prompt"),
    ("update", "minibatches"), ("sampling", "max_new_tokens"), ("sampling", "temperature"),
)  # fmt: skip


@checked
def train(
    model: Any,
    prompts: Any,
    reward: Any,
    heldout: Any = None,
    tokenizer: Any = None,
    overrides: Overrides = (),
    watch: Watch | None = None,
    progress: bool = True,
    **settings: Any,
) -> Run:
    """Train a model on prompts by a reward, with settings that fit the model, and print these settings.

    Args:
        model: "base" (the small model that ships), a folder, a name on the hub, or a loaded model of transformers.
        prompts: A list of texts, of dicts with a "prompt" and columns for the reward, or of lists of messages; a
            Dataset or DatasetDict, a DataFrame; a file (JSON lines, parquet, CSV) or folder; or the name of a data set
            on the Hugging Face hub, such as "trl-lib/DeepMath-103K".
        reward: A function of ``completion`` (a text) and of any columns by their names; of ``problem, rollout``; or of
            ``completions`` as in TRL. Or the name of a built-in, a list, or a dict of names to functions.
        heldout: Prompts for the evaluations before and after training, or the share of ``prompts`` to hold out (0.2).
        tokenizer: The tokenizer of a loaded model, if ``model.name_or_path`` does not lead to the tokenizer.
        overrides: "section.key=value" in a text or a list, or a dict of values by nested or dotted keys.
        watch: Callbacks that follow the run, and may stop the run after a step.
        progress: Show a table and a curve in a notebook, and the display of the command line elsewhere.
        settings: Any setting by its name: ``steps=200, learning_rate=1e-4, algorithm="ppo", max_new_tokens=64``.

    Returns:
        The run, which shows itself. After Ctrl-C or a notebook's stop button the run has all whole steps and the
        ``status`` "interrupted"; ``steadyrl.run(resume=run)`` continues the run.

    Raises:
        SteadyError: Something cannot be trained; the error says what to change.
        KeyboardInterrupt: The interrupt came before the run began, or a signal asked the process to end.
    """
    with _view(progress) as view:
        view.phase("reading the prompts and the model")
        nested_settings = _settings(model, prompts, reward, heldout, tokenizer, settings, overrides)
        view.note(f"settings, each of them a keyword: {_settings_line(configs.resolve(nested_settings))}")
        opened: list[RunDir] = []
        watches = joined(view, Watch(opened=opened.append))
        try:
            launch.run(nested_settings, watch=joined(watches, watch or Watch()))
        except KeyboardInterrupt as interrupt:
            if not opened or interrupt.args:  # the name of a signal that asked the process to end
                raise
            view.note("stopped")
    return _with_summary(opened[0].path)


@checked
def run(
    config: Config | Mapping[str, Any] | Path | str | None = None,
    overrides: Overrides = (),
    resume: RunDir | Path | str | None = None,
    watch: Watch | None = None,
    accept_changed_data: bool = False,
) -> Run:
    """Train by a config, as `steadyrl train` does: preflight, held-out evaluation, all steps, evaluation again.

    Args:
        config: A TOML file, its sections as a mapping, or a resolved config; None with ``resume``.
        overrides: "section.key=value" in a text or a list, or a dict of values by nested or dotted keys.
        resume: A run to continue from its newest checkpoint; ``overrides`` may then change settings such as
            run.steps.
        watch: Callbacks that follow the run, and may stop the run after a step. Without callbacks a notebook shows a
            table and a curve, and a script prints nothing.
        accept_changed_data: Resume although the task's problems changed since the start of the run. The run remembers
            the accepted problems.

    Returns:
        The run. Its ``status`` is "finished", or "interrupted" if ``watch.stop`` returned True.

    Raises:
        SteadyError: Something cannot be trained; the error says what to change.
        KeyboardInterrupt: Ctrl-C or a signal; the last whole step is saved, and a resume continues after this step.
    """
    with _view(watch is None and in_notebook()) as view:
        return _with_summary(launch.run(config, overrides, resume, watch or view, accept_changed_data).path)


def _with_summary(path: Path) -> Run:
    """Return a run, with the scores and the verdict that tables of runs read if it is finished."""
    trained = Run(path)
    if trained.status == "finished":
        write_summary(path)
    return trained


def _settings(
    model: Any,
    prompts: Any,
    reward: Any,
    heldout: Any,
    tokenizer: Any,
    keywords: Mapping[str, Any],
    overrides: Overrides,
) -> dict[str, Any]:
    """Return the nested settings of a run: the defaults for the model, over them what the user gave."""
    rewards = reward_entries(reward)  # before anything is written
    names = {"algorithm": ALGORITHM, "task": "prompts", "backend": BackendSection().name}
    settings = configs.merge(nested(keywords, names), overrides)
    folder = Path(configs.validate(RunSection, settings.get("run", {}), "run").folder).expanduser() / FOLDER
    model_settings = {"path": model_path(model, tokenizer, folder)}
    args = prompts_args(prompts, heldout, folder)
    if len(rewards) == 1:
        args["metric"] = next(iter(rewards)).rpartition(":")[2]  # evaluations are then called what the reward is
    settings = _overlay(
        {"model": model_settings, "task": {"name": "prompts", "args": args}, "rewards": rewards}, settings
    )
    task_settings = configs.validate(plugins.load("task", "prompts").Settings, settings["task"]["args"], "task.args")
    task = plugins.open_task("prompts", task_settings, 0)
    problems, judges = (plugins.problems_of(task, split) for split in ("train", "heldout"))
    facts = None
    if settings.get("backend", {}).get("name", names["backend"]) in _FOLDER_BACKENDS:
        answers = [answer for problem in problems if (answer := task.gold(problem)) is not None]
        facts = model_facts(configs.validate(ModelSection, settings["model"], "model"), answers)
    return _overlay(defaults(settings, facts, len(problems), len(judges)), settings)


def _overlay(base: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**base, **top}
    for key in base.keys() & top.keys():
        if isinstance(base[key], Mapping) and isinstance(top[key], Mapping):
            merged[key] = _overlay(base[key], top[key])
    return merged


def _settings_line(config: Config) -> str:
    """Return what a run trains with, by the names of the keyword arguments."""
    values = [
        (name if name != "name" else section, getattr(getattr(config, section), name)) for section, name in _PRINTED
    ]
    values += config.algorithm.args.model_dump(exclude_unset=True).items()
    return " ".join(f"{name}={value}" for name, value in values)


@contextmanager
def _view(enabled: bool) -> Iterator[Watch]:
    """Show a run while it goes on: in a notebook's cell, or as the command line does; or not at all."""
    if not enabled:
        yield Watch()
        return
    if in_notebook():
        with NotebookView() as view, heard_by(view.count, view.begin):
            yield view.watch
        return
    with Progress() as progress, heard_by(progress.count, progress.begin):
        yield joined(progress.watch, Watch(opened=lambda run: progress.note(f"run directory: {near(run.path)}")))
