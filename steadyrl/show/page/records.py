"""What a page says, as records. A view of an object is made of them once, and each writer shows them in its own way.

``html``, ``markdown`` and ``terminal`` write the same records, so a reader finds the same words in all three. Text is
escaped by the writers. A view formats its numbers itself (see ``markup``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from steadyrl.doctor.causes import Placed

Tone = Literal["good", "bad", "warn", "info", "none"]
# The tone of every word by which runs, changes, findings and expectations are judged.
TONES: dict[str, Tone] = {
    "healthy": "good", "sick": "bad", "too little to judge": "warn",
    "better": "good", "worse": "bad", "equal": "info", "undecided": "warn",
    "supported": "good", "refuted": "bad",
    "critical": "bad", "warning": "warn", "info": "info",
    "pass": "good", "fail": "bad", "fine": "good",
}  # fmt: skip


@dataclass(frozen=True)
class Span:
    """Words with a role inside a text."""

    text: str
    role: Literal["strong", "code", "soft", "word", ""] = ""
    """"strong", "code" or "soft"; a judging word has "word" and is shown in its tone."""
    href: str = ""
    """What the words link to; "" for no link."""

    @property
    def tone(self) -> Tone:
        """The tone of a judging word."""
        return TONES.get(self.text, "none")


Text = str | Span | tuple[str | Span, ...]


def strong(text: str) -> Span:
    """Return words that stand out."""
    return Span(text, "strong")


def word(text: str) -> Span:
    """Return a judging word, such as "sick", which is shown in its tone."""
    return Span(text, "word")


def plain(text: Text) -> str:
    """Return a text without its roles."""
    pieces = text if isinstance(text, tuple) else (text,)
    return "".join(piece.text if isinstance(piece, Span) else piece for piece in pieces)


@dataclass(frozen=True)
class Heading:
    """A heading."""

    text: Text
    level: int = 2  # 1 for the page's own, 2 for its parts
    anchor: str = ""  # what links point to; "" where none does


@dataclass(frozen=True)
class Note:
    """A paragraph. The role "headline" is the page's answer, "note" a warning, "soft" an explanation."""

    text: Text
    role: Literal["headline", "note", "soft", ""] = ""
    tone: Tone = "none"


@dataclass(frozen=True)
class Facts:
    """Names with what they stand for, such as a run's model and its cost."""

    rows: Sequence[tuple[str, Text]]


@dataclass(frozen=True)
class Items:
    """A list of texts."""

    texts: Sequence[Text]


@dataclass(frozen=True)
class Column:
    """A column of a table; numbers are set to the right."""

    name: str
    number: bool = False


@dataclass(frozen=True)
class Table:
    """A table."""

    columns: Sequence[Column | str]  # A plain string is a column of text
    rows: Sequence[Sequence[Text] | str]  # A cell for each column; a row that is a single text heads those below it
    ours: frozenset[int] = frozenset()  # the numbers of the rows that the page is about

    @property
    def heads(self) -> list[Column]:
        """The columns as records."""
        return [Column(column) if isinstance(column, str) else column for column in self.columns]


@dataclass(frozen=True)
class Code:
    """Text that is shown as it is, to be read or pasted."""

    text: str


@dataclass(frozen=True)
class Picture:
    """A picture."""

    file: str  # of the whole picture, beside the page
    label: str  # what it shows, for those who do not see it
    caption: str = ""  # stands below it
    panels: Sequence[str] = ()  # SVG texts that an HTML page places as its width allows; without any the file is shown


@dataclass(frozen=True)
class Findings:
    """Findings of the doctor, each with its depth below its root cause."""

    placed: Sequence[Placed]


@dataclass(frozen=True)
class Answer:
    """An answer of a model, what is said of it, and a remark of its scorer."""

    label: Text
    text: str
    remark: str = ""


@dataclass(frozen=True)
class Sample:
    """A problem with answers side by side."""

    title: Text
    prompt: str
    answers: Sequence[Answer]


@dataclass(frozen=True)
class Panel:
    """One chart: a title, a unit, and its metrics with their labels."""

    title: str
    unit: str
    meaning: str
    metrics: tuple[tuple[str, str], ...]
    mixed: bool = False
    """Whether the metrics are of several topics: those of another scale than the first one's get the right axis."""


@dataclass(frozen=True)
class Curves:
    """Curves that a reader explores, drawn by a script of the HTML page."""

    data: str  # JSON of the groups of runs, see ``report.pictures.curves``
    overview: Sequence[Panel]  # the charts that are looked at first
    topics: Mapping[str, Sequence[Panel]]  # all others by topic
    file: str  # the HTML page, to which Markdown links


@dataclass(frozen=True)
class Fold:
    """Further records that an HTML page opens on request."""

    summary: str
    records: Sequence[Record]


Record = Heading | Note | Facts | Items | Table | Code | Picture | Findings | Sample | Curves | Fold


def numbers(*names: str) -> tuple[Column, ...]:
    """Return columns of numbers."""
    return tuple(Column(name, number=True) for name in names)
