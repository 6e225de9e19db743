"""An invented corpus with known relevance, small enough for tests of learning.

Every concept has three synonyms, and a document names each of its concepts by only one of them. A request names
two concepts by one synonym each, so ``x AND y`` finds about a ninth of the relevant documents, and only
``( x OR x2 OR x3 ) AND ( y OR y2 OR y3 )`` finds exactly all of them. A word does not show its concept: only the
results of searches reveal synonyms.

Requests are split by pairs of concepts: no training request has the pair of a held-out one, but every concept of a
held-out request occurs in training requests.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Sequence

from steadyrl.core.errors import ConfigError
from steadyrl.environments.search.corpus import Corpus, Request
from steadyrl.environments.search.index import Document
from steadyrl.environments.search.words import STOP_WORDS

SYNONYMS = 3
REQUEST_TEXT = "documents about {} and {}"
MIN_RELEVANT = 3
HELDOUT_SHARE = 0.2
CONCEPTS_PER_DOCUMENT = (2, 3)
NOISE_VOCABULARY = 400
NOISE_WORDS_PER_DOCUMENT = (6, 12)
_CONSONANTS, _VOWELS = "bdfgklmnprstvz", "aeiou"
# No suffix that Porter's stemmer removes ends in one of these after a consonant, so every word is its own stem.
_LAST_VOWELS = "aou"

Pair = tuple[int, int]


def generated_corpus(concepts: int = 30, documents: int = 1500, seed: int = 0) -> tuple[Corpus, dict[str, str]]:
    """Make documents and requests; equal arguments give equal corpora.

    Returns:
        The corpus, and by request id the query that finds exactly what is relevant.

    Args:
        concepts: How many; each becomes three words.
        documents: How many. A pair of concepts becomes a request if three documents contain both.
        seed: Everything random follows from it.

    Raises:
        ConfigError: There are not enough words for the concepts, or not enough documents for requests of both splits.
    """
    rng = random.Random(seed)
    synonyms, noise = _vocabulary(concepts, rng)
    texts, relevant = _texts(synonyms, noise, documents, rng)
    pairs = sorted(pair for pair, numbers in relevant.items() if len(numbers) >= MIN_RELEVANT)
    held_out = _held_out(pairs, rng)
    if not held_out:
        raise ConfigError(
            f"{documents} documents on {concepts} concepts give {len(pairs)} pairs for requests, too few for "
            "a training and a held-out split; raise documents or lower concepts"
        )
    requests: dict[Pair, Request] = {}
    gold: dict[str, str] = {}
    for pair in pairs:
        # Each concept's words with the one that the request uses in front.
        first, second = (rng.sample(synonyms[concept], SYNONYMS) for concept in pair)
        id = f"c{pair[0]:02d}-c{pair[1]:02d}"
        text = REQUEST_TEXT.format(first[0], second[0])
        requests[pair] = Request(id, text, tuple(_document_id(number) for number in relevant[pair]))
        gold[id] = f"( {' OR '.join(first)} ) AND ( {' OR '.join(second)} )"
    corpus = Corpus(
        "generated",
        [Document(_document_id(number), text) for number, text in enumerate(texts)],
        [requests[pair] for pair in pairs if pair not in held_out],
        [requests[pair] for pair in pairs if pair in held_out],
    )
    return corpus, gold


def _document_id(number: int) -> str:
    return f"g{number:04d}"


def _vocabulary(concepts: int, rng: random.Random) -> tuple[list[tuple[str, ...]], list[str]]:
    letters = itertools.product(_CONSONANTS, _VOWELS, _CONSONANTS, _LAST_VOWELS)
    words = [word for word in map("".join, letters) if word not in STOP_WORDS]
    limit = (len(words) - NOISE_VOCABULARY) // SYNONYMS
    if not CONCEPTS_PER_DOCUMENT[1] <= concepts <= limit:
        raise ConfigError(f"concepts is {concepts}; expected {CONCEPTS_PER_DOCUMENT[1]} to {limit}")
    rng.shuffle(words)
    noise, concept_words = words[:NOISE_VOCABULARY], words[NOISE_VOCABULARY:]
    return [tuple(concept_words[SYNONYMS * i : SYNONYMS * (i + 1)]) for i in range(concepts)], noise


def _texts(
    synonyms: Sequence[tuple[str, ...]], noise: Sequence[str], documents: int, rng: random.Random
) -> tuple[list[str], dict[Pair, list[int]]]:
    """Return the documents' texts, and the numbers of the documents that have both concepts of a pair."""
    cumulative = list(itertools.accumulate(1 / rank for rank in range(1, len(noise) + 1)))  # Zipf's law
    texts: list[str] = []
    relevant: dict[Pair, list[int]] = defaultdict(list)
    for number in range(documents):
        present = sorted(rng.sample(range(len(synonyms)), rng.randint(*CONCEPTS_PER_DOCUMENT)))
        words = [rng.choice(synonyms[concept]) for concept in present]
        words += rng.choices(noise, cum_weights=cumulative, k=rng.randint(*NOISE_WORDS_PER_DOCUMENT))
        rng.shuffle(words)
        texts.append(" ".join(words))
        for pair in itertools.combinations(present, 2):
            relevant[pair].append(number)
    return texts, relevant


def _held_out(pairs: Sequence[Pair], rng: random.Random) -> frozenset[Pair]:
    """Choose a share of the pairs such that each of their concepts keeps a pair to train on."""
    training = Counter(concept for pair in pairs for concept in pair)
    held_out: set[Pair] = set()
    for pair in rng.sample(pairs, len(pairs)):
        if len(held_out) < round(HELDOUT_SHARE * len(pairs)) and all(training[concept] > 1 for concept in pair):
            held_out.add(pair)
            training.subtract(pair)
    return frozenset(held_out)
