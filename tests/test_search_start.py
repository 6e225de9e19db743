"""The model that examples/search-grpo.toml begins with, and the exercises that made it."""

import collections
import hashlib
import importlib.util
import random
import re
import sys
from pathlib import Path

import pytest

from steadyrl.environments.search.query import parse, terms
from tests import needs

ROOT = Path(__file__).parent.parent
START = ROOT / "examples" / "search-start"
CONTENT, WORDS, SPELLED = (
    [f"{kind}{number}" for number in range(size)] for kind, size in (("asked", 5), ("known", 400), ("pieced", 400))
)


@pytest.fixture
def texts(monkeypatch):
    spec = importlib.util.spec_from_file_location("texts", ROOT / "scripts" / "base_model" / "texts.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "texts", module)
    spec.loader.exec_module(module)
    return module


def test_exercises_are_queries_of_any_words_of_the_prompt(texts):
    rng, forms, places = random.Random(0), collections.Counter(), collections.Counter()
    kinds = collections.Counter()
    for _ in range(3000):
        found, query = texts.found_words(rng, CONTENT, WORDS, SPELLED)
        leaves = re.findall(r'"[^"]+"|\w+', found)
        shown = found.replace('"', "").split()
        assert " ".join(leaves) == found and len(set(leaves)) == len(leaves) and 2 <= len(shown) <= 6
        tree = parse(query).tree
        assert tree is not None and set(terms(tree)) <= {*shown, *CONTENT}
        assert len(set(terms(tree))) == len(terms(tree)) or '"' in query  # a random phrase may hold a word twice
        kinds.update(word.strip("0123456789") for word in shown)
        forms[re.sub(r"\w+\d+", "w", query)] += 1
        if '"' not in query and len(shown) > 3:
            alone = [leaf for leaf in leaves if '"' not in leaf]
            places.update({"first": alone[0] in terms(tree), "last": alone[-1] in terms(tree)} if alone else {})
    assert set(forms) == {"w", '"w w"', "w AND w", "w OR w", "w AND ( w OR w )"} and min(forms.values()) > 100
    assert set(kinds) == {"asked", "known", "pieced"} and kinds["known"] > kinds["pieced"] > kinds["asked"] > 1000
    # which words find more is left to be learned: none is taught more often for its place
    assert places["first"] == pytest.approx(places["last"], rel=0.15) and places["first"] > 400


def test_neighbours_are_taught_as_often_as_asked_wherever_they_stand(texts):
    rng, together, places = random.Random(0), collections.Counter(), collections.Counter()
    for _ in range(4000):
        found, query = texts.found_words(rng, [], WORDS, SPELLED, near=0.7)
        alone = [leaf for leaf in re.findall(r'"[^"]+"|\w+', found) if '"' not in leaf]
        if '"' not in query and re.fullmatch(r"\w+ AND \w+", query) and len(alone) == 6:
            first, second = (alone.index(word) for word in query.split(" AND "))
            together[second - first == 1] += 1
            places[first] += second - first == 1
    # of the other pairs a third are neighbours, and three quarters of these have the first word first
    assert together[True] / together.total() == pytest.approx(0.7 + 0.3 * 0.25, abs=0.08)
    assert len([place for place in range(5) if places[place] > 0.1 * places.total()]) == 5


def test_exercises_need_no_word_of_the_request(texts):
    for seed in range(200):
        found, query = texts.found_words(random.Random(seed), [], WORDS, SPELLED)
        assert set(terms(parse(query).tree)) <= set(found.replace('"', "").split())


def test_the_shipped_model_is_the_measured_one():
    file = START / "model.safetensors"
    digest, name = (START / "model.safetensors.sha256").read_text().split()
    assert (hashlib.sha256(file.read_bytes()).hexdigest(), name) == (digest, file.name)
    assert file.stat().st_size < 4e6
    base = ROOT / "steadyrl" / "backends" / "base-model"
    assert (START / "tokenizer.json").read_bytes() == (base / "tokenizer.json").read_bytes()


def test_the_shipped_model_writes_words_that_no_text_of_its_training_has():
    torch, transformers = needs.package("torch"), needs.package("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(START)
    model = transformers.AutoModelForCausalLM.from_pretrained(START, dtype=torch.float32).eval()
    rng, copied, strange, whole = random.Random(0), [], 0, 0
    words = sorted(p[1:] for p in tokenizer.get_vocab() if re.fullmatch(r"Ġ[a-z]{4,}", p))
    for _ in range(24):
        invented = ["".join(rng.choices("bdfgklmnprstvz", k=1) + rng.choices("aeiou", k=1)) * 2 for _ in range(2)]
        found = " ".join(rng.sample([*invented, *rng.sample(words, 4)], 6))
        ids = tokenizer(
            f"request: {rng.choice(words)} {rng.choice(words)}.\nfound: {found}\nquery:", return_tensors="pt"
        )
        out = model.generate(**ids, max_new_tokens=16, do_sample=False)[0, ids["input_ids"].shape[1] :]
        query = parse(tokenizer.decode(out, skip_special_tokens=True))
        whole += query.tree is not None
        written = terms(query.tree) if query.tree else []
        copied += [word in found.split() for word in written]
        strange += sum(word in invented for word in written)
    assert whole >= 22 and strange >= 10 and sum(copied) / len(copied) > 0.7
