"""Write the docstrings of installed packages as a search collection in BEIR format.

    python scripts/docstring_collection.py FOLDER

The packages are those that steadyrl itself needs: numpy, scipy and matplotlib. A request is the summary line of a
function, class or method. The relevant documents are that entry and the entries that its authors name under "See Also".
The indexed text is the entry's name and the rest of its docstring, without that section. Requests of a fifth of the
submodules, and of a fifth of numpy's own functions, are held out.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import itertools
import json
import pkgutil
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

PACKAGES = ("numpy", "scipy", "matplotlib")
_INTERNAL = re.compile(r"(^|\.)(_|tests?($|\.)|testing|conftest|f2py|distutils|backends\.|typing)")
HELDOUT_SHARE = 0.2
MIN_WORDS, MAX_WORDS = 3, 24
_HEADING = re.compile(r"^[ \t]*([A-Z][\w ]+)\n[ \t]*-{3,}[ \t]*\n", re.MULTILINE)
_MARKUP = re.compile(r":\w+:|[`*~]")

# By name: the summary, the rest of the docstring, and the names under See Also.
Entries = dict[str, tuple[str, str, list[str]]]


def main(folder: Path) -> None:
    """Read the packages and write the folder."""
    entries = read_entries()
    requests = requests_of(entries)
    held_out = {name for name in requests if is_held_out(".".join(name.split(".")[:2]))}
    documents = {name: f"{spoken(name)} {body}" for name, (_, body, _) in entries.items()}
    write(folder, documents, {name: (entries[name][0], relevant) for name, relevant in requests.items()}, held_out)


def write(
    folder: Path, documents: Mapping[str, str], requests: Mapping[str, tuple[str, list[str]]], held_out: set[str]
) -> None:
    """Write a collection in BEIR format.

    Args:
        folder: Is made.
        documents: Texts by name.
        requests: By name: the text, and the names of the relevant documents.
        held_out: Names of requests.
    """
    if folder.exists():
        sys.exit(f"{folder} is there already; name a new folder")
    (folder / "qrels").mkdir(parents=True)
    corpus = [{"_id": name, "text": text} for name, text in documents.items()]
    queries = [{"_id": name, "text": text} for name, (text, _) in requests.items()]
    for file, records in (("corpus", corpus), ("queries", queries)):
        (folder / f"{file}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    for file, names in (("train", requests.keys() - held_out), ("test", held_out)):
        rows = [f"{name}\t{relevant}\t1\n" for name in sorted(names) for relevant in requests[name][1]]
        (folder / "qrels" / f"{file}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(rows))
    print(f"{folder}: {len(documents)} documents, {len(requests)} requests, {len(held_out)} of them held out")


def read_entries() -> Entries:
    """Return the entry of every documented public function, class and method, under the first name that is met."""
    entries: Entries = {}
    seen: set[int] = set()
    for module in itertools.chain.from_iterable(modules(importlib.import_module(name)) for name in PACKAGES):
        for name, thing in public(module, module.__name__):
            if id(thing) in seen or not (getattr(thing, "__module__", None) or "").startswith(PACKAGES):
                continue
            seen.add(id(thing))
            things = [(name, thing), *(public(thing, name) if inspect.isclass(thing) else ())]
            entries |= {name: entry for name, thing in things if (entry := documented(thing))}
    return entries


def modules(package: ModuleType) -> Iterator[ModuleType]:
    """Yield a package and its public modules."""
    yield package
    for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        if _INTERNAL.search(found.name):
            continue
        try:
            module = importlib.import_module(found.name)
        except ImportError as error:  # of something optional
            print(f"left out: {found.name} ({error})")
            continue
        yield from modules(module) if found.ispkg else [module]


def public(owner: object, name: str) -> Iterator[tuple[str, object]]:
    """Yield the public functions and classes that stand in a module or class, with their full names."""
    for inner, thing in sorted(vars(owner).items()):
        if not inner.startswith("_") and callable(thing):
            yield f"{name}.{inner}", thing


def documented(thing: object) -> tuple[str, str, list[str]] | None:
    """Return a thing's entry, or None where its docstring is no more than a summary."""
    summary, _, rest = (inspect.getdoc(thing) or "").partition("\n\n")
    if re.match(r"\w+\(.*\)", summary, re.DOTALL):  # the signature of something that is written in C
        summary, _, rest = rest.partition("\n\n")
    if not rest.strip():
        return None
    body, named = [], []
    pieces = _HEADING.split("\n" + rest)
    for title, section in zip(["", *pieces[1::2]], pieces[::2], strict=True):
        if title == "See Also":
            named = [name for line in section.splitlines() if line[:1].strip() for name in names_in(line)]
        else:
            body.append(section)
    return " ".join(_MARKUP.sub("", summary).split()), " ".join(" ".join(body).split()), named


def names_in(line: str) -> list[str]:
    """Return the names of a line of a See Also section, which stand before its colon."""
    return re.findall(r"[A-Za-z_]\w*(?:\.\w+)*", _MARKUP.sub("", line).partition(":")[0])


def requests_of(entries: Entries) -> dict[str, list[str]]:
    """Return the relevant entries of every entry that has a request of its own."""
    last_names = Counter(name.rpartition(".")[2] for name in entries)
    requests, asked = {}, set()
    for name, (summary, _, named) in entries.items():
        found = {resolved(other, name, entries, last_names) for other in named} - {None}
        if found - {name} and MIN_WORDS <= len(summary.split()) <= MAX_WORDS and summary.lower() not in asked:
            asked.add(summary.lower())  # a sentence that stands for two sets of documents has no right answer
            requests[name] = sorted({name, *found})
    return requests


def resolved(named: str, by: str, entries: Entries, last_names: Counter[str]) -> str | None:
    """Return the entry that an author named, looked up from where it was named, or the only one of that last name."""
    scope = by.split(".")
    for i in range(len(scope) - 1, -1, -1):
        if (name := ".".join([*scope[:i], named])) in entries:
            return name
    last = named.rpartition(".")[2]
    if last_names[last] == 1:
        return next(name for name in entries if name.rpartition(".")[2] == last)
    return None


def spoken(name: str) -> str:
    """Return a dotted name with its parts as words."""
    return " ".join(re.findall(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+", name))


def is_held_out(subject: str) -> bool:
    """Return whether the requests about a subject are held out; the same on every machine."""
    return int(hashlib.sha256(subject.encode()).hexdigest()[:8], 16) / 2**32 < HELDOUT_SHARE


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python scripts/docstring_collection.py FOLDER")
    warnings.simplefilter("ignore")  # of deprecated names that are only looked at
    main(Path(sys.argv[1]))
