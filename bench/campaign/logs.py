"""Logs of other trainers with changed bytes: the doctor reads what is whole and says what is not."""

from __future__ import annotations

import functools
import gzip
import random
from pathlib import Path

from bench.campaign.trial import Failure, changed_json, changed_lines, refused_or_done
from steadyrl.doctor.readers.search import search

READ_S = 10.0  # of processor time, for files of some kilobytes
DATA = Path(__file__).parents[2] / "tests" / "doctor" / "readers" / "data"


@functools.cache
def _whole() -> tuple[tuple[str, bytes], ...]:
    return tuple((path.name, path.read_bytes()) for path in sorted(DATA.rglob("*")) if path.is_file())


def attack(rng: random.Random, folder: Path) -> Failure:
    """Read a real log of which bytes are changed, cut, repeated or put in front of another format's."""
    name, content = rng.choice(_whole())
    data = bytearray(_changed_values(name, content, rng) if rng.random() < 0.4 else content)
    for _ in range(rng.choice((1, 1, 3, 20))):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(5):
            case 0:
                data[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                data[at : at + rng.randint(1, 200)] = b""
            case 2:
                data[at:at] = data[at : at + 300] * rng.choice((1, 3, 50))
            case 3:
                data[at:at] = rng.choice(
                    (b"[" * 100_000, b'{"a":' * 3000, b"\0" * 500, b"\xff\xfe", b"9" * 5000, b"\n")
                )
            case _:
                del data[rng.randrange(len(data) + 1) :]
    if rng.random() < 0.1:  # two records of one run, which may not agree
        (folder / f"other-{name}").write_bytes(rng.choice(_whole())[1])
    if rng.random() < 0.1:
        data[:0] = rng.choice(_whole())[1][:200]
    (folder / name).write_bytes(data)
    failure = refused_or_done(lambda: list(search(folder, lambda log: True).logs), READ_S)
    return f"{failure} | {name}" if failure else ""


def _changed_values(name: str, content: bytes, rng: random.Random) -> bytes:
    """Change values of a log of text, or what lies in a packed one."""
    if name.endswith(".gz"):
        inner = bytearray(gzip.decompress(content))
        for _ in range(rng.choice((1, 5, 50))):
            inner[rng.randrange(len(inner))] = rng.randrange(256)
        return gzip.compress(bytes(inner[: rng.choice((len(inner), rng.randrange(len(inner))))]))
    if name.endswith(".json"):
        return changed_json(content.decode(), rng)
    if name.endswith(".jsonl"):
        return changed_lines(content.decode(), rng)
    return content
