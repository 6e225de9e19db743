"""What a caller gives in Python: settings as keywords, and prompts, models and rewards that a session holds in memory.

These are written once into files that a run can be repeated from. A file is named by a digest of its content, so that
the same prompts or weights are never written twice. ``learning_rate=1e-4`` is ``update.learning_rate``.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence, Sized
from datetime import date, time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel

from steadyrl.core import plugins
from steadyrl.core.config import PLUGIN_NAMES, Config, settings_class
from steadyrl.core.errors import ConfigError, DataError, SteadyError, exception_line
from steadyrl.core.plugins import require, session_path
from steadyrl.core.rundir import write_text
from steadyrl.core.words import did_you_mean
from steadyrl.loop.tasks.data_files import JUDGES, SPLIT_IN, TRAIN

FOLDER = ".inputs"  # hidden, for what looks for runs and logs passes over it
_DIGITS = 12  # of a digest in a name
_MISSING = ("NaTType", "NAType")  # how pandas writes that a value is missing, beside NaN
_MAX_STREAMED = 1_000_000  # rows of a stream, which may have no end; what has a length is read to its end
_FORMS = "texts, dicts with a 'prompt', lists of messages, a DataFrame, a Dataset, a file, a folder, or a hub name"
_SECTIONS = {
    name: field.annotation
    for name, field in Config.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
}
# Their settings go before others of the same name: epochs are passes over the prompts, and evaluations sample as
# training does unless they have a temperature of their own.
_PREFERRED_SECTIONS = ("run", "sampling")


def prompts_args(prompts: Any, heldout: Any, folder: Path) -> dict[str, Any]:
    """Return the settings of the task ``prompts`` that read the prompts, writing what is no file yet.

    Args:
        prompts: A path, a name on the hub, rows, or a dict of rows by the names of splits, as a DatasetDict is.
        heldout: The same for the prompts that judge; a number in (0, 1) is the share of ``prompts`` to hold out, and
            None leaves the choice to the task.
        folder: Where files are written.

    Raises:
        DataError: Something is no prompt, or there are fewer than two and no others judge.
    """
    args: dict[str, Any] = {}
    if isinstance(prompts, Mapping):
        splits: dict[str, Any] = {}  # by the words that name the splits of folders; of train_2 and train the latter
        for name in sorted(prompts, key=lambda name: name in SPLIT_IN):
            splits |= {split: prompts[name] for split, words in SPLIT_IN.items() if words.search(str(name))}
        prompts = splits.get(TRAIN, prompts)  # what has no such split is refused where rows are read
        if heldout is None:
            heldout = next((splits[name] for name in JUDGES if name in splits), None)
    if isinstance(heldout, float | np.floating):
        args["heldout_share"] = float(heldout)
    elif isinstance(heldout, int | np.integer):
        raise DataError(f"heldout: got {heldout}; expected a share of the prompts between 0 and 1, or {_FORMS}")
    elif heldout is not None:
        args["heldout"] = _path_of_rows("heldout", heldout, folder)
    return {"path": _path_of_rows("prompts", prompts, folder, min_rows=1 if "heldout" in args else 2), **args}


def _path_of_rows(argument: str, rows: Any, folder: Path, min_rows: int = 1) -> str:
    if isinstance(rows, str | Path) and str(rows):
        return str(rows)
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in _rows(argument, rows)]
    if len(lines) < min_rows:
        hint = "; give two or more, for one has to judge the training of the other, or heldout=..." if lines else ""
        raise DataError(f"{argument}: got {len(lines) or 'none'}; expected {_FORMS}{hint}")
    text = "".join(lines)
    path = folder / f"{argument}-{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:_DIGITS]}.jsonl"
    if not path.is_file():
        write_text(path, text)
    return str(path)


def _rows(argument: str, rows: Any) -> Iterable[dict[str, Any]]:
    pandas = sys.modules.get("pandas")  # who passes a DataFrame has imported it; nobody else waits for that
    if pandas is not None and isinstance(rows, pandas.DataFrame):
        rows = rows.to_dict("records")
    if isinstance(rows, Mapping):
        splits = f"rows under '{TRAIN}', or " if argument == "prompts" else ""
        raise DataError(
            f"{argument}: got a dict of {', '.join(map(str, rows)):.200}; expected {splits}{_FORMS}; of a dict of "
            "columns Dataset.from_dict makes a Dataset, and Dataset.select takes some rows of one"
        )
    if not isinstance(rows, Iterable):
        raise DataError(f"{argument}: got {type(rows).__name__}; expected {_FORMS}")
    for number, row in enumerate(rows):
        if number >= _MAX_STREAMED and not isinstance(rows, Sized):
            raise DataError(
                f"{argument}: got a stream of more than {_MAX_STREAMED:,} rows; expected as many as the run can use: "
                "take its first ones, as in stream.take(10_000) or itertools.islice(stream, 10_000)"
            )
        cell = f"{argument}[{number}]"
        if isinstance(row, Mapping):
            yield {str(key): _plain(value, f"{cell}['{key}']") for key, value in row.items()}
        elif isinstance(row, str | list | tuple):
            yield {"prompt": _plain(row, cell)}
        else:
            raise DataError(f"{cell} is {row!r:.80} ({type(row).__name__}); expected {_FORMS}")


def _plain(value: Any, location: str) -> Any:
    """Return a value as JSON holds it; a missing number is None."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _plain(item, location) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, location) for item in value]
    if type(value).__name__ in _MISSING or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, date | time):
        return value.isoformat()
    if value is None or isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise DataError(
        f"{location} is {value!r:.80} ({type(value).__name__}), which no JSON file holds; leave the column out, or "
        "make texts or numbers of it"
    )


def model_path(model: Any, tokenizer: Any, folder: Path) -> str:
    """Return where a model lies: as it is where it is a name or folder, else where it is saved, which it is once.

    Args:
        model: "base", a hub name, a folder, or a model of transformers that is loaded.
        tokenizer: Of a loaded model, or its name; None takes that of ``model.name_or_path``.
        folder: Where it is saved.

    Raises:
        ConfigError: It is no model, an adapter around one, or comes without a tokenizer.
    """
    if isinstance(model, str | Path):
        if tokenizer is not None:
            raise ConfigError(
                f"tokenizer: model='{model}' is trained with the tokenizer of its folder; give tokenizer= beside a "
                "loaded model only"
            )
        return str(model)
    kind, methods = type(model).__name__, ("save_pretrained", "get_input_embeddings")  # of pipelines the first alone
    if isinstance(model, type) or not all(callable(getattr(model, name, None)) for name in methods):
        raise ConfigError(
            f"model: got {kind}; expected 'base', a folder, a hub name, or a loaded causal language model of "
            "transformers"
        )
    if callable(getattr(model, "merge_and_unload", None)):
        raise ConfigError(f"model: got {kind}, an adapter around a model; give model.merge_and_unload()")
    if tokenizer is None or isinstance(tokenizer, str | Path):
        name = str(tokenizer or getattr(model, "name_or_path", ""))
        lacking = f"model: the {kind} carries no tokenizer; give it too: tokenizer=..."
        if not name:
            raise ConfigError(lacking)
        try:
            tokenizer = require("transformers").AutoTokenizer.from_pretrained(name)
        except SteadyError:
            raise
        except Exception as error:  # transformers raises many kinds
            raise ConfigError(f"{lacking} (there is none in '{name}')") from error
    if not callable(getattr(tokenizer, "save_pretrained", None)):
        raise ConfigError(f"tokenizer: got {type(tokenizer).__name__}; expected one of transformers, or a name")
    folder.mkdir(parents=True, exist_ok=True)
    # The name is a digest of the files, so they are written first; in this folder, for a rename stays on one disk.
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        saved = Path(temporary) / "model"
        try:
            model.save_pretrained(saved)
        except (RuntimeError, ValueError) as error:  # weights on the device "meta", above all
            raise ConfigError(
                f"model: the {kind} cannot be saved ({exception_line(error)}); expected one with its weights in memory"
            ) from error
        tokenizer.save_pretrained(saved)
        destination = folder / f"model-{_digest(saved)}"
        if not destination.is_dir():
            saved.rename(destination)
    return str(destination)


def _digest(folder: Path) -> str:
    hasher = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        hasher.update(file.name.encode())
        with file.open("rb") as opened:
            hasher.update(hashlib.file_digest(opened, "sha256").digest())
    return hasher.hexdigest()[:_DIGITS]


def reward_entries(reward: Any) -> dict[str, Any]:
    """Return the section ``rewards`` of a config for what a user calls a reward.

    Args:
        reward: A function, the name or import path of a reward, a list of these, or a dict: a name with a function, a
            name with a weight or a table of settings, or a function with a weight.

    Raises:
        ConfigError: It is something else.
    """
    if not isinstance(reward, Mapping):
        rewards = reward if isinstance(reward, Sequence) and not isinstance(reward, str) else [reward]
        entries = [_reward_entry(function, 1.0) for function in rewards]
    else:
        entries = [_reward_entry(key, value) for key, value in reward.items()]
    weights: dict[str, Any] = {}
    for function, name, weight in entries:
        weights[name if function is None else _unique_path(function, name, weights)] = weight
    return weights


def _reward_entry(key: Any, value: Any) -> tuple[Any, str, Any]:
    """Return a function and the name that it gets, or None and the name of a reward; and the weight."""
    if isinstance(key, str) and callable(value):
        if not key.isidentifier():
            raise ConfigError(f"reward: got the name '{key:.80}'; expected letters, digits and underscores")
        return value, key, 1.0
    if isinstance(key, str):
        return None, key, value
    if not callable(key):
        raise ConfigError(
            f"reward: got {key!r:.80} ({type(key).__name__}); expected a function (problem, rollout), a function of "
            "'completion' and columns of the data, or one of TRL's 'completions'; the name of a built-in reward; a "
            "list of these; or a dict of names to functions"
        )
    inner = key.func if isinstance(key, partial) else key  # a partial has no name of its own
    name = getattr(inner, "__name__", type(inner).__name__)
    return key, name if name.isidentifier() else "reward", value


def _unique_path(function: Any, name: str, weights: Mapping[str, Any]) -> str:
    """Return the import path of a function; one that would share its name with another reward gets a number."""
    names = {path.rpartition(":")[2] for path in weights}
    candidates = (name, *(f"{name}_{number}" for number in range(2, len(names) + 2)))
    return session_path(function, next(candidate for candidate in candidates if candidate not in names))


def nested(keywords: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return keyword arguments as nested settings; those that are None are left out.

    Args:
        keywords: A section with a table of its settings, or with the name of its plug-in
            (``algorithm="ppo"``); or a setting of a section or of a plug-in.
        names: The plug-in of each section where the keywords name none.

    Raises:
        ConfigError: No setting has a name, or more than one has; with every such name.
    """
    remaining = {keyword: value for keyword, value in keywords.items() if value is not None}
    settings: dict[str, dict[str, Any]] = {}
    for keyword in [keyword for keyword in remaining if keyword in _SECTIONS]:
        value = remaining.pop(keyword)
        if not isinstance(value, Mapping) and keyword not in PLUGIN_NAMES:
            raise ConfigError(f"{keyword}: got {value!r:.80}; expected a dict of its settings")
        settings[keyword] = dict(value) if isinstance(value, Mapping) else {PLUGIN_NAMES[keyword]: value}
    plugin_settings = {
        section: settings_class(
            plugins.load(section, str(settings.get(section, {}).get(PLUGIN_NAMES[section], name))), BaseModel
        )
        for section, name in names.items()
    }
    problems = []
    for keyword, value in remaining.items():
        try:
            section, *inner = _table_of(keyword, plugin_settings)
        except ConfigError as error:
            problems.append(str(error))
            continue
        table = settings.setdefault(section, {})
        for key in inner:
            table = table.setdefault(key, {})
        table[keyword] = value
    if problems:
        raise ConfigError("; ".join(problems))
    return settings


def _table_of(keyword: str, plugin_settings: Mapping[str, type[BaseModel] | None]) -> tuple[str, ...]:
    """Return the keys of the table that holds a setting."""
    tables: list[tuple[str, ...]] = [
        (section,) for section, fields in _SECTIONS.items() if keyword in fields.model_fields
    ]
    tables = [table for table in tables if table[0] in _PREFERRED_SECTIONS] or tables
    tables = tables or [
        (section, "args") for section, fields in plugin_settings.items() if fields and keyword in fields.model_fields
    ]
    if len(tables) == 1:
        return tables[0]
    if tables:
        choices = " or ".join(f"{'.'.join(table)}.{keyword}" for table in tables)
        raise ConfigError(
            f"{keyword} may be {choices}; say which one: overrides={{'{'.'.join(tables[0])}.{keyword}': ...}}"
        )
    if answer := plugins.of_peers("settings").get(keyword):
        raise ConfigError(f"no setting is called {keyword}; it is {answer} here")
    classes = [*_SECTIONS.values(), *filter(None, plugin_settings.values())]
    names = sorted({*_SECTIONS, *(name for fields in classes for name in fields.model_fields)})
    hint = did_you_mean(keyword, names, "docs/config.md lists all settings")
    raise ConfigError(f"no setting is called {keyword}; {hint}")
