"""Count what makes prose hard to read: python scripts/prose.py [PAGE ...].

A pronoun such as "it" or "which" makes a reader look back for its noun; the documentation of httpx and TRL has fewer
than 2 of them in 100 words. Code, tables and headings are left out. Without a page, all pages below docs are listed.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
VAGUE = frozenset("it its itself that which one ones what this these those they them their".split())
LONGEST = 30  # words of a sentence


def prose(markdown: str) -> str:
    """Return the running text of a page: no code, tables, headings or targets of links."""
    text = re.sub(r"^```.*?^```", "", markdown, flags=re.MULTILINE | re.DOTALL)
    lines = [line for line in text.splitlines() if not line.startswith(("    ", "|", "#"))]
    return re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "CODE", "\n".join(lines)))


def words(text: str) -> list[str]:
    """Return the words of a text in lower case; a piece of code between them is one word."""
    return re.findall(r"[a-z]+(?:['-][a-z]+)*", text.lower())


def vague_share(markdown: str) -> float:
    """Return how many of 100 words of running text are vague pronouns."""
    page_words = words(prose(markdown))
    return 100 * sum(word in VAGUE for word in page_words) / max(1, len(page_words))


def long_sentences(markdown: str) -> list[str]:
    """Return the sentences of more than ``LONGEST`` words; an empty line or an item of a list ends a sentence too."""
    blocks = re.split(r"\n\s*\n|\n\s*(?:[-*]|\d+\.) ", prose(markdown))
    sentences = (part for block in blocks for part in re.split(r"(?<=[.!?:;])\**\s+", " ".join(block.split())))
    return [sentence for sentence in sentences if len(words(sentence)) > LONGEST]


def main() -> None:
    """Print a line per page: vague pronouns in 100 words, long sentences, words. Of named pages also the sentences."""
    named = [Path(argument) for argument in sys.argv[1:]]
    for page in named or sorted((ROOT / "docs").rglob("*.md")):
        markdown = page.read_text(encoding="utf-8")
        sentences = long_sentences(markdown)
        print(f"{vague_share(markdown):5.1f} {len(sentences):4d} {len(words(prose(markdown))):6d}  {page}")
        for sentence in sentences if named else ():
            print(f"      {sentence}")


if __name__ == "__main__":
    main()
