import itertools

import numpy as np
import pytest

from steadyrl.environments.search.index import Document, SearchIndex
from steadyrl.environments.search.query import parse
from steadyrl.environments.search.worth import MALFORMED, weigh

DOCUMENTS = ("red cats purr", "red dogs bark", "cats and dogs play", "green birds sing songs")
RELEVANT = np.array([0, 2], np.int32)


@pytest.fixture(scope="module")
def index():
    return SearchIndex.build([Document(f"d{number}", text) for number, text in enumerate(DOCUMENTS)])


def weighed(index, query):
    return weigh(parse(query).tree, RELEVANT, index)


@pytest.mark.parametrize(
    ("query", "f1", "best_word", "words", "helping"),
    [
        ("cats", 1, 1, 1, 1),  # 0 and 2
        ("purr OR play", 1, 2 / 3, 2, 2),  # one of the two by either word
        ("cats OR cats", 1, 1, 2, 1),
        ("purr OR ( unicorn AND griffin )", 2 / 3, 2 / 3, 3, 1),  # a clause that finds nothing
        ("red AND cats", 2 / 3, 1, 2, 1),  # only 0; cats alone finds more
        ("purr AND ( red OR cats )", 2 / 3, 1, 3, 1),  # both words of the clause are in 0
        ("( red OR dogs ) NOT bark", 1, 1 / 2, 3, 3),  # without NOT 1 too, without red or dogs one of the two
        ("( red NOT bark ) OR play", 1, 2 / 3, 3, 3),
        ('"red cats"', 2 / 3, 1, 2, 1),
        ("pur* OR play", 1, 2 / 3, 2, 2),
        ("cats NOT unicorn", 1, 1, 2, 1),
        ("green", 0, 0, 1, 0),
        ("green OR birds", 0, 0, 2, 0),  # nothing relevant: nothing helps
        ("cats AND green", 0, 1, 2, 0),
    ],
)
def test_a_word_helps_if_leaving_it_out_makes_what_is_found_worse(index, query, f1, best_word, words, helping):
    found = weighed(index, query)
    assert (found.f1, found.best_word) == (pytest.approx(f1), pytest.approx(best_word))
    assert (found.words, found.helping) == (words, helping)


@pytest.mark.parametrize(
    ("query", "worth", "joint"),
    [
        ("cats", 1, 0),
        ("purr", 2 / 3, 0),
        ("purr OR play", 1, 1 / 3),  # 1 together, 2/3 apart
        ("cats OR cats", 1 / 2, 0),  # one word of two
        ("red AND cats", 2 / 3 / 2, 0),  # together worse than cats
        ("purr OR ( unicorn AND griffin )", 2 / 3 / 3, 0),
        ("purr OR play OR unicorn", 2 / 3, 2 / 3 / 3),  # two words of three
        ("green OR birds", 0, 0),
    ],
)
def test_rewards_are_paid_for_the_share_of_the_words_that_help(index, query, worth, joint):
    parts = weighed(index, query).metrics()
    assert (parts["worth"], parts["joint"]) == (pytest.approx(worth), pytest.approx(joint))


@pytest.mark.parametrize(
    ("query", "dead_part", "repeated_word", "no_operator", "two_help"),
    [
        ("cats", 0, 0, 1, 0),
        ('"red cats"', 0, 0, 1, 0),  # "red" and "cats" find more
        ("red AND cats", 0, 0, 0, 0),
        ("purr OR play", 0, 0, 0, 1),
        ("cats OR CATS", 1, 1, 0, 0),
        ("cat OR cats", 1, 0, 0, 0),  # one stem
        ("purr OR ( unicorn AND griffin )", 1, 0, 0, 0),
        ("green AND unicorn", 1, 0, 0, 0),  # without green nothing is found either
        ("green AND birds", 1, 0, 0, 0),
        ("( red OR dogs ) NOT bark", 0, 0, 0, 1),
    ],
)
def test_forms_are_marked(index, query, dead_part, repeated_word, no_operator, two_help):
    parts = weighed(index, query).metrics()
    marks = ("dead_part", "repeated_word", "no_operator", "two_help")
    assert tuple(parts[mark] for mark in marks) == (dead_part, repeated_word, no_operator, two_help)


def test_queries_made_of_the_results_of_their_words_find_what_the_engine_finds(index):
    """The F1 here and the engine's own result set agree, whatever the query."""
    words = ("red", "cats", "dogs", "play", "sing", "unicorn")
    forms = ("{} AND {} OR {}", "{} AND ( {} OR {} )", "{} NOT ( {} AND {} )", "( {} OR {} ) NOT {}")
    for form, three in itertools.product(forms, itertools.permutations(words, 3)):
        tree = parse(form.format(*three)).tree
        found = set(index.search(tree).tolist())
        hits = len(found & {0, 2})
        assert weigh(tree, RELEVANT, index).f1 == pytest.approx(2 * hits / (len(found) + 2)), form.format(*three)


def test_a_core_cannot_be_made_shorter(index):
    """Words that help are counted when nothing more can go: a query of many dead words has one that helps."""
    assert weighed(index, " OR ".join(["cats", *["unicorn", "griffin"] * 10])).helping == 1


def test_a_malformed_query_has_every_mark_and_all_are_zero(index):
    assert set(weighed(index, "cats").metrics()) == set(MALFORMED)
    assert set(MALFORMED.values()) == {0.0}
