"""What the parts of a Boolean query are worth: a part counts only if leaving it out makes what is found worse.

A part is a word, or a clause of several words: a child of AND or OR, what NOT subtracts, a word of a phrase. The worth
is measured on the index and never read off the written form, so ``w OR w``, ``w OR ( nothing AND found )`` and
``w AND ( the OR of )`` are worth what "w" is worth, and no more.

Each word is searched once; every query with a part left out is then made of these results, without the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, reduce

import numpy as np

from steadyrl.environments.search.index import SearchIndex
from steadyrl.environments.search.query import And, Node, Not, Or, Phrase, Term, terms


@dataclass(frozen=True)
class Worth:
    """How much of a query does something."""

    f1: float
    """F1 of the whole query."""
    best_word: float
    """F1 of the best single word of the query."""
    words: int
    """Number of its words, repeated ones included."""
    helping: int
    """Number of the words of its core, which is what is left when every part that makes nothing better is left out; 0
    if nothing relevant is found."""
    dead_part: bool
    """True if some part can be left out and exactly the same documents are found."""
    repeated_word: bool
    """True if a word occurs twice."""
    no_operator: bool
    """True if nothing joins its words by AND, OR or NOT."""

    def metrics(self) -> dict[str, float]:
        """Return the rewards ``worth`` and ``joint``, and what is logged of the query's form."""
        share = self.helping / self.words
        return {
            "worth": share * self.f1,
            "joint": share * max(0.0, self.f1 - self.best_word),
            "dead_part": float(self.dead_part),
            "repeated_word": float(self.repeated_word),
            "no_operator": float(self.no_operator),
            "two_help": float(self.helping == self.words > 1),
        }


# All of them are 0 for a malformed query.
MALFORMED = dict.fromkeys(Worth(0.0, 0.0, 1, 0, False, False, False).metrics(), 0.0)


def weigh(tree: Node, relevant: np.ndarray, index: SearchIndex) -> Worth:
    """Measure what each part of a query is worth.

    Args:
        tree: The query.
        relevant: Document numbers that answer the request, distinct, at least one.
        index: Finds the documents of each word.

    Raises:
        EngineFailure: The engine failed on a word of the query.
    """
    relevant_mask = np.zeros(index.document_count, bool)  # [documents]
    relevant_mask[relevant] = True
    leaf_matches = cache(index.marks)
    evaluate = _Evaluator(leaf_matches)
    matched = evaluate.store(tree)
    f1 = f1_of(matched, relevant_mask)
    words = terms(tree)
    return Worth(
        f1=f1,
        best_word=max(f1_of(leaf_matches(Term(word)), relevant_mask) for word in words),
        words=len(words),
        helping=len(terms(_core(tree, f1, relevant_mask, evaluate))) if f1 else 0,
        dead_part=any(np.array_equal(evaluate(shorter), matched) for shorter, _ in _shortened(tree)),
        repeated_word=len(set(words)) < len(words),
        no_operator=not isinstance(tree, And | Or | Not),
    )


class _Evaluator:
    """Which documents a query finds: [documents] bool. The results of the parts of stored trees are used again."""

    def __init__(self, match_leaf: Callable[[Term | Phrase], np.ndarray]) -> None:
        self._match_leaf = match_leaf
        self._cache: dict[int, tuple[Node, np.ndarray]] = {}  # by identity; holding the part keeps its number taken

    def __call__(self, node: Node) -> np.ndarray:
        cached = self._cache.get(id(node))
        return self._combine(node, self) if cached is None else cached[1]

    def store(self, node: Node) -> np.ndarray:
        """Store what every part of a tree finds, and return what the whole finds."""
        if id(node) not in self._cache:
            self._cache[id(node)] = (node, self._combine(node, self.store))
        return self._cache[id(node)][1]

    def _combine(self, node: Node, match_part: Callable[[Node], np.ndarray]) -> np.ndarray:
        match node:
            case And(children):
                return reduce(np.logical_and, map(match_part, children))
            case Or(children):
                return reduce(np.logical_or, map(match_part, children))
            case Not(keep, drop):
                difference: np.ndarray = match_part(keep) & ~match_part(drop)
                return difference
            case Term() | Phrase():
                return self._match_leaf(node)


def _core(tree: Node, f1: float, relevant: np.ndarray, evaluate: _Evaluator) -> Node:
    """Leave out parts, the largest first, as long as what is found does not become worse."""
    while True:
        for shorter, _ in sorted(_shortened(tree), key=lambda part: -part[1]):
            if (shorter_f1 := f1_of(evaluate(shorter), relevant)) >= f1:
                tree, f1 = shorter, shorter_f1
                evaluate.store(tree)
                break
        else:
            return tree


def _shortened(node: Node) -> Iterator[tuple[Node, int]]:
    """Yield the tree without each of its parts, and of how many words that part is."""
    match node:
        case And(children) | Or(children):
            for i, child in enumerate(children):
                siblings = children[:i] + children[i + 1 :]
                yield siblings[0] if len(siblings) == 1 else type(node)(siblings), len(terms(child))
                for shorter, words in _shortened(child):
                    yield type(node)((*children[:i], shorter, *children[i + 1 :])), words
        case Not(keep, drop):
            yield keep, len(terms(drop))
            for shorter, words in _shortened(keep):
                yield Not(shorter, drop), words
            for shorter, words in _shortened(drop):
                yield Not(keep, shorter), words
        case Phrase(text):
            for i in range(len(text)):
                remaining = text[:i] + text[i + 1 :]
                yield Term(remaining[0]) if len(remaining) == 1 else Phrase(remaining), 1


def f1_of(matched: np.ndarray, relevant: np.ndarray) -> float:
    """Return the F1 of the documents that a query finds, both [documents] bool; at least one is relevant."""
    return (
        2 * float(np.count_nonzero(matched & relevant)) / float(np.count_nonzero(matched) + np.count_nonzero(relevant))
    )
