"""What the base model reads: documentation, Python source, page-like text, and exercises in copying.

Nothing of a held-out module is read. Everything follows from the seed and the interpreter's standard library.
"""

from __future__ import annotations

import random
import re
import sysconfig
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from steadyrl.environments.search.stdlib_corpus import is_held_out, stdlib_corpus
from steadyrl.environments.search.stdlib_docs import read_entries
from steadyrl.environments.search.words import content_words

_SKIPPED = {
    "test",
    "tests",
    "idlelib",
    "lib2to3",
    "turtledemo",
    "site-packages",
    "ensurepip",
    "encodings",
    "pydoc_data",
}


def documentation() -> list[str]:
    """Return the documentation of every module that is not held out, in lower case as requests are."""
    return [f"{e.name}: {e.summary}\n{e.body[:1500]}".lower() for e in read_entries() if not is_held_out(e.module)]


def source() -> list[str]:
    """Return the source files of the standard library, held-out modules and test suites left out."""
    library = Path(sysconfig.get_paths()["stdlib"])
    paths = [
        path
        for path in sorted(library.rglob("*.py"))
        if not _SKIPPED.intersection(path.relative_to(library).parts)
        and not is_held_out(path.relative_to(library).parts[0].removesuffix(".py").lstrip("_"))
    ]
    return [path.read_text(encoding="utf-8", errors="ignore") for path in paths]


def requests() -> tuple[list[str], list[str]]:
    """Return (training requests, all requests); the second only for the choice of the tokenizer's words."""
    corpus = stdlib_corpus()
    train = [request.text for request in corpus.train]
    return train, train + [request.text for request in corpus.heldout]


def page(rng: random.Random, words: Sequence[str]) -> str:
    """Return a page as a browsing task shows it: numbered elements, a goal, and one action."""
    kinds = ["link", "button", "textbox", "checkbox", "option", "heading"]
    names = [" ".join(rng.sample(words, rng.randint(1, 3))) for _ in range(rng.randint(3, 9))]
    lines = [f"[{i}] {rng.choice(kinds)} {name}" for i, name in enumerate(names)]
    aim = rng.randrange(len(names))
    action = rng.choice([f"click {aim}", f'type {aim} "{rng.choice(words)}"', f"select {aim}"])
    return f"goal: {action.split()[0]} {names[aim]}\n" + "\n".join(lines) + f"\naction: {action}"


def rarity(documents: Sequence[str]) -> Callable[[str], float]:
    """Return a function from a word to how willingly the teacher picks it: (1 + documents that hold it) ** -0.7.

    Of two words, one in ten documents and one in a thousand, the first is picked 24 times as often.
    """
    counts = Counter(word for text in documents for word in content_words(text))
    return lambda word: (1.0 + counts[word]) ** -0.7


def spelled_words(documents: Sequence[str], known: Sequence[str]) -> list[str]:
    """Return the words of documents that are no single token: the rare ones, which are copied piece by piece."""
    words = {w for text in documents for w in content_words(text) if w.isascii() and w.isalpha() and 3 < len(w) < 16}
    return sorted(words - set(known))


def copying(rng: random.Random, words: Sequence[str], weight: Callable[[str], float]) -> tuple[str, str]:
    """Return a request of random words and a query of some of them: practice in copying and in the form."""
    request = rng.sample(words, rng.randint(3, 9))
    if rng.random() < 0.3:  # in order: the easiest form of copying teaches the others
        return " ".join(request), " ".join(request)
    return " ".join(request), teacher(rng, request, weight, malformed=0.04)


def teacher(rng: random.Random, words: Sequence[str], weight: Callable[[str], float], malformed: float = 0.08) -> str:
    """Write a query as a weak searcher would: rather the rarer words, joined in any form, sometimes malformed."""
    count = min(len(words), rng.choice([1, 2, 2, 3, 3, 4, 4, 5]))
    # The largest keys u ** (1 / weight) are a sample without replacement (Efraimidis and Spirakis 2006).
    picked = sorted(words, key=lambda word: rng.random() ** (1.0 / weight(word)), reverse=True)[:count]
    rng.shuffle(picked)
    query = _join(rng, picked)
    if rng.random() < malformed:
        pieces = query.split()
        del pieces[rng.randrange(len(pieces))]
        if rng.random() < 0.5:
            pieces.insert(rng.randrange(len(pieces) + 1), rng.choice(["(", ")", "AND", "OR", "NOT"]))
        query = " ".join(pieces)
    return query


def disguised(rng: random.Random, request: str, words: Sequence[str]) -> str:
    """Return a training request in which half of the content words, more or less, are any other words.

    There are two thousand requests, which a model of this size learns by heart in a few minutes, and then writes their
    words instead of those before it.
    """
    if rng.random() < 0.2:
        return request
    changed = {w: rng.choice(words) for w in content_words(request) if rng.random() < 0.6}
    return re.sub(r"[a-z]+", lambda match: changed.get(match[0], match[0]), request)


def found_words(
    rng: random.Random, content: Sequence[str], words: Sequence[str], spelled: Sequence[str], near: float = 0.0
) -> tuple[str, str]:
    """Return words as a first search would find them, some in phrases, and a query of some of them.

    Any of them may be in the query: which ones find more is left to be learned from rewards.

    Args:
        rng: Of the draws.
        content: Content words of the request, of which a third of the words found are.
        words: The others are random ones of these,
        spelled: and, three in ten, of these.
        near: Share of the pairs that are neighbours in the list, whatever their place, first word first.
    """

    def any_word() -> str:
        return rng.choice(spelled if rng.random() < 0.3 else words)

    size, found, alone = rng.choice([2, 3, 4, 5, 6, 6, 6, 6]), [], []
    while size > 0:
        if size > 1 and rng.random() < 0.35:
            found.append(f'"{any_word()} {any_word()}"')
            size -= 2
        elif (word := rng.choice(content) if content and rng.random() < 0.35 else any_word()) not in found:
            found.append(word)
            alone.append(word)
            size -= 1
    phrases = [leaf for leaf in found if leaf not in alone]
    if rng.random() < 0.3:
        alone += [word for word in dict.fromkeys(rng.sample(content, min(len(content), 2))) if word not in alone]
    forms = [*phrases[:1] * 3, *(["{} AND {}"] * 4 + ["{} OR {}"]) * (len(alone) > 1)]
    form = rng.choice([*forms, *["{} AND ( {} OR {} )"] * (len(alone) > 2), *["{}"] * bool(alone)])
    if form in phrases:
        return " ".join(found), rng.choice(phrases)
    if near and form == "{} AND {}" and rng.random() < near:
        place = rng.randrange(len(alone) - 1)
        return " ".join(found), form.format(*alone[place : place + 2])
    picked = rng.sample(alone, form.count("{}"))
    return " ".join(found), form.format(*(sorted(picked, key=alone.index) if rng.random() < 0.5 else picked))


def blind_words(rng: random.Random, request: str) -> list[str]:
    """Return the words that the teacher picks from: mostly content words, now and then any word at all."""
    content = content_words(request)
    everything = [w for w in "".join(c if c.isalnum() else " " for c in request.lower()).split() if w.isascii()]
    return everything if rng.random() < 0.3 or not content else content


def _join(rng: random.Random, words: list[str]) -> str:
    if len(words) == 1:
        return words[0] if rng.random() < 0.8 else words[0] + "*"
    if len(words) >= 3 and rng.random() < 0.7:
        cut = rng.randint(1, len(words) - 1)
        inner, outer = rng.choice([("OR", "AND"), ("OR", "AND"), ("AND", "OR"), ("OR", "NOT")])
        return f" {outer} ".join(_group(part, inner) for part in (words[:cut], words[cut:]))
    return f" {rng.choice(['AND', 'AND', 'OR', 'OR', 'NOT'])} ".join(words)


def _group(words: list[str], operator: str) -> str:
    if len(words) == 1:
        return words[0]
    return "( " + f" {operator} ".join(words) + " )"
