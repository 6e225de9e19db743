"""Write the Linux man-pages as a search collection in BEIR format.

    python scripts/manpage_collection.py FOLDER [MAN]

MAN is a folder of manual pages, /usr/share/man if left out; Debian's packages manpages and manpages-dev fill it. A
request is what a page says of its subject in one line. The relevant documents are that page and the pages that its
authors name under "SEE ALSO". The indexed text is the page's name and its other sections. Requests of a fifth of the
subjects are held out; pages whose names begin with the same letters, such as pthread_join and pthread_kill, are one.
"""

from __future__ import annotations

import gzip
import re
import sys
from pathlib import Path

from docstring_collection import MAX_WORDS, MIN_WORDS, is_held_out, write

MAN = Path("/usr/share/man")
_PROJECT = re.compile(r"^\.TH .*Linux man-pages", re.MULTILINE)
_HEADING = re.compile(r'^\.SH\s+"?([^"\n]+?)"?\s*$', re.MULTILINE)
_LEFT_OUT = {"NAME", "SEE ALSO", "SYNOPSIS", "LIBRARY", "COLOPHON", "VERSIONS", "STANDARDS", "CONFORMING TO"}
_COMMENT = re.compile(r"(?:^[.'])?\\\".*$", re.MULTILINE)
_WITH_TEXT = re.compile(r"^\.\s*(?:[BI]|BI|BR|IB|IR|RB|RI|SB|SM|SS|TP)\b(.*)$")
_PLAIN = {r"\-": "-", r"\(en": "-", r"\(aq": "'", r"\(dq": '"', r"\e": "\\", r"\~": " ", r"\ ": " "}
_ESCAPE = re.compile(r"\\\(..|\\\[[^]]*\]|\\f.|\\[a-z]'[^']*'|\\.|\\$", re.MULTILINE)
_GLUE = re.compile(r"\\f(?:\(..|\[[^]]*\]|.)|\\[&/,%|^:]")

# By name: the summary, the other sections, and the names under SEE ALSO.
Pages = dict[str, tuple[str, str, list[str]]]


def main(folder: Path, man: Path = MAN) -> None:
    """Read the pages and write the folder."""
    pages = read_pages(man)
    if not pages:
        sys.exit(
            f"{man} holds no Linux man-pages; install Debian's packages manpages and manpages-dev, or name a folder"
        )
    requests = requests_of(pages)
    held_out = {name for name in requests if is_held_out(re.split(r"[^A-Za-z]", name)[0])}
    write(
        folder, {name: f"{name.rpartition('.')[0]} {body}" for name, (_, body, _) in pages.items()}, requests, held_out
    )


def read_pages(man: Path) -> Pages:
    """Return every page of the project that names others, by its name with the section, such as "pause.2"."""
    pages: Pages = {}
    for file in sorted(man.glob("man[1-8]/*.gz")):
        if not file.is_symlink():  # else another name of a page
            page = read_page(gzip.decompress(file.read_bytes()).decode("utf-8", "replace"))
            pages |= {file.stem: page} if page else {}
    return pages


def read_page(source: str) -> tuple[str, str, list[str]] | None:
    """Return a page's entry, or None where it is of another project, or lacks a summary or others to see."""
    parts = _HEADING.split(source)
    sections = {title.strip(): plain(text) for title, text in zip(parts[1::2], parts[2::2], strict=True)}
    if not _PROJECT.search(source) or not {"NAME", "SEE ALSO"} <= sections.keys():
        return None
    _, dash, summary = sections["NAME"].partition(" - ")
    body = " ".join(text for title, text in sections.items() if title not in _LEFT_OUT)
    named = re.findall(r"([A-Za-z_][\w.+-]*) ?\((\d\w*)\)", sections["SEE ALSO"])
    return (summary, body, [".".join(one) for one in named]) if dash else None


def plain(text: str) -> str:
    """Return the words of troff source."""
    text = _GLUE.sub("", _COMMENT.sub("", text))
    for written, meant in _PLAIN.items():
        text = text.replace(written, meant)
    lines = []
    for line in text.splitlines():
        found = _WITH_TEXT.match(line)
        if found:
            lines.append(found.group(1).replace('"', " "))
        elif not line.startswith((".", "'")):
            lines.append(line)
    return " ".join(_ESCAPE.sub(" ", "\n".join(lines)).split())


def requests_of(pages: Pages) -> dict[str, tuple[str, list[str]]]:
    """Return what every page with a summary of its own asks for, and the names of the pages that answer it."""
    requests, asked = {}, set()
    for name, (summary, _, named) in pages.items():
        relevant = sorted({name, *(other for other in named if other in pages)})
        if len(relevant) > 1 and MIN_WORDS <= len(summary.split()) <= MAX_WORDS and summary.lower() not in asked:
            asked.add(summary.lower())
            requests[name] = summary, relevant
    return requests


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: python scripts/manpage_collection.py FOLDER [MAN]")
    main(*map(Path, sys.argv[1:]))
