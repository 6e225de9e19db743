"""Writes records as Markdown. All text is escaped here, so nothing that a model or a file says can become markup."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import singledispatch

from steadyrl.core.types import Finding
from steadyrl.show.page.markup import anchor, fence, markdown, paragraphs
from steadyrl.show.page.records import (
    Code,
    Curves,
    Facts,
    Findings,
    Fold,
    Heading,
    Items,
    Note,
    Picture,
    Record,
    Sample,
    Span,
    Table,
    Text,
    plain,
    strong,
)


def page(records: Iterable[Record]) -> str:
    """Return a whole page."""
    return "\n\n".join(block for record in records for block in blocks(record)) + "\n"


def inline(text: Text) -> str:
    """Return a text with its roles on one line."""
    if isinstance(text, tuple):
        return "".join(map(inline, text))
    if isinstance(text, Span):
        inner = inline(text.text)
        if text.href:  # a heading's anchor is made of its words
            inner = f"[{inner}](#{anchor(text.href[1:])})" if text.href.startswith("#") else f"[{inner}]({text.href})"
        if text.role not in ("strong", "word") or not inner.strip():
            return inner
        # Bold that begins or ends with white space is not bold.
        return f"{' ' * inner[:1].isspace()}**{inner.strip()}**{' ' * inner[-1:].isspace()}"
    # White space at an end separates the text from the span beside it.
    return f"{' ' * text[:1].isspace()}{markdown(text)}{' ' * text[1:][-1:].isspace()}"


@singledispatch
def blocks(record: Record) -> Iterator[str]:
    """Yield one record as blocks, between which a page has an empty line."""
    raise TypeError(f"no writer for {type(record).__name__}")


@blocks.register
def _(record: Heading) -> Iterator[str]:
    yield f"{'#' * record.level} {inline(record.text)}"


@blocks.register
def _(record: Note) -> Iterator[str]:
    for part in paragraphs(record):
        text = inline(part)
        yield {"headline": f"**{text}**", "note": f"> {text}"}.get(record.role, text)


@blocks.register
def _(record: Facts) -> Iterator[str]:
    yield _table(["", ""], ["---", "---"], [[inline(name), inline(text)] for name, text in record.rows])


@blocks.register
def _(record: Items) -> Iterator[str]:
    yield "\n".join(f"- {inline(text)}" for text in record.texts)


@blocks.register
def _(record: Table) -> Iterator[str]:
    rows = []
    for number, row in enumerate(record.rows):
        stands_out = isinstance(row, str) or number in record.ours
        first, *cells = [row, *[""] * (len(record.columns) - 1)] if isinstance(row, str) else row
        rows.append([inline(strong(plain(first)) if stands_out else first), *map(inline, cells)])
    marks = ["--:" if column.number else "---" for column in record.heads]
    yield _table([inline(column.name) for column in record.heads], marks, rows)


def _table(heads: list[str], marks: list[str], rows: list[list[str]]) -> str:
    lines = [heads, *rows]
    text = [f"| {' | '.join(cells)} |" for cells in lines]
    return "\n".join([text[0], f"|{'|'.join(marks)}|", *text[1:]])


@blocks.register
def _(record: Code) -> Iterator[str]:
    yield fence(record.text)


@blocks.register
def _(record: Picture) -> Iterator[str]:
    yield f"![{inline(record.label)}]({record.file})"
    if record.caption:
        yield inline(record.caption)


@blocks.register
def _(record: Findings) -> Iterator[str]:
    yield "\n".join(line for entry in record.placed for line in _finding("  " * entry.depth, entry.finding))


def _finding(left: str, finding: Finding) -> Iterator[str]:
    cause = f" ({inline(finding.cause)})" if finding.cause else ""
    since = "" if finding.since_step is None else f", since step {finding.since_step}"
    follows = f", caused by {inline(finding.follows)}" if finding.follows else ""
    yield f"{left}- **{finding.severity}** {inline(finding.check)}{cause}{since}{follows}: {inline(finding.message)}"
    for text in finding.evidence:
        yield f"{left}  - {inline(text)}"
    if finding.remedy:
        yield f"{left}  - What to do: {inline(finding.remedy)}"
    if finding.overrides:
        yield f"{left}  - Set: {inline(' '.join(finding.overrides))}"
    if finding.source:
        yield f"{left}  - Source: {inline(finding.source)}"


@blocks.register
def _(record: Sample) -> Iterator[str]:
    yield f"### {inline(record.title)}"
    yield fence(record.prompt)
    for answer in record.answers:
        yield f"{inline(answer.label)}:"
        yield fence(answer.text)
        if answer.remark:
            yield f"Note: {inline(answer.remark)}"


@blocks.register
def _(record: Curves) -> Iterator[str]:
    yield f"The curves can be explored in [{record.file}]({record.file})."


@blocks.register
def _(record: Fold) -> Iterator[str]:
    yield f"{inline(record.summary)}:"
    for inner in record.records:
        yield from blocks(inner)
