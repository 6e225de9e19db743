"""Teach the base model to join different words of any request: the last phase of `make base-model`.

Requests are sentences of the documentation of training modules, and their relevant documents follow from the library's
structure, as in the search task. The teacher (``tasks/search/teacher.py``) takes the best short queries in hindsight.
About half of the words are then exchanged, in the request and in its query alike, for random words that are about as
rare, so that only copying explains the query, and the rarity of a word still tells how good it is. In exercises of
random words every word of the query is another one. A word that the query has already is pushed down beside the
likelihood.

Nothing of a held-out module is seen: its entries are dropped before the documents are indexed.
"""

from __future__ import annotations

import argparse
import math
import random
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

sys.path.insert(0, str(Path(__file__).parent))
import texts
import train

from steadyrl.tasks.search.index import SearchIndex
from steadyrl.tasks.search.stdlib_corpus import is_held_out, stdlib_corpus
from steadyrl.tasks.search.stdlib_docs import Entry, read_entries
from steadyrl.tasks.search.teacher import taught_query
from steadyrl.tasks.search.words import content_words

SENTENCES = 4  # of each entry: its summary, and the first ones of its body
SENTENCE_WORDS = range(4, 25)
UNCHANGED, EXCHANGED = 0.15, 0.5  # shares of the requests, and of the words in the others
STAGES = [(1.0, {"find": 0.68, "join": 0.20, "copy": 0.12})]
REPEATING = 0.5  # weight of the loss for probability on words that the query has already
LONGEST_REQUEST = 130  # characters


def main() -> None:
    """Continue the training of the model in a folder, and write it back."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--start", type=Path, default=Path("steadyrl/assets/base-model"))
    parser.add_argument("--out", type=Path, default=Path("steadyrl/assets/base-model"))
    parser.add_argument("--steps", type=int, default=320)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    tokenizer = Tokenizer.from_file(str(args.start / "tokenizer.json"))
    data = Queries(tokenizer, texts.requests()[0], texts.documentation(), [], args.seed)
    model = AutoModelForCausalLM.from_pretrained(args.start)
    train.train(model, data, args, STAGES, data.without_repeats)
    model.save_pretrained(args.out)


class Queries(train.Data):
    """Batches of "copy" as before, of "find" (a request and a good query) and of "join" (random words)."""

    def __init__(self, tokenizer, requests, documents, source, seed: int):
        super().__init__(tokenizer, requests, documents, source, seed)
        self.taught = list(taught())
        self.counts = Counter(word for text in documents for word in set(content_words(text)))
        self.alike = defaultdict(list)
        for word in self.any_words:
            self.alike[self.rarity(word)].append(word)
        free = [tokenizer.token_to_id(piece) for piece in ("ĠAND", "ĠOR", "Ġ(", "Ġ)")]
        self.is_word = torch.ones(tokenizer.get_vocab_size(), dtype=torch.bool)
        self.is_word[[*free, self.end, self.pad]] = False
        print(f"{len(self.taught)} queries to learn from", flush=True)

    def batch(self, kind: str):
        """See train.Data; columns of nothing but padding are cut off."""
        ids, counts = super().batch(kind)
        length = int((ids != self.pad).any(0).sum())
        return ids[:, :length], counts[:, :length]

    def without_repeats(self, logits, ids, counts):
        """Return the loss of the answer, with that of probability on its earlier words where a word comes next."""
        loss = train.likelihood(logits, ids, counts)
        rows, places = torch.nonzero(counts[:, 1:], as_tuple=True)
        wanted, before = ids[rows, places + 1], ids[rows]  # [N], [N, T]
        written = counts[rows] & (torch.arange(ids.shape[1]) <= places[:, None])
        repeats = written & self.is_word[before] & self.is_word[wanted][:, None] & (before != wanted[:, None])
        mass = (torch.softmax(logits, -1).gather(1, before) * repeats).sum(1)
        surprise = -torch.log1p(-mass.clamp(max=0.999))  # a piece that was written twice is counted twice
        return loss + REPEATING * surprise.sum() / repeats.any(1).sum().clamp(min=1)

    def rarity(self, word: str) -> int:
        """Return the class of a word: each holds words of about as many documents, up to twice the fewest."""
        return int(math.log2(1 + self.counts[word]))

    def _exercise(self, kind: str):
        if kind == "copy":
            return super()._exercise(kind)
        if kind == "join":
            request, query = joining(self.rng, self.any_words)
            return self._encoded(request, query)
        request, query = self.rng.choice(self.taught)
        if self.rng.random() > UNCHANGED:
            changed = {w: self._another(w) for w in content_words(request) if self.rng.random() < EXCHANGED}
            request, query = (renamed(text, changed) for text in (request, query))
        return self._encoded(request, query)

    def _encoded(self, request: str, query: str):
        return self.encode(train.PROMPT.format(request=request)), [*self.encode(" " + query), self.end]

    def _another(self, word: str) -> str:
        words = self.alike[self.rarity(word)]
        return self.rng.choice(words) if words and word.isalpha() else word


def joining(rng: random.Random, words: Sequence[str]) -> tuple[str, str]:
    """Return a request of random words, and a query of different ones of them."""
    request = rng.sample(words, rng.randint(2, 8))
    picked = rng.sample(request, min(len(request), rng.randint(2, 4)))
    if len(picked) > 2 and rng.random() < 0.5:
        return " ".join(request), f"{picked[0]} AND ( {' OR '.join(picked[1:])} )"
    return " ".join(request), rng.choice([" AND ", " AND ", " OR "]).join(picked)


def taught() -> Iterator[tuple[str, str]]:
    """Yield requests and good queries for them, of training modules alone."""
    entries = [entry for entry in read_entries() if not is_held_out(entry.module)]
    for number in range(SENTENCES):
        asked = [retold(entry, number) for entry in entries]
        corpus = stdlib_corpus([new or old for new, old in zip(asked, entries, strict=True)])
        assert not corpus.heldout
        index = SearchIndex.build(corpus.documents)
        told = {entry.name for entry in asked if entry}
        for request in corpus.train:
            if request.id in told and len(request.text) < LONGEST_REQUEST:
                relevant = np.array(sorted(index.number_of(id) for id in request.relevant), np.int32)
                text = " ".join(request.text.split()).lower()
                query = taught_query(f"{request.id}/{number}", text, relevant, index)
                if query is not None:
                    yield text, query


def retold(entry: Entry, number: int) -> Entry | None:
    """Return the entry with another sentence of its documentation as the summary; None if it has no such sentence."""
    if number == 0:
        return entry
    sentences = [" ".join(s.split()) for s in re.split(r"(?<=[.!?])\s+|\n\s*\n", entry.body)]
    sentences = [s for s in sentences if len(s.split()) in SENTENCE_WORDS and ">>>" not in s]
    if len(sentences) < number:
        return None
    body = " ".join(entry.body.split()).replace(sentences[number - 1], " ")
    return replace(entry, summary=sentences[number - 1], body=f"{entry.summary}\n{body}")


def renamed(text: str, changed: dict[str, str]) -> str:
    """Return a text with words exchanged."""
    return re.sub(r"[^\W_]+", lambda match: changed.get(match[0], match[0]), text)


if __name__ == "__main__":
    main()
