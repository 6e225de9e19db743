"""What queries find, compared with sets of documents made without the engine."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steadyrl.environments.search.index import Document, SearchIndex
from steadyrl.environments.search.query import And, Node, Not, Or, Phrase, Term, parse

EXAMPLES = settings().max_examples  # of a test of `make test`, or of each week
# Words that Porter's stemmer leaves alone; "cat" begins "catnip".
VOCABULARY = ("cat", "catnip", "dog", "fox", "pig", "zoo")
TEXTS = tuple(
    " ".join(word for place, word in enumerate(VOCABULARY) if number >> place & 1) or "empty" for number in range(64)
)
TEXTS += ("dog cat", "zoo fox pig", "Cat. Dog?", "fox-pig_zoo")


def documents(texts):
    return [Document(f"d{number}", text) for number, text in enumerate(texts)]


@pytest.fixture(scope="module")
def index():
    with SearchIndex.build(documents(TEXTS)) as built:
        yield built


@pytest.fixture
def prose():
    texts = (
        "Files and directories",
        "An absolute path, os.path",
        "lung-cancer in Café 東京",
        "the relation of text and id",
        "path absolute",
        "a\0secret word",
    )
    with SearchIndex.build(documents(texts)) as built:
        yield built


def found(index, text):
    return index.search(parse(text).tree).tolist()


def words(text):
    return text.lower().replace("-", " ").replace("_", " ").replace(".", " ").replace("?", " ").split()


def matching(node: Node) -> set[int]:
    """The meaning of a tree, by sets of documents."""
    match node:
        case Term(text, prefix):
            fits = text.__eq__ if not prefix else lambda word: word.startswith(text)
            return {number for number, document in enumerate(TEXTS) if any(map(fits, words(document)))}
        case Phrase(phrase):
            wanted = f" {' '.join(phrase)} "
            return {number for number, document in enumerate(TEXTS) if wanted in f" {' '.join(words(document))} "}
        case And(children):
            return set.intersection(*(matching(child) for child in children))
        case Or(children):
            return set.union(*(matching(child) for child in children))
        case Not(keep, drop):
            return matching(keep) - matching(drop)


leaves = (
    st.sampled_from(VOCABULARY).map(Term)
    | st.sampled_from(["cat", "ca", "z", "q"]).map(lambda text: Term(text, prefix=True))
    | st.tuples(*[st.sampled_from(VOCABULARY)] * 2).map(Phrase)
)


def composites(inner):
    several = st.lists(inner, min_size=2, max_size=4).map(tuple)
    return several.map(And) | several.map(Or) | st.builds(Not, inner, inner)


trees = st.recursive(leaves, composites, max_leaves=24)


@given(trees)
@settings(max_examples=3 * EXAMPLES, deadline=None)
def test_the_engine_finds_what_sets_say(index, tree):
    assert set(index.search(tree).tolist()) == matching(tree)


written_leaves = st.sampled_from([*VOCABULARY, "ca*", "Dog", '"dog cat"', "fox-pig", "zoo.fox"])


def written(inner):
    operators = st.sampled_from([" AND ", " OR ", " NOT ", " AND NOT "])
    return st.tuples(inner, operators, inner).map("".join) | inner.map("({})".format)


PYTHON_OPERATORS = {"OR": "|", "AND": "&", "NOT": "-"}


def sets_by_python(text):
    """Evaluate a query with Python's own precedence: - over & over |, which is NOT over AND over OR."""
    python = text.replace("AND NOT", "NOT").replace('"dog cat"', "dog-cat")
    sets, parts = {}, []
    for piece in python.replace("(", " ( ").replace(")", " ) ").split():
        if piece in PYTHON_OPERATORS or piece in "()":
            parts.append(PYTHON_OPERATORS.get(piece, piece))
            continue
        leaf = Term(piece[:-1], prefix=True) if piece.endswith("*") else Phrase(tuple(words(piece)))
        sets[f"s{len(sets)}"] = matching(leaf)
        parts.append(f"s{len(sets) - 1}")
    return eval(" ".join(parts), {}, sets)


@given(st.recursive(written_leaves, written, max_leaves=12))
@settings(max_examples=2 * EXAMPLES, deadline=None)
def test_written_queries_mean_what_python_sets_with_the_same_precedence_mean(index, text):
    assert set(found(index, text)) == sets_by_python(text)


NASTY = ['"', "*", "NEAR(", ", 2)", "text :", "id :", "-", "'", "^", "{a b}:", "+", ";--", "東京", "\0", "\ud800"]
NASTY += ["(", ")", " ", "AND", "OR", "NOT", " AND ", " OR ", " NOT ", "cat", "dog", "cat*", "rowid", "(" * 300]


@given(st.text(max_size=60) | st.lists(st.sampled_from(NASTY), max_size=12).map("".join))
@settings(max_examples=4 * EXAMPLES, deadline=None)
def test_no_text_raises_or_finds_a_document_that_does_not_match(index, text):
    query = parse(text)
    if query.tree is None:
        assert query.problem and "\n" not in query.problem
        return
    assert set(index.search(query.tree).tolist()) <= matching(query.tree)


@pytest.mark.parametrize(
    "text",
    [
        "id : d1",
        "d1",
        '" OR text : "',
        "title:foo",
        'text:"d1"',
        "rowid:1 OR documents:1",
        'x" OR "absolute',
        "{text id}:path",
        "d1' OR '1'='1",
        "documents MATCH path",
        "rank",
    ],
)
def test_a_query_cannot_read_another_column_or_bring_its_own_syntax(prose, text):
    query = parse(text)
    assert query.tree is None or prose.search(query.tree).size == 0


def test_engine_operators_in_a_query_are_plain_words(prose):
    assert found(prose, "text:path") == []
    assert found(prose, "^absolute") == [1, 4]
    assert found(prose, "+path OR -path") == [1, 4]


def test_a_term_made_by_hand_cannot_bring_syntax_either(prose):
    for text in ['x" OR "absolute', 'absolute" NOT "x', "\0", '"', "\ud800", ""]:
        assert prose.search(Term(text)).size == 0
        assert prose.search(Term(text, prefix=True)).size == 0


def test_words_are_found_by_stem_accent_and_case(prose):
    assert found(prose, "file") == [0]
    assert found(prose, "DIRECTORY") == [0]
    assert found(prose, "cafe AND 東京") == [2]
    assert found(prose, "cafe\u0301") == [2]


def test_phrases_keep_their_order(prose):
    assert found(prose, '"absolute path"') == [1]
    assert found(prose, "absolute AND path") == [1, 4]
    assert found(prose, "os.path OR lung-cancer") == [1, 2]


def test_a_prefix_is_compared_with_stems(prose):
    assert found(prose, "rela*") == [3]
    assert found(prose, "relatio*") == []


def test_a_document_with_a_nul_character_is_found_by_the_words_behind_it(prose):
    assert found(prose, "secret") == [5]


LEVELS = (
    "c{level} NOT ({inner})",
    "c{level} OR d{level} AND e{level} NOT ({inner})",
    "c{level} AND d{level} OR ({inner})",
    "(c{level} OR d{level}) NOT ({inner})",
    "c{level} AND ({inner})",
    "c{level} NOT d{level} NOT ({inner})",
    "c{level} AND (d{level} OR ({inner}))",
)


@pytest.mark.parametrize("level", LEVELS)
def test_the_deepest_queries_that_are_read_fit_the_parser_of_the_engine(index, level):
    inner = deepest = "cat"
    while parse(inner).tree is not None:
        deepest, inner = inner, level.format(level=inner.count("("), inner=inner)
    assert deepest.count("(") >= 15
    index.search(parse(deepest).tree)


@pytest.mark.parametrize("operator", [" AND ", " OR ", " NOT "])
def test_the_longest_chains_that_are_read_fit_the_parser_of_the_engine(index, operator):
    chain = operator.join(f"w{number}" for number in range(64))
    assert index.search(parse(chain).tree).size == 0


def test_threads_may_share_an_index(index):
    queries = [f"{one} AND {other}" for one in VOCABULARY for other in VOCABULARY] * 3
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda text: set(found(index, text)), queries))
    assert results == [matching(parse(text).tree) for text in queries]
