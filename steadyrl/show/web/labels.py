"""What people write beside runs: names, tags, notes, groups, hidden runs and the columns of the table.

It is the only thing that the pages write: one small file, ``labels.json``, in the folder that is served.
Runs are named in it by their path below that folder. The file is read anew at every request,
and written whole beside its place first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any

from steadyrl.core.errors import AccessError, RunError, SteadyError
from steadyrl.core.rundir import read_json, write_json

FILE = "labels.json"
LONGEST = {"name": 120, "group": 60, "note": 2000}  # characters
MOST_TAGS, LONGEST_TAG = 12, 40
MOST_BYTES = 4 << 20
MOST_COLUMNS = 40


@dataclass(frozen=True)
class Label:
    """What was written beside a run; "" and () where nothing was."""

    name: str = ""
    group: str = ""
    note: str = ""
    tags: tuple[str, ...] = ()
    hidden: bool = False


@dataclass(frozen=True)
class Written:
    """All that was written: labels by the path of the run, the columns of the table; None for those it has at first."""

    runs: Mapping[str, Label] = field(default_factory=dict)
    columns: tuple[str, ...] | None = None
    problem: str = ""

    def of(self, name: str) -> Label:
        """Return the label of a run by its path below the folder."""
        return self.runs.get(name, Label())


class Labels:
    """The file of labels of a folder."""

    def __init__(self, root: Path):
        self._file = root / FILE
        self._alone = Lock()

    def read(self) -> Written:
        """Return what the file holds; of a file that cannot be read nothing, and why."""
        try:
            return self._read()
        except SteadyError as error:
            return Written(problem=str(error))

    def change(self, names: Sequence[str], **fields: Any) -> None:
        """Change some fields of the labels of runs.

        Args:
            names: Paths of runs below the folder.
            fields: Of ``Label``; text is shortened to ``LONGEST``. "add_tags" and "remove_tags" change single tags.

        Raises:
            RunError: The file is damaged, and would be lost.
            AccessError: It cannot be written.
        """
        with self._alone:
            written = self._read()
            runs = {**written.runs, **{name: _changed(written.of(name), fields) for name in names}}
            self._write(replace(written, runs={name: label for name, label in runs.items() if label != Label()}))

    def choose(self, columns: Sequence[str] | None) -> None:
        """Keep the columns of the table; None for those it has at first. Errors as of ``change``."""
        with self._alone:
            chosen = None if columns is None else tuple(dict.fromkeys(columns))[:MOST_COLUMNS]
            self._write(replace(self._read(), columns=chosen))

    def _read(self) -> Written:
        self._refuse_links()
        if not self._file.exists():
            return Written()
        if self._file.stat().st_size > MOST_BYTES:
            raise RunError(f"'{FILE}' has more than {MOST_BYTES >> 20} MiB; remove it or restore a smaller one")
        record = read_json(self._file)
        runs, columns = record.get("runs", {}), record.get("columns")
        if not isinstance(runs, Mapping) or not isinstance(columns, list | None):
            raise RunError(f"'{FILE}' is damaged: 'runs' is no table or 'columns' is no list; restore or remove it")
        labels = {name: _changed(Label(), label) for name, label in runs.items() if isinstance(label, Mapping)}
        return Written(labels, None if columns is None else tuple(map(str, columns[:MOST_COLUMNS])))

    def _write(self, written: Written) -> None:
        self._refuse_links()
        runs = {
            name: {key: value for key, value in asdict(label).items() if value} for name, label in written.runs.items()
        }
        write_json(self._file, {"runs": runs, "columns": None if written.columns is None else list(written.columns)})

    def _refuse_links(self) -> None:
        """Refuse links, which a folder from elsewhere may hold so that another file is written."""
        for path in (self._file, self._file.with_name(f"{FILE}.part")):
            if path.is_symlink() or (path.exists() and not path.is_file()):
                raise AccessError(
                    f"'{path.name}' is no plain file; remove it from the folder of runs to name runs here"
                )


def _changed(label: Label, fields: Mapping[str, Any]) -> Label:
    """Return a label with other fields, each as long as it may be."""
    texts = {name: _text(fields[name], most) for name, most in LONGEST.items() if name in fields}
    tags = _tags(fields["tags"]) if "tags" in fields else label.tags
    tags = tuple(tag for tag in tags if tag not in _tags(fields.get("remove_tags", ())))
    tags = tuple(dict.fromkeys((*tags, *_tags(fields.get("add_tags", ())))))[:MOST_TAGS]
    hidden = fields.get("hidden", label.hidden)
    return replace(label, **texts, tags=tags, hidden=hidden is True)


def _text(value: Any, most: int) -> str:
    return " ".join(value.split())[:most] if isinstance(value, str) else ""


def _tags(value: Any) -> tuple[str, ...]:
    """Return tags from a list, or from a text with commas."""
    parts = value.split(",") if isinstance(value, str) else value if isinstance(value, list | tuple) else ()
    texts = (_text(part, LONGEST_TAG) for part in parts)
    return tuple(dict.fromkeys(text for text in texts if text))[:MOST_TAGS]
