"""The base model's tokenizer: most words of the corpus are one token with their space, byte pieces spell the rest.

A byte-level BPE whose vocabulary also holds whole words. With ``ignore_merges`` a word that stands in the vocabulary
becomes its one token at once; any other word is spelled by merges that were learned from Python source. Copying a
word of the request is then one step of attention, which a model of this size learns in a minute; with 4096 merges
learned from scratch it did not learn it in ten.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

END, PAD = "<|end|>", "<|pad|>"
_PIECE = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s*[\r\n]+|\s+(?!\S)|\s+"
# What later tasks write and read: operators, page elements, actions.
_ALWAYS = (
    " AND OR NOT ( ) query request : click type select scroll back stop link button input textbox checkbox page "
    "option heading form goal task action true false none def return if else for in while not and or import from "
    "class self lambda len range str int list dict set sum max min sorted print assert"
).split()


def train_tokenizer(requests: Iterable[str], documents: Iterable[str], source: Iterable[str], size: int) -> Tokenizer:
    """Build the tokenizer: words of requests first, then of documents and source by frequency, ``size`` in all."""
    split = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(_regex(), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    vocabulary, merges = _spelling(list(source)[:400], split)
    for piece in [*_pieces(requests, documents, split), *_source_pieces(source, split)]:
        if len(vocabulary) >= size - 2:
            break
        vocabulary.setdefault(piece, len(vocabulary))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=True))
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(END, special=True), AddedToken(PAD, special=True)])
    return tokenizer


def save(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json and its settings in the Hugging Face layout, for transformers 4 and 5 alike."""
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": PAD,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def _regex():
    from tokenizers import Regex

    return Regex(_PIECE)


def _spelling(source: list[str], split) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Learn a few hundred merges, so that unknown words cost two to four pieces rather than one per byte."""
    speller = Tokenizer(models.BPE())
    speller.pre_tokenizer = split
    trainer = trainers.BpeTrainer(
        vocab_size=768, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    speller.train_from_iterator(source, trainer)
    model = json.loads(speller.to_str())["model"]
    ordered = sorted(model["vocab"], key=model["vocab"].get)
    return {piece: i for i, piece in enumerate(ordered)}, [tuple(m) for m in model["merges"]]


def _pieces(requests: Iterable[str], documents: Iterable[str], split) -> list[str]:
    """Words of requests and documents in lower case with their space, the frequent ones first."""
    asked = Counter(w for text in requests for w in re.findall(r"[^\W\d_]+", text.lower()))
    written = Counter(w for text in documents for w in re.findall(r"[^\W\d_]+", text.lower()))
    ordered = [*_ALWAYS, *(w for w, _ in asked.most_common()), *(w for w, n in written.most_common() if n > 3)]
    inside = [piece for word in dict.fromkeys(ordered) for piece, _ in split.pre_tokenize_str(f" {word}")]
    return [piece for word in _ALWAYS for piece, _ in split.pre_tokenize_str(word)] + inside


def _source_pieces(source: Iterable[str], split) -> list[str]:
    counts: Counter[str] = Counter()
    for text in source:
        counts.update(piece for piece, _ in split.pre_tokenize_str(text))
    return [piece for piece, n in counts.most_common(4000) if len(piece) < 20]
