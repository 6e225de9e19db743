"""Reads users' files line by line and reports every defect with file and line; and chooses the held-out ids."""

from __future__ import annotations

import gzip
import hashlib
import itertools
import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steadyrl.core.errors import DataError
from steadyrl.core.places import from_here
from steadyrl.core.rundir import parse_json

_LONGEST_LINE = 1 << 26  # bytes
_MOST_UNPACKED = 1 << 30  # bytes of a gzipped file: a few kilobytes of one can unpack to more than any memory holds


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a UTF-8 file that are not blank, without line ends, numbered from 1.

    A file whose name ends in .gz is unpacked as it is read.

    Raises:
        DataError: While iterating, if the file is missing, unreadable, not UTF-8 or larger than any data set.
    """
    total, packed = 0, path.suffix == ".gz"
    try:
        with gzip.open(path, "rb") if packed else path.open("rb") as file:
            for number in itertools.count(1):
                line = file.readline(_LONGEST_LINE + 1)
                if not line:
                    return
                total += len(line)
                if len(line) > _LONGEST_LINE:
                    raise DataError(
                        f"{path}, line {number}: longer than {_LONGEST_LINE >> 20} MiB; expected one record"
                    )
                if packed and total > _MOST_UNPACKED:
                    raise DataError(f"{path} unpacks to more than {_MOST_UNPACKED >> 20} MiB; unpack it to use it all")
                try:
                    # Some editors put a byte-order mark in front of the first line.
                    text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    raise DataError(
                        f"{path}, line {number}: not valid UTF-8 at byte {error.start + 1} of the line; "
                        "unpack the file, or save it as UTF-8"
                    ) from error
                if text.strip():
                    yield number, text.rstrip("\r\n")
    except FileNotFoundError as error:
        raise DataError(f"there is no file {path}{from_here(path)}; check the path") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is no gzip file ({error}); download it again") from error
    except OSError as error:
        raise DataError(f"cannot read {path} ({error}); expected a readable file") from error


@dataclass(frozen=True)
class Line:
    """The JSON object of a line, and where it stands, which is the text of a line and the beginning of its errors."""

    path: Path
    number: int
    """Counted from 1."""
    record: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.path}, line {self.number}"

    def text(self, key: str) -> str:
        """Return a field. It must exist and be text, and may be empty.

        Raises:
            DataError: It is missing, of another type, or contains half a surrogate pair, which UTF-8 cannot represent.
        """
        if key not in self.record:
            raise DataError(f"{self}: '{key}' is missing; the line has {', '.join(self.record) or 'no key'}")
        return checked_text(self.record[key], f"{self}: '{key}'")

    def filled(self, key: str) -> str:
        """Return a field like ``text``, which must also contain more than white space.

        Raises:
            DataError: See ``text``; or it is empty.
        """
        value = self.text(key)
        if not value.strip():
            raise DataError(f"{self}: '{key}' is empty; give it a text or remove the line")
        return value


def read_objects(path: Path) -> Iterator[Line]:
    """Yield every line that is not blank.

    Raises:
        DataError: While iterating, if the file cannot be read or a line is anything but one JSON object.
    """
    for number, line in read_lines(path):
        try:
            value = parse_json(line, strict=True)
        except ValueError as error:
            raise DataError(
                f"{path}, line {number}: not valid JSON ({error}); expected one object per line (was the file cut off, "
                "is it a table, or has an object several lines?)"
            ) from error
        if not isinstance(value, dict):
            raise DataError(f"{path}, line {number}: got {kind_of(value)}; expected a JSON object, as in {{...}}")
        yield Line(path, number, value)


def checked_text(value: object, location: str) -> str:
    """Return a value that must be text that UTF-8 can represent.

    Raises:
        DataError: It is of another type, or contains half a surrogate pair.
    """
    if not isinstance(value, str):
        raise DataError(f"{location} is {kind_of(value)}; expected text in quotes")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{location} is not valid Unicode at character {error.start + 1} (a lone surrogate); repair the text"
        ) from error
    return value


def held_out_ids(ids: Collection[str], share: float, seed: int = 0) -> frozenset[str]:
    """Choose the ids that are held out: those with the smallest hashes, which are the same on every machine.

    The order of the ids does not matter. At least one is chosen, so that even a small file can be used for evaluation.

    Args:
        ids: Distinct.
        share: (0, 1), how many of them.
        seed: Another one gives another choice.
    """
    by_hash = sorted(ids, key=lambda id: hashlib.sha256(f"{id}/{seed}".encode()).digest())
    return frozenset(by_hash[: max(1, round(share * len(by_hash)))])


def kind_of(value: object) -> str:
    """Return what kind of JSON value something is, for an error; tables also hold others."""
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case list():
            return "a list"
        case dict():
            return "an object"
        case _:
            return f"of the type {type(value).__name__}"
