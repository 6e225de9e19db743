"""`steadyrl new`: a config and a reward file for the user's own data. What the data and the model tell is not asked."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
from jinja2 import PackageLoader

from steadyrl.cli.activity import following
from steadyrl.cli.terminal import note, printable
from steadyrl.core.config import to_toml
from steadyrl.core.counting.count import begin
from steadyrl.core.errors import ConfigError, DataError
from steadyrl.core.plugins import make
from steadyrl.core.rundir import write_text
from steadyrl.core.types import Problem
from steadyrl.loop.rewards.answers import final_number
from steadyrl.loop.tasks.data_files import JUDGES, NO_DATA, SPLIT_IN, find_data, kind_of_file, may_be_on_hub
from steadyrl.loop.tasks.rows import read_rows
from steadyrl.show.page.templates import environment

# Names of columns in data sets of this field, the usual first.
PROMPTS = ("prompt", "question", "problem", "instruction", "query", "request", "input", "messages", "conversations")
ANSWERS = ("gold", "answer", "solution", "response", "completion", "output", "target", "label", "expected_answer")
SHIPPED = "base"  # the model
_ROWS = 1000  # that are looked at
_CELL = re.compile(r"^[\d.,]+$|[.?!:]$|(\S+\s+){3}\S")  # a number or a sentence, which names no column
_PASSES, _FEWEST_STEPS = 3, 30


@dataclass(frozen=True)
class Data:
    """The data of a new config."""

    source: Mapping[str, str]
    """The settings of the task ``prompts`` that name the data: path, where needed heldout, config and split."""
    prompt: str
    """The column of the prompt."""
    answer: str
    """The column of the right answer, "" where there is none."""
    kind: str
    """Of the right answers: "number", "text", or "free" where there are none."""


def new_command(
    folder: Annotated[Path, typer.Argument(help="where config.toml and rewards.py are written")] = Path("."),
    data: Annotated[
        Path | None,
        typer.Option(
            help="JSON lines, JSON, CSV or parquet with a prompt in each row, a folder of such files, or a data set of "
            "the Hugging Face hub as OWNER/NAME; the file in FOLDER if left out"
        ),
    ] = None,
    model: Annotated[str, typer.Option(help="a model folder or a name on the hub; base ships with steadyrl")] = SHIPPED,
    prompt: Annotated[str, typer.Option(help="the column of the prompt, if not clear from the names")] = "",
    answer: Annotated[str, typer.Option(help="the column of the right answer, if not clear from the names")] = "",
    config: Annotated[str, typer.Option(help="the configuration of the data set, if there are several")] = "",
    split: Annotated[str, typer.Option(help="the split to train on, if not clear from the names")] = "",
) -> None:
    """Write config.toml and rewards.py for your own data: columns, answer length, batch and rate follow from the data.

    The rewards compare an answer with the right answer if the data have a column of right answers.
    """
    for name in ("config.toml", "rewards.py"):
        if (folder / name).exists():
            raise ConfigError(
                f"'{folder / name}' is there already; move it, or name another folder: steadyrl new FOLDER"
            )
    with following():
        if data is None or (data.is_dir() and folder.resolve().is_relative_to(data.resolve())):
            source, files = find_files(data or folder)  # the folder will hold runs, whose files are no data
        else:
            source, files = find_split(data, config, split)
        rows = [row for _, row in islice(read_rows(files), _ROWS)]
        if not rows:
            raise DataError(f"'{source['path']}' has no row; expected one with a prompt in each line")
        columns = find_columns(source["path"], rows, prompt, answer)
        kind = kind_of_answers(row.get(columns[1]) for row in rows) if columns[1] else "free"
        dataset = Data(source, *columns, kind)
        settings = choose_settings(dataset, model)
    write_text(folder / "config.toml", config_text(dataset, model, settings, folder))
    template = environment(PackageLoader("steadyrl.cli"), str, autoescape=False).get_template("rewards.py.j2")
    write_text(folder / "rewards.py", template.render(kind=dataset.kind, answer=json.dumps(dataset.answer)))
    answers = {"number": "numbers", "text": "texts"}.get(dataset.kind)
    right = f"right answers in '{dataset.answer}' ({answers})" if answers else "no right answers"
    print(printable(f"data: {dataset.source['path']}, prompts in '{dataset.prompt}', {right}"))
    if kind_of_file(files[0]) == "csv" and any(map(_CELL.search, rows[0])):
        note(
            f"the first line was taken for names of columns: {', '.join(rows[0])}; if it is a row, put a line of names "
            "above it, such as prompt,answer, and begin again"
        )
    if model == SHIPPED:
        print(
            f"model: {SHIPPED}, which ships with steadyrl to try things out. It knows Python's documentation and no "
            "more; for other answers name a pretrained model: --model FOLDER or OWNER/NAME"
        )
    print(printable(f"written: {folder / 'config.toml'}, {folder / 'rewards.py'}"))
    if dataset.kind == "free":
        print("say in rewards.py what a good answer is: the data do not tell")
    change = "" if folder.resolve() == Path.cwd() else f"cd {shlex.quote(str(folder))} && "
    print(printable(f"next: {change}steadyrl task check config.toml && steadyrl train config.toml"))


def find_files(folder: Path) -> tuple[dict[str, str], Sequence[Path]]:
    """Return the settings that name the data file of a folder to train on, and another for evaluations; and the first.

    Raises:
        DataError: It has none, or several and their names do not tell which to train on.
    """
    if not folder.is_dir():
        raise DataError(f"there is no folder '{folder}'; make it and put a data file into it, or add --data FILE")
    files = [path for path in sorted(folder.iterdir()) if path.is_file() and kind_of_file(path)]
    files = [path for path in files if path.name not in NO_DATA]
    judges = [path for path in files if any(SPLIT_IN[split].search(path.stem) for split in JUDGES)]
    trained = [path for path in files if path not in judges]
    if len(trained) > 1:
        trained = [path for path in trained if SPLIT_IN["train"].search(path.stem)] or trained
    if len(trained) == 1:
        heldout = {"heldout": str(judges[0])} if len(judges) == 1 else {}
        return {"path": str(trained[0]), **heldout}, trained
    names = ", ".join(path.name for path in files)
    raise DataError(
        f"'{folder}' holds {f'the data files {names}' if files else 'no data file (JSON lines, JSON, CSV, parquet)'}; "
        "name the one to train on: --data FILE"
    )


def find_split(data: Path, config: str, split: str) -> tuple[dict[str, str], Sequence[Path]]:
    """Return the settings that name the split of a data set to train on, and the split's files.

    Raises:
        DataError: There is no such data set, or nothing tells which configuration or split to take.
    """
    try:
        dataset = find_data(data, config)
        files = dataset.splits[dataset.to_train(split)]
    except DataError as error:  # its remedies are settings of a config that is not written yet
        raise DataError(re.sub(r"task\.args\.(config|split)( =)?", r"--\1", str(error))) from error
    if config and dataset.configuration != config:
        raise DataError(f"'{data}' has no configurations; leave --config {config} away")
    settings = {"path": data.as_posix(), "config": config, "split": split}
    return {name: value for name, value in settings.items() if value}, files


def find_columns(path: str, rows: Sequence[dict[str, Any]], prompt: str, answer: str) -> tuple[str, str]:
    """Return the columns of the prompt and of the right answer, "" where there is none.

    Raises:
        DataError: A column that is named is not there, or nothing tells which is the prompt.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    for column in filter(None, (prompt, answer)):
        if column not in names:
            raise DataError(f"'{path}' has no column '{column}'; its columns are {', '.join(names) or 'none'}")
    texts = [name for name in names if all(isinstance(row.get(name), str | list) for row in rows)]
    filled = [name for name in texts if any(row[name] and not str(row[name]).isspace() for row in rows)]
    prompt = prompt or next((name for name in PROMPTS if name in filled), "")
    if not prompt:
        candidates = [name for name in filled if name not in (*ANSWERS, answer)]
        if not candidates:
            raise DataError(
                f"'{path}' has no column with a text or messages in every row, so none can be the prompt; its columns "
                f"are {', '.join(names) or 'none'}"
            )
        if len(candidates) > 1:
            raise DataError(
                f"'{path}' has the columns {', '.join(names) or 'none'}, and nothing tells which is the prompt; add "
                "--prompt COLUMN"
            )
        prompt = candidates[0]
    plain = [name for name in names if all(isinstance(row.get(name), str | int | float) for row in rows)]
    return prompt, answer or next((name for name in ANSWERS if name in plain and name != prompt), "")


def kind_of_answers(values: Iterable[Any]) -> str:
    """Return "number" where each right answer ends with a number or marks one with ####, else "text"."""
    texts = [str(value) for value in values]
    numbers = all(final_number(text) is not None and ("####" in text or len(text.split()) == 1) for text in texts)
    return "number" if numbers else "text"


def choose_settings(data: Data, model: str) -> dict[str, dict[str, Any]]:
    """Return settings by section: what ``steadyrl.train`` takes for such a model, and three passes over the data.

    Raises:
        SteadyError: The data or the model cannot be read.
    """
    from steadyrl.backends.huggingface.facts import model_facts  # transformers takes seconds to load
    from steadyrl.core.sections import ModelSection
    from steadyrl.loop.defaults import defaults
    from steadyrl.loop.tasks.prompts import PromptsTask

    task = make("task", "prompts", PromptsTask.Settings(**_task_args(data, data.source)), 0)
    problems: Sequence[Problem] = task.problems("train")
    answers = [str(problem.columns.get(data.answer)) for problem in problems[:_ROWS]] if data.answer else []
    begin(f"reading the model '{model}'")
    facts = model_facts(ModelSection(path=model), answers)
    settings = defaults({}, facts, len(problems), len(task.problems("heldout")))
    passes = -(-_PASSES * len(problems) // settings["rollout"]["prompts_per_step"])
    return {"run": {"steps": max(_FEWEST_STEPS, passes)}, "model": {}, **settings}


def _task_args(data: Data, source: Mapping[str, str]) -> dict[str, Any]:
    args: dict[str, Any] = dict(source)
    args |= {"prompt_column": data.prompt} if data.prompt != "prompt" else {}
    args |= {"gold_column": data.answer} if data.answer not in ("", "gold") else {}
    return args | ({"metric": "correct"} if data.answer else {})


def config_text(data: Data, model: str, settings: Mapping[str, Mapping[str, Any]], folder: Path) -> str:
    """Return the config. Its paths are those seen from its own folder, where it is run."""
    files = {name: Path(data.source[name]) for name in ("path", "heldout") if name in data.source}
    relative_paths = {name: os.path.relpath(path, folder) for name, path in files.items() if not may_be_on_hub(path)}
    args = _task_args(data, {**data.source, **relative_paths})
    model = os.path.relpath(model, folder) if Path(model).is_dir() else model
    model = f"./{model}" if Path(folder, model).is_dir() and not model.startswith(".") else model
    rewards = {"number": ("correct", "number"), "text": ("correct", "near"), "free": ("on_topic",)}[data.kind]
    weights = {name: 1.0 if i == 0 else 0.1 for i, name in enumerate(rewards)}
    first = {"run": settings["run"], "model": {"path": model, **settings["model"]}}
    later = {name: section for name, section in settings.items() if name not in first}
    return "\n".join(
        [
            "# Made by `steadyrl new` from the data and the model. In this folder:",
            "#     steadyrl task check config.toml",
            "#     steadyrl train config.toml",
            "",
            to_toml({**first, "task": {"name": "prompts", "args": args}}),
            "[rewards]    # weights of the functions in rewards.py",
            *(f'"rewards:{name}" = {weight}' for name, weight in weights.items()),
            "",
            "# By the size of the model and the lengths of the answers; "
            "`steadyrl tune config.toml` finds a better rate.",
            to_toml(later),
        ]
    )
