"""The Boolean query language that policies write: it is parsed into a tree and written as SQLite FTS5.

    or_expr  := and_expr (OR and_expr)*
    and_expr := operand ((AND | NOT | AND NOT) operand)*
    operand  := word | word* | "several words" | ( or_expr )

The operators are AND, OR and NOT in upper case; in lower case they are words to search for. NOT is binary and
removes documents: ``a NOT b`` and ``a AND NOT b`` both mean a without b. Two terms without an operator between them
are malformed, because the policy must write Boolean queries. Punctuation inside a bare word makes it a phrase:
``os.path`` is ``"os path"``, as the index splits documents at the same places.

A malformed query is data, so ``parse`` never raises. Only the word characters of a term reach the engine, so
a query cannot contain FTS5 syntax of its own.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from steadyrl.environments.search.tokens import Malformed, Token, well_formed_tokens, words_of

TEXT_COLUMN = "text"


@dataclass(frozen=True)
class Term:
    """One word, or with ``prefix`` every word that starts like it."""

    text: str
    prefix: bool = False


@dataclass(frozen=True)
class Phrase:
    """Words that follow one another."""

    words: tuple[str, ...]


@dataclass(frozen=True)
class And:
    """Documents that match every child."""

    children: tuple[Node, ...]


@dataclass(frozen=True)
class Or:
    """Documents that match at least one child."""

    children: tuple[Node, ...]


@dataclass(frozen=True)
class Not:
    """Documents that match ``keep`` and do not match ``drop``."""

    keep: Node
    drop: Node


Node = Term | Phrase | And | Or | Not


@dataclass(frozen=True)
class ParsedQuery:
    """The result of parsing: a tree, or the problem that makes the text malformed."""

    tree: Node | None
    """The query, words in lower case; None when it is malformed."""
    problem: str = ""
    """One line with the defect and its character, counted from 1; empty if there is none."""


def parse(text: str) -> ParsedQuery:
    """Parse a query. No text makes this raise an error."""
    try:
        tokens = well_formed_tokens(text)
    except Malformed as malformed:
        return ParsedQuery(None, str(malformed))
    return ParsedQuery(_or_expr(deque(tokens[1:])))


def canonical(node: Node) -> str:
    """Write a tree in a canonical form: queries that differ only in writing become equal.

    Words are in lower case, NOT stands outside AND, equal nested operators one, children are unique and sorted:
    ``a AND b`` and ``(b AND a)`` become equal. FTS5 can read it too; the deepest child comes first because that
    keeps the stack of FTS5's parser low.
    """
    return _write(_normalize(node))


def to_fts5(node: Node) -> str:
    """Return the right-hand side of FTS5's MATCH for a tree, restricted to the text column."""
    return f"{TEXT_COLUMN} : ({canonical(node)})"


def terms(node: Node) -> list[str]:
    """Return every word of a tree from left to right, prefixes without their star."""
    match node:
        case Term(text):
            return [text]
        case Phrase(words):
            return list(words)
        case Not(keep, drop):
            return terms(keep) + terms(drop)
        case And(children) | Or(children):
            return [word for child in children for word in terms(child)]


def _or_expr(tokens: deque[Token]) -> Node:
    children = [_and_expr(tokens)]
    while tokens[0].kind == "OR":
        tokens.popleft()
        children.append(_and_expr(tokens))
    return _join(Or, children)


def _and_expr(tokens: deque[Token]) -> Node:
    # NOT and AND need no precedence among themselves: a AND (b NOT c) and (a AND b) NOT c are the same set.
    positive = [_operand(tokens)]
    dropped: list[Node] = []
    while tokens[0].kind in ("AND", "NOT"):
        is_negated = tokens.popleft().kind == "NOT"
        if tokens[0].kind == "NOT":
            is_negated = True
            tokens.popleft()
        (dropped if is_negated else positive).append(_operand(tokens))
    keep = _join(And, positive)
    return Not(keep, _join(Or, dropped)) if dropped else keep


def _operand(tokens: deque[Token]) -> Node:
    token = tokens.popleft()
    if token.kind == "term":
        return Term(token.words[0], token.is_prefix) if len(token.words) == 1 else Phrase(token.words)
    inner = _or_expr(tokens)
    tokens.popleft()
    return inner


def _join(kind: type[And] | type[Or], children: list[Node]) -> Node:
    return children[0] if len(children) == 1 else kind(tuple(children))


def _normalize(node: Node) -> Node:
    match node:
        case Not(keep, drop):
            keep = _normalize(keep)
            if isinstance(keep, Not):
                return Not(keep.keep, _normalize(Or((keep.drop, drop))))
            return Not(keep, _normalize(drop))
        case And(children):
            children = tuple(_normalize(child) for child in children)
            dropped = tuple(child.drop for child in children if isinstance(child, Not))
            if not dropped:
                return _flat(And, children)
            positive = (child.keep if isinstance(child, Not) else child for child in children)
            return Not(_normalize(And(tuple(positive))), _normalize(Or(dropped)))
        case Or(children):
            return _flat(Or, tuple(_normalize(child) for child in children))
    return node


def _flat(kind: type[And] | type[Or], children: tuple[Node, ...]) -> Node:
    by_text: dict[str, Node] = {}
    for child in children:
        operands = child.children if isinstance(child, kind) else (child,)
        by_text |= {_write(grandchild): grandchild for grandchild in operands}
    order = sorted(by_text, key=lambda text: (-_depth(by_text[text]), text))
    return _join(kind, [by_text[text] for text in order])


def _depth(node: Node) -> int:
    match node:
        case Not(keep, drop):
            return 1 + max(_depth(keep), _depth(drop))
        case And(children) | Or(children):
            return 1 + max(_depth(child) for child in children)
    return 0


def _write(node: Node) -> str:
    # FTS5's precedence is NOT, then AND, then OR. No further parentheses are written: each costs a place on its stack.
    match node:
        case Term(text, prefix):
            return f'"{" ".join(words_of(text))}"{"*" if prefix else ""}'
        case Phrase(words):
            return f'"{" ".join(words_of(" ".join(words)))}"'
        case Not(keep, drop):
            return f"{_grouped(keep, (And, Or))} NOT {_grouped(drop, (And, Or, Not))}"
        case And(children):
            return " AND ".join(_grouped(child, (Or,)) for child in children)
        case Or(children):
            return " OR ".join(_write(child) for child in children)


def _grouped(node: Node, kinds: tuple[type, ...]) -> str:
    return f"({_write(node)})" if isinstance(node, kinds) else _write(node)
