"""Splits a Boolean query into tokens, checks the limits, and finds everything that makes a query malformed.

The order of the tokens and the count of open parentheses decide whether a query is well formed. Every problem is
therefore found here, with its place, before any recursion starts.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass

MAX_CHARACTERS = 2_000
MAX_TERMS = 64
MAX_PHRASE_WORDS = 16
# FTS5's parser has a stack of 100 entries, and a written query costs it at most three per pair of parentheses.
MAX_DEPTH = 16

# Combining accents belong to their word, as in FTS5's unicode61.
_WORD = re.compile(r"\w[\w\u0300-\u036f]*")
_PIECE = re.compile(r'(?P<mark>[()])|"(?P<quoted>[^"]*)"|(?P<open_quote>")|(?P<bare>[^\s()"]+)')
_OPERATORS = frozenset({"AND", "OR", "NOT"})
_SHOWN_CHARACTERS = 40


class Malformed(Exception):
    """The defect of a query, in one line. It is data for the caller, not an error of steadyrl."""

    def __init__(self, reason: str, character: int) -> None:
        super().__init__(f"{reason} (character {character})")


@dataclass(frozen=True)
class Token:
    """One piece of a query."""

    kind: str
    """The kind of token. "end" comes before the first and after the last piece."""
    text: str
    """How it was written."""
    character: int
    """Its first character, counted from 1."""
    words: tuple[str, ...] = ()
    """The words of a term, in lower case; empty for the other kinds."""
    is_prefix: bool = False
    """True if the term ends in a star."""


def words_of(text: str) -> tuple[str, ...]:
    """Return the words of any text in lower case: runs of letters, digits and underscores."""
    # For FTS5 underscores alone are not a word.
    return tuple(word for word in _WORD.findall(text.lower()) if word.strip("_"))


def well_formed_tokens(text: str) -> list[Token]:
    """Split a query into tokens that the grammar accepts, an "end" at both ends.

    Raises:
        Malformed: With the first problem from the left. Problems inside terms come before those between terms.
    """
    if (length := len(text.strip())) > MAX_CHARACTERS:
        raise Malformed(f"{length} characters, at most {MAX_CHARACTERS} are read", MAX_CHARACTERS + 1)
    tokens = [Token("end", "", 0), *_tokens(text), Token("end", "", len(text) + 1)]
    open_parentheses: list[Token] = []
    for previous, token in itertools.pairwise(tokens):
        if token.kind == ")" and not open_parentheses:
            raise Malformed("this ) closes nothing", token.character)
        if reason := _misplaced(previous, token):
            raise Malformed(reason, token.character)
        if token.kind == ")":
            open_parentheses.pop()
        if token.kind == "(":
            open_parentheses.append(token)
        if len(open_parentheses) > MAX_DEPTH:
            raise Malformed(f"parentheses deeper than {MAX_DEPTH}", token.character)
    if open_parentheses:
        raise Malformed("this ( is not closed", open_parentheses[-1].character)
    return tokens


def _tokens(query: str) -> Iterator[Token]:
    term_count = 0
    for piece in _PIECE.finditer(query):
        text, character = piece[0], piece.start() + 1
        if piece.lastgroup == "open_quote":
            raise Malformed("this quote is not closed", character)
        if piece.lastgroup == "mark" or text in _OPERATORS:
            yield Token(text, text, character)
            continue
        term_count += 1
        if term_count > MAX_TERMS:
            raise Malformed(f"more than {MAX_TERMS} terms", character)
        yield _term(text, character, is_prefix=piece.lastgroup == "bare" and "*" in text)


def _term(text: str, character: int, is_prefix: bool) -> Token:
    words = words_of(text)
    if is_prefix and (len(words) != 1 or not text.lower().endswith(f"{words[0]}*")):
        raise Malformed(f"a * must end one plain word, unlike in {_short(text)}", character)
    if not words:
        raise Malformed(f"no letter or digit in {_short(text)}", character)
    if len(words) > MAX_PHRASE_WORDS:
        raise Malformed(f"a phrase of {len(words)} words, at most {MAX_PHRASE_WORDS} are read", character)
    return Token("term", text, character, words, is_prefix)


def _misplaced(previous: Token, token: Token) -> str:
    """Return why a token cannot follow the one before it, or an empty text if it can."""
    if previous.kind in ("term", ")"):
        if token.kind in ("term", "("):
            return f"missing operator between {_short(previous.text)} and {_short(token.text)}"
        return ""
    match (previous.kind, token.kind):
        case ("end", "end"):
            return "the query is empty"
        case ("(", ")"):
            return "empty parentheses"
        case ("AND" | "OR" | "NOT", ")" | "end"):
            return f"{previous.kind} has nothing on its right"
        case ("end" | "(" | "OR" | "NOT", "NOT"):
            return "NOT needs a term on its left; write a NOT b"
        case (_, "AND" | "OR"):
            return f"{token.kind} has nothing on its left"
    return ""


def _short(text: str) -> str:
    # repr keeps the reason on one line, whatever characters the policy wrote.
    return repr(text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 3]}...")
