"""Which files of a folder belong to which configuration and split: what Hugging Face's ``load_dataset`` would read.

In this order: the ``configs`` in the front matter of README.md; the splits that ``save_to_disk`` wrote; files like
``data/train-00000-of-00002.parquet``; folders with the word of a split in their names; files with one. Where there is
no such word, everything is the split "train". Unlike there, folders that hold the same splits side by side are
configurations, of which one has to be chosen, and files of two splits at once are refused.

Source: src/datasets/data_files.py and utils/metadata.py of huggingface/datasets.
"""

from __future__ import annotations

import glob
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePath
from typing import Any

from steadyrl.core.counting.count import begin
from steadyrl.core.errors import DataError
from steadyrl.core.places import from_here
from steadyrl.core.plugins import require

TRAIN, JUDGES = "train", ("validation", "test")  # the splits that judge, the preferred one first
# What files hold, by their ending; another ending may follow, as in rows.jsonl.gz.
KINDS = {
    "parquet": "parquet",
    "arrow": "arrow",
    "feather": "arrow",
    "csv": "csv",
    "tsv": "csv",
    "json": "json",
    "jsonl": "json",
    "ndjson": "json",
}
NO_DATA = {"config.json", "dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"}
_WORDS = {"train": "train|training", "validation": "validation|valid|dev|val", "test": "test|testing|eval|evaluation"}
SPLIT_IN = {
    split: re.compile(rf"(?:^|[-._ 0-9])(?:{words})(?=[-._ 0-9]|$)", re.IGNORECASE) for split, words in _WORDS.items()
}
_SHARD = re.compile(r"(\w+(?:\.\w+)*)-\d{5}-of-(\d{5})")
_FRONT = re.compile(r"\s*---[ \t]*\r?\n(.*?)\r?\n---[ \t]*(?:\r?\n|$)", re.DOTALL)
_LONGEST_README = 1 << 20  # characters
_HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")  # owner and name

Splits = Mapping[str, Sequence[Path]]
Finders = dict[str, Callable[[], Splits]]  # by the name of the configuration


@dataclass(frozen=True)
class DataFiles:
    """The files of one configuration."""

    path: Path
    """The path as the user wrote it: of a file, a pattern of files or a folder; or a name on the hub."""
    configuration: str
    """Its name; "" where it has none."""
    splits: Splits
    """Files by the name of their split. Of one file, or of a pattern of files, that is "train"."""
    is_folder: bool
    """Whether it is a folder or a data set of the hub, which may have several splits."""

    def to_train(self, split: str) -> str:
        """Return the split to train on: the one that is named, "train", or the only one that is not there to judge.

        Raises:
            DataError: It is not there, or nothing tells which to take.
        """
        if split and split not in self.splits:
            raise DataError(f"{self._holds()}, not task.args.split = '{split}'; name one of them")
        candidates = [name for name in self.splits if name not in JUDGES]
        if split or TRAIN in self.splits or len(candidates) == 1:
            return split or (TRAIN if TRAIN in self.splits else candidates[0])
        raise DataError(
            f"{self._holds()}; say which of them to train on: task.args.split = '{next(iter(self.splits))}'"
        )

    def to_judge(self, trained: str = "") -> str:
        """Return the split that judges where the data set has its own: "validation", or else "test"; or ""."""
        return next((name for name in JUDGES if name in self.splits and name != trained), "")

    def to_judge_alone(self) -> str:
        """Return the split that judges where the whole data set is there to judge.

        Raises:
            DataError: Nothing tells which it is.
        """
        if (split := self.to_judge()) or len(self.splits) == 1:
            return split or next(iter(self.splits))
        raise DataError(f"{self._holds()}; name the file or folder of the one to judge by in task.args.heldout")

    def named(self, split: str) -> str:
        """Return how a split is spoken of: the file, or the folder with configuration and split."""
        if not self.is_folder:
            return str(self.path)
        return f"{self.path}: {', '.join(filter(None, (self.configuration, split)))}"

    def _holds(self) -> str:
        name = f"the configuration '{self.configuration}' of '{self.path}'" if self.configuration else f"'{self.path}'"
        return f"{name} has {'the splits ' if len(self.splits) > 1 else 'the split '}{', '.join(self.splits)}"


def find_data(path: Path, configuration: str = "") -> DataFiles:
    """Find the files of a data set.

    Args:
        path: A file, a pattern such as ``data/part-*.parquet``, a folder, or the name of a data set on the Hugging Face
            hub, such as ``openai/gsm8k``, whose data files are downloaded into the hub's cache.
        configuration: Which one to take of several; "" where the folder names a default, or has only one.

    Raises:
        DataError: There is nothing to read, several configurations and none is chosen, or files of a split are missing.
        MissingExtraError: README.md has configurations, and no YAML can be read.
    """
    folder = _downloaded(path) if may_be_on_hub(path) else path
    if not folder.is_dir():
        return DataFiles(path, "", {TRAIN: _named_files(path)}, is_folder=False)
    finders, default = _configurations(folder)
    name = configuration if configuration in finders else default
    if configuration and name != configuration and name != "":
        raise DataError(
            f"'{path}' has no configuration '{configuration}'; task.args.config may be {', '.join(finders)}"
        )
    if name is None:
        raise DataError(
            f"'{path}' holds the configurations {', '.join(finders)}, which are data sets of their own; choose one: "
            f"task.args.config = '{next(iter(finders))}'"
        )
    splits = finders[name]()
    for files in splits.values():
        _require_all_shards(files)
    return DataFiles(path, name, splits, is_folder=True)


def kind_of_file(path: Path) -> str:
    """Return what a file holds, one of ``KINDS``; "" for what is no data."""
    return next((KINDS[end] for end in path.name.lower().split(".")[1:] if end in KINDS), "")


def may_be_on_hub(path: Path) -> bool:
    """Return whether a path is no file or folder here, and looks like a name on the hub."""
    here = path.exists() or path.parent.is_dir() or kind_of_file(path)
    return not here and _HUB_NAME.fullmatch(path.as_posix()) is not None


def _downloaded(name: Path) -> Path:
    """Return the folder with the data files of a data set of the hub, which without a network is the cached one.

    Raises:
        DataError: The hub has no such data set, or cannot be reached and the cache has none.
    """
    hub = require("huggingface_hub")
    require("huggingface_hub.utils").disable_progress_bars()  # they would run through ours
    begin(f"reading the data set '{name.as_posix()}' of the Hugging Face hub")
    patterns = ["README.md", *(f"*.{end}{packed}" for end in KINDS for packed in ("", ".*"))]
    try:
        return Path(hub.snapshot_download(name.as_posix(), repo_type="dataset", allow_patterns=patterns))
    except (OSError, ValueError) as error:  # of the network, of the hub's answer, of a name that cannot be one
        reason = str(error).strip().partition("\n")[0]
        raise DataError(
            f"there is no file or folder '{name}', and no data set of that name from the Hugging Face hub ({reason}); "
            "check the name and the network, or write a file where the hub is reached: "
            "load_dataset(...).to_parquet('train.parquet')"
        ) from error


def _named_files(path: Path) -> list[Path]:
    if path.exists() or not glob.has_magic(str(path)):
        if not path.exists() and not path.suffix:
            raise DataError(
                f"there is no file or folder '{path}'{from_here(path)}; check the path, or name a data set of the "
                "Hugging Face hub as OWNER/NAME"
            )
        return [path]
    files = sorted(file for name in glob.glob(str(path), recursive=True) if (file := Path(name)).is_file())
    if not files:
        raise DataError(f"no file is like '{path}'; check the pattern")
    return files


def _configurations(root: Path) -> tuple[Finders, str | None]:
    """Return what finds the files of each configuration, by name, and which to take if none is named."""
    if configs := _read_front_matter(root):
        finders: Finders = {name: partial(_listed_files, root, name, configs[name]) for name in configs}
        default = [name for name, config in configs.items() if config.get("default") is True or name == "default"]
        return finders, next(iter(default if default or len(finders) > 1 else finders), None)
    saved = root / "dataset_dict.json"
    if saved.is_file():
        return {"": partial(_saved_splits, saved)}, ""
    splits = _by_split(root)
    folders: dict[str, dict[str, list[Path]]] = {}
    for split, files in splits.items():
        for file in files:
            names = [
                name
                for name in file.relative_to(root).parent.parts
                if name != "data" and not any(pattern.search(name) for pattern in SPLIT_IN.values())
            ]
            folder = "/".join(names) or "."
            folders.setdefault(folder, {}).setdefault(split, []).append(file)
    if list(folders) == ["."]:
        return {"": lambda: splits}, ""
    ordered = sorted(folders)
    return {name: partial(folders.__getitem__, name) for name in ordered}, ordered[0] if len(ordered) == 1 else None


def _is_hidden(root: Path, path: Path) -> bool:
    return any(name.startswith((".", "__")) for name in path.relative_to(root).parts)


def _of_one_kind(splits: Splits) -> dict[str, list[Path]]:
    """Return the files of the kind that most are of; parquet where as many are of another.

    A folder may hold statistics beside its data, and the same data twice. What ``datasets`` keeps beside a saved data
    set, the results of map and filter, is left out.
    """
    counts = Counter(kind_of_file(file) for files in splits.values() for file in files)
    main_kind = max(counts, key=lambda kind: (counts[kind], kind == "parquet"), default="")
    chosen = {split: [file for file in files if kind_of_file(file) == main_kind] for split, files in splits.items()}
    return {split: _without_caches(files) for split, files in chosen.items() if files}


def _without_caches(files: Sequence[Path]) -> list[Path]:
    return [file for file in files if file.suffix != ".arrow" or not file.name.startswith(("cache-", "tmp"))]


def _by_split(root: Path) -> Splits:
    """Return the data files of a folder, in the order of their names, by what folders and files are called."""
    paths = sorted(path for path in root.rglob("*") if kind_of_file(path) and path.name not in NO_DATA)
    files = [path for path in paths if path.is_file() and not _is_hidden(root, path)]
    if not files:
        raise DataError(
            f"'{root}' is a folder without data: expected files of parquet, arrow, JSON lines or CSV, or the path of "
            "one"
        )
    shards = [(match[1], file) for file in files if (match := _SHARD.match(file.name)) and file.parent == root / "data"]
    if shards:
        names = sorted({split for split, _ in shards}, key=lambda split: (split not in (TRAIN, *JUDGES), split))
        return _of_one_kind({name: [file for split, file in shards if split == name] for name in names})
    for texts in (lambda file: file.relative_to(root).parent.parts, lambda file: (file.name,)):
        splits = {
            split: [file for file in files if any(pattern.search(text) for text in texts(file))]
            for split, pattern in SPLIT_IN.items()
        }
        if any(splits.values()):
            _refuse_common(splits)
            return _of_one_kind(splits)
    return _of_one_kind({TRAIN: files})


def _require_all_shards(files: Sequence[Path]) -> None:
    """Refuse files of which each says how many there are, and some are missing: a download may have been cut off."""
    matches = [(file, match) for file in files if (match := _SHARD.match(file.name))]
    counts = Counter((file.parent, match[1], match[2]) for file, match in matches)
    for (folder, name, total), count in counts.items():
        if count < int(total):
            raise DataError(
                f"'{folder}' holds {count} of {int(total)} files {name}-*-of-{total}; download the others, or name the "
                f"files that are enough by a pattern: task.args.path = '{folder / name}-*'"
            )


def _refuse_common(splits: Splits) -> None:
    by_file: dict[Path, str] = {}
    for split, files in splits.items():
        for file in files:
            if file in by_file:
                raise DataError(
                    f"the name of '{file}' says both {by_file[file]} and {split}; rename it, or name the files of each "
                    "split: task.args.path and task.args.heldout may be files or patterns"
                )
            by_file[file] = split


def _saved_splits(listed: Path) -> Splits:
    try:
        names = json.loads(listed.read_text(encoding="utf-8"))["splits"]
        splits = {name: _without_caches(sorted((listed.parent / name).glob("*.arrow"))) for name in names}
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise DataError(f"'{listed}' is damaged ({error}); expected the names of the splits: save it again") from error
    if missing := [name for name, files in splits.items() if not files]:
        raise DataError(f"'{listed}' names the split {missing[0]}, and no arrow file of it is there; save it again")
    return splits


def _read_front_matter(root: Path) -> dict[str, Mapping[str, Any]]:
    """Return the configurations that README.md names, by name; empty where it names none."""
    readme = root / "README.md"
    if not readme.is_file():
        return {}
    with readme.open(encoding="utf-8", errors="replace") as file:
        front = _FRONT.match(file.read(_LONGEST_README))
    if front is None or not re.search(r"^configs[ \t]*:", front[1], re.MULTILINE):
        return {}
    yaml = require("yaml")
    try:
        configs = yaml.safe_load(front[1])["configs"]
        return {str(config.get("config_name", "default")): config for config in configs or ()}
    except (yaml.YAMLError, TypeError, AttributeError, RecursionError) as error:
        reason = str(error).partition("\n")[0]
        raise DataError(
            f"the configurations in '{readme}' cannot be read ({reason:.200}); expected `configs:` with a list of "
            "config_name and data_files, as `datasets` reads them"
        ) from error


def _listed_files(root: Path, name: str, config: Mapping[str, Any]) -> Splits:
    base, listed = root / _relative_path(root, name, config.get("data_dir") or "."), config.get("data_files")
    if listed is None:
        return _by_split(base)
    data_files = listed if isinstance(listed, list) else [listed]
    if not all(isinstance(data_file, Mapping) for data_file in data_files):
        data_files = [{"split": TRAIN, "path": data_files}]
    splits: dict[str, list[Path]] = {}
    for data_file in data_files:
        patterns = data_file.get("path")
        splits.setdefault(str(data_file.get("split", TRAIN)), []).extend(
            file for pattern in (patterns if isinstance(patterns, list) else [patterns])
            for file in _matching(root, base, name, pattern)
        )  # fmt: skip
    _refuse_common(splits)
    return _of_one_kind(splits)


def _matching(root: Path, base: Path, name: str, pattern: Any) -> list[Path]:
    text = _relative_path(root, name, pattern)
    try:
        matches = list(base.glob(f"{text}/*" if text.endswith("**") else text))
    except ValueError as error:
        raise DataError(f"'{root / 'README.md'}': the pattern '{text}' cannot be used ({error})") from error
    hidden = any(part.startswith((".", "__")) for part in PurePath(text).parts)
    files = sorted(path for path in matches if path.is_file() and (hidden or not _is_hidden(base, path)))
    readable = [file for file in files if kind_of_file(file)]
    if not readable:
        raise DataError(
            f"'{root / 'README.md'}' says that the configuration '{name}' is in '{text}', where "
            f"{'no file can be read' if files else 'there is no file'}; expected parquet, arrow, JSON lines or CSV: "
            "download the whole data set, or name a file in task.args.path"
        )
    return readable


def _relative_path(root: Path, name: str, pattern: Any) -> str:
    """Return a path of README.md, which must stay in its folder: a data set of others may not read other files."""
    if not isinstance(pattern, str) or PurePath(pattern).is_absolute() or "://" in pattern or ".." in pattern:
        raise DataError(
            f"'{root / 'README.md'}': the configuration '{name}' has the path {pattern!r}; expected one inside of the "
            "folder of README.md"
        )
    return pattern
