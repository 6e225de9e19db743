"""A file or folder of prompts as a task: JSON lines, parquet, CSV, or what ``datasets`` saved.

    {"prompt": "What is 17 + 25?", "id": "sum-1", "answer": 42, "gold": "42"}
    {"prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 17 + 25?"}]}

A prompt is a text or a list of messages. ``id`` may be absent. The id is then derived from the prompt, so a prompt
keeps its id and its side of the split when lines are added around it. Copies of a prompt are on one side, whatever
their ids. ``gold`` may contain a known good answer. The names of the three columns are settings. Every column except
the prompt reaches the rewards through ``Problem.columns``.
"""

from __future__ import annotations

import hashlib
import json
import re
import reprlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from steadyrl.core.errors import DataError
from steadyrl.core.protocols import PromptLimit, RewardFn, Task
from steadyrl.core.sections import PathName, PathText, Section
from steadyrl.core.types import Message, Problem, conversation_text
from steadyrl.loop.tasks.columns import require_plain, require_read
from steadyrl.loop.tasks.data_files import DataFiles, find_data
from steadyrl.loop.tasks.jsonl import checked_text, held_out_ids, kind_of
from steadyrl.loop.tasks.rows import read_rows

# 64 bits: among ten million files of a million prompts, fewer than one has a collision.
_ID_DIGITS = 16
# What str and json.dumps make of a list of messages, as tables of pandas have it in CSV.
_WRITTEN_MESSAGES = re.compile(r"""\s*\[\s*\{\s*(['"])(role|content)\1\s*:""")
# Roles of messages, as an error speaks of them.
_ROLES = {
    "system": "a system",
    "developer": "a developer",
    "user": "the user's",
    "assistant": "an assistant's",
    "tool": "a tool's",
}


class PromptsTask(Task):
    """Prompts of a file, read and checked when the task is made; see Task, Limited and Sourced."""

    class Settings(Section):
        """Settings of the prompts task."""

        free_on_resume = frozenset({"path", "heldout"})  # files may move; that they hold the same problems is checked

        path: PathName
        """A file with a prompt per row (JSON lines, parquet, Arrow or CSV), a pattern of such files, a folder, whose
        splits are found as `datasets` finds them, or a data set of the Hugging Face hub, as OWNER/NAME."""
        config: str = ""
        """Configuration of the folder's data set, where it has several, such as 'main'."""
        split: str = ""
        """Split of the folder to train on. Empty takes 'train', or the only one that is neither 'validation' nor
        'test'."""
        heldout: PathText = ""
        """A second file or folder for evaluations, or the name of a split of the first. Empty takes the first's split
        'validation' or else 'test', and without these holds out a share of the training problems."""
        heldout_share: float = Field(0.2, gt=0, lt=1)
        """Share of the training problems that are held out if nothing else is there for evaluations."""
        metric: str = Field("", description="Reward part that evaluations compare. Empty compares the weighted total.")
        prompt_column: str = Field("prompt", description="Column of the prompt: a text, or a list of messages.")
        id_column: str = Field("id", description="Column of the problem's id. It may be absent, and empty ignores it.")
        gold_column: str = "gold"
        """Column of a known good answer, or of a list of them. It may be absent."""
        ignore_columns: list[str] = Field([])
        """Columns that other trainers put into the prompt, such as 'tools' or 'images', and that go to the rewards
        alone here. Otherwise a row with such a column is refused."""
        prompt_tokens: int = Field(0, ge=0)
        """Maximum tokens per prompt, chat template included. 0 allows what the model's positions leave."""
        long_prompts: Literal["refuse", "drop", "cut"] = Field("refuse")
        """What becomes of a longer prompt: 'refuse' ends the command, 'drop' leaves the problem out, 'cut' removes the
        beginning of its longest text, but never of a system message."""

    name = "prompts"

    def __init__(self, settings: Settings, seed: int = 0) -> None:
        """Read the files.

        The split does not depend on the seed, so runs with different seeds are compared on the same held-out problems.

        Raises:
            DataError: A file has a defect; the error names the first one by file and line.
        """
        self.metric = settings.metric
        self.prompt_limit = PromptLimit(settings.prompt_tokens, settings.long_prompts)
        self._gold = settings.gold_column
        data = find_data(Path(settings.path), settings.config)
        if settings.config and settings.config != data.configuration:
            raise DataError(f"'{data.path}' has no configurations; remove task.args.config = '{settings.config}'")
        split = data.to_train(settings.split)
        heldout_files, heldout_source = _heldout_files(data, split, settings)
        source = data.named(split)
        locations: dict[str, str] = {}
        rows = _rows(source, data.splits[split], settings, locations)
        if heldout_files:
            heldout = _rows(heldout_source, heldout_files, settings, locations)
        else:
            smallest: dict[str, str] = {}  # id of the copies of a prompt; it decides for all of them
            for problem, prompt_id in rows:
                smallest[prompt_id] = min(problem.id, smallest.get(prompt_id, problem.id))
            if len(smallest) < 2:
                raise DataError(f"{source} has one prompt; expected two or more, or task.args.heldout = another file")
            held_out = held_out_ids(smallest.values(), settings.heldout_share)
            heldout = [row for row in rows if smallest[row[1]] in held_out]
            rows = [row for row in rows if smallest[row[1]] not in held_out]
        self._train, self._heldout = (tuple(problem for problem, _ in half) for half in (rows, heldout))
        self.sources = {"train": source, "heldout": heldout_source or "held out of them"}

    def problems(self, split: Literal["train", "heldout"]) -> Sequence[Problem]:
        """Return the problems of a split in the order of their file."""
        return self._train if split == "train" else self._heldout

    def rewards(self) -> Mapping[str, RewardFn]:
        """Return no reward: the section [rewards] names the user's rewards by import path."""
        return {}

    def gold(self, problem: Problem) -> str | None:
        """Return the known good answer, the first one of a list, or None if a problem has none."""
        gold = _as_integer(next(iter(_answers(problem.columns.get(self._gold))), None))
        return None if gold is None else str(gold)

    def ask(self, text: str) -> Problem:
        """Return the text as a new problem, behind the system message that all training problems share, if they do."""
        first = [problem.messages[0] if problem.messages else {} for problem in self._train]
        systems = {message["content"] if message.get("role") == "system" else "" for message in first}
        (system,) = systems if len(systems) == 1 else ("",)
        if not system:
            return Problem("asked", text)
        messages = ({"role": "system", "content": system}, {"role": "user", "content": text})
        return Problem("asked", text, messages=messages)


def _heldout_files(data: DataFiles, trained: str, settings: PromptsTask.Settings) -> tuple[Sequence[Path], str]:
    """Return the files of held-out problems and where they are; no files where a share of the others is held out."""
    if not data.is_folder or (settings.heldout and settings.heldout not in data.splits):
        if not settings.heldout:
            return (), ""
        heldout_data = find_data(Path(settings.heldout), settings.config)
        split = heldout_data.to_judge_alone()
        return heldout_data.splits[split], heldout_data.named(split)
    if settings.heldout == trained:
        raise DataError(
            f"task.args.heldout = '{trained}' is the split that trains; name another one, or leave it empty"
        )
    split = settings.heldout or data.to_judge(trained)
    return (data.splits[split], data.named(split)) if split else ((), "")


def _rows(
    source: str, files: Sequence[Path], settings: PromptsTask.Settings, locations: dict[str, str]
) -> list[tuple[Problem, str]]:
    """Return the problems of a split, each with the id of what its prompt says, which all copies of a prompt share.

    ``locations`` collects the place of each id, over all files of the task.
    """
    rows: list[tuple[Problem, str]] = []
    ignored = {settings.prompt_column, settings.gold_column, settings.id_column, *settings.ignore_columns}
    for location, record in read_rows(files):
        prompt, messages = _prompt(record, settings.prompt_column, location)
        texts = [message["content"] for message in messages] or [prompt]
        require_read(record, texts, ignored, location)
        fields = [[m["role"], m["content"], *([m["tool_calls"]] if m.get("tool_calls") else [])] for m in messages]
        text = json.dumps(fields) if messages else prompt
        prompt_id = hashlib.sha256(text.encode()).hexdigest()[:_ID_DIGITS]
        row_id = _as_integer(record.get(settings.id_column))
        if row_id is None:
            id, copies = prompt_id, 1
            while id in locations:  # the prompt was read before
                copies += 1
                id = f"{prompt_id}-{copies}"
        else:
            is_number = isinstance(row_id, int) and not isinstance(row_id, bool)
            id = str(row_id) if is_number else _filled(row_id, f"{location}: '{settings.id_column}'")
        if id in locations:
            raise DataError(
                f"{location}: the id '{id}' is at {locations[id]} too; remove one, change its id, or set "
                "task.args.id_column = '' for ids made of the prompts"
            )
        locations[id] = location
        for answer in _answers(record.get(settings.gold_column)):
            if not isinstance(answer, int | float | None):
                checked_text(answer, f"{location}: '{settings.gold_column}'")
        columns = {key: value for key, value in record.items() if key != settings.prompt_column}
        rows.append((Problem(id, prompt, columns, messages), prompt_id))
    if not rows:
        raise DataError(f"{source} has no prompt; expected one row with a '{settings.prompt_column}' per problem")
    return rows


def _as_integer(value: Any) -> Any:
    """Return a value; a whole number as one is written: tables make 18.0 of 18 where another row has none."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _answers(gold: Any) -> Sequence[Any]:
    """Return the known good answers of a column that holds one, or a list of them."""
    return gold if isinstance(gold, list) else [gold]


def _prompt(record: Mapping[str, Any], column: str, location: str) -> tuple[str, tuple[Message, ...]]:
    """Return the text of a row's prompt, and its messages if it is a conversation."""
    if column not in record:
        raise DataError(
            f"{location}: '{column}' is missing; the row has {', '.join(record) or 'no column'}: name the prompt's "
            "column in task.args.prompt_column"
        )
    value, where = record[column], f"{location}: '{column}'"
    if isinstance(value, str):
        if _WRITTEN_MESSAGES.match(value):
            raise DataError(
                f"{where} is a text that spells a list of messages, and the policy would read its brackets; give the "
                "list itself, in JSON lines or parquet: CSV holds texts alone"
            )
        return _filled(value, where), ()
    if not isinstance(value, list):
        raise DataError(f"{where} is {kind_of(value)}; expected text in quotes, or a list of messages")
    messages = tuple(_message(message, where) for message in value)
    last = messages[-1]["role"] if messages else ""
    if last in ("", "assistant", "system"):
        ends = f"ends with {_ROLES[last]} message" if last else "has no message"
        raise DataError(f"{where} {ends}; expected the user's last, and a known answer in task.args.gold_column")
    return _filled(conversation_text(messages), where), messages


def _message(message: Any, where: str) -> Message:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise DataError(
            f"{where} holds {reprlib.repr(message)} where a message is expected: an object whose role and content are "
            "texts"
        )
    if message["role"] not in _ROLES:
        raise DataError(f"{where} holds the role '{message['role']:.40}'; expected one of {', '.join(_ROLES)}")
    require_plain(message, where)
    calls = [_call(call, where) for call in message.get("tool_calls") or ()]
    if calls and message["role"] != "assistant":
        raise DataError(f"{where} holds {_ROLES[message['role']]} message that calls a tool; expected an assistant's")
    content = message.get("content")
    content = "" if calls and content is None else content
    chunks = content if isinstance(content, list) else []
    for chunk in chunks:
        if not isinstance(chunk, Mapping) or chunk.get("type") != "text":
            kind = chunk.get("type") if isinstance(chunk, Mapping) else kind_of(chunk)
            raise DataError(f"{where} holds a message with a part of the type '{kind}'; expected text alone")
    content_place = f"{where}: a message's content"
    text = "".join(checked_text(chunk.get("text"), content_place) for chunk in chunks) if chunks else content
    result: dict[str, Any] = {"role": message["role"], "content": checked_text(text, content_place)}
    result |= {"tool_calls": calls} if calls else {}
    result_keys = ("tool_call_id", "name") if message["role"] == "tool" else ()
    return result | {key: message[key] for key in result_keys if isinstance(message.get(key), str)}


def _call(call: Any, where: str) -> dict[str, Any]:
    """Return a call in OpenAI's form, its arguments as a dict."""
    function = call.get("function") if isinstance(call, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    arguments = function.get("arguments") or {} if isinstance(function, Mapping) else None
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            arguments = None
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise DataError(
            f"{where} holds the call {reprlib.repr(call)}; expected OpenAI's form, an object with function.name and "
            "function.arguments, which is an object or its JSON"
        )
    id = call.get("id")
    function = {"name": name, "arguments": arguments}
    return {**({"id": id} if isinstance(id, str) else {}), "type": "function", "function": function}


def _filled(value: object, where: str) -> str:
    text = checked_text(value, where)
    if not text.strip():
        raise DataError(f"{where} is empty; give it a text or remove the row")
    return text
