"""Writes records as Markdown. All text is escaped here, so nothing that a model or a file says can become markup."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from steadyrl.core.types import Finding
from steadyrl.show.page import records
from steadyrl.show.page.markup import anchor, fence, markdown, paragraphs


def page(content: Iterable[records.Record]) -> str:
    """Return a whole page."""
    return "\n\n".join(block for record in content for block in blocks(record)) + "\n"


def inline(text: records.Text) -> str:
    """Return a text with its roles on one line."""
    if isinstance(text, tuple):
        return "".join(map(inline, text))
    if isinstance(text, records.Span):
        inner = inline(text.text)
        if text.href:  # a heading's anchor is made of its words
            inner = f"[{inner}](#{anchor(text.href[1:])})" if text.href.startswith("#") else f"[{inner}]({text.href})"
        if text.role not in ("strong", "word") or not inner.strip():
            return inner
        # Bold that begins or ends with white space is not bold.
        return f"{' ' * inner[:1].isspace()}**{inner.strip()}**{' ' * inner[-1:].isspace()}"
    # White space at an end separates the text from the span beside it.
    return f"{' ' * text[:1].isspace()}{markdown(text)}{' ' * text[1:][-1:].isspace()}"


def blocks(record: records.Record) -> Iterator[str]:
    """Yield one record as blocks, between which a page has an empty line."""
    match record:
        case records.Heading():
            yield f"{'#' * record.level} {inline(record.text)}"
        case records.Note():
            texts = map(inline, paragraphs(record))
            yield from ({"headline": f"**{text}**", "note": f"> {text}"}.get(record.role, text) for text in texts)
        case records.Facts():
            yield _table(["", ""], ["---", "---"], [[inline(name), inline(text)] for name, text in record.rows])
        case records.Items():
            yield "\n".join(f"- {inline(text)}" for text in record.texts)
        case records.Table():
            marks = ["--:" if column.number else "---" for column in record.heads]
            yield _table([inline(column.name) for column in record.heads], marks, list(_rows(record)))
        case records.Code():
            yield fence(record.text)
        case records.Picture():
            yield from (f"![{inline(record.label)}]({record.file})", *filter(None, [inline(record.caption)]))
        case records.Findings():
            yield "\n".join(line for placed in record.placed for line in _finding("  " * placed.depth, placed.finding))
        case records.Sample():
            yield from _sample(record)
        case records.Curves():
            yield f"The curves can be explored in [{record.file}]({record.file})."
        case records.Fold():
            yield f"{inline(record.summary)}:"
            yield from (block for inner in record.records for block in blocks(inner))


def _rows(record: records.Table) -> Iterator[list[str]]:
    for number, row in enumerate(record.rows):
        stands_out = isinstance(row, str) or number in record.ours
        first, *cells = [row, *[""] * (len(record.columns) - 1)] if isinstance(row, str) else row
        yield [inline(records.strong(records.plain(first)) if stands_out else first), *map(inline, cells)]


def _table(heads: list[str], marks: list[str], rows: list[list[str]]) -> str:
    first, *text = [f"| {' | '.join(cells)} |" for cells in [heads, *rows]]
    return "\n".join([first, f"|{'|'.join(marks)}|", *text])


def _finding(indent: str, finding: Finding) -> Iterator[str]:
    cause = f" ({inline(finding.cause)})" if finding.cause else ""
    begin = "" if finding.since_step is None else f", since step {finding.since_step}"
    follows = f", caused by {inline(finding.follows)}" if finding.follows else ""
    yield f"{indent}- **{finding.severity}** {inline(finding.check)}{cause}{begin}{follows}: {inline(finding.message)}"
    for text in finding.evidence:
        yield f"{indent}  - {inline(text)}"
    further = {"What to do": finding.remedy, "Set": " ".join(finding.overrides), "Source": finding.source}
    yield from (f"{indent}  - {name}: {inline(text)}" for name, text in further.items() if text)


def _sample(record: records.Sample) -> Iterator[str]:
    yield f"### {inline(record.title)}"
    yield fence(record.prompt)
    for answer in record.answers:
        yield f"{inline(answer.label)}:"
        yield fence(answer.text)
        if answer.remark:
            yield f"Note: {inline(answer.remark)}"
