import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steadyrl.environments.search.query import And, Not, Or, Phrase, Term, canonical, parse, terms, to_fts5

a, b, c, d, e = (Term(letter) for letter in "abcde")


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("a", a),
        ("( a OR b ) AND c", And((Or((a, b)), c))),
        ("a OR b AND c", Or((a, And((b, c))))),
        ("a AND b OR c", Or((And((a, b)), c))),
        ("a OR b OR c", Or((a, b, c))),
        ("a NOT b", Not(a, b)),
        ("a AND NOT b", Not(a, b)),
        ("a OR b NOT c", Or((a, Not(b, c)))),
        ("a AND b NOT c AND d NOT e", Not(And((a, b, d)), Or((c, e)))),
        ("a NOT (b OR c)", Not(a, Or((b, c)))),
        ("((a))", a),
        ("(a)OR(b)", Or((a, b))),
        ('"Absolute  Path"', Phrase(("absolute", "path"))),
        ('"word"', Term("word")),
        ("dir*", Term("dir", prefix=True)),
        ("-dir*", Term("dir", prefix=True)),
        ("lung-cancer", Phrase(("lung", "cancer"))),
        ("os.path", Phrase(("os", "path"))),
        ("title:foo", Phrase(("title", "foo"))),
        ("__init__", Term("__init__")),
        ("and OR Not", Or((Term("and"), Term("not")))),
        ('"a AND b"', Phrase(("a", "and", "b"))),
        ('"dir*"', Term("dir")),
        ("ÉCOLE AND 東京", And((Term("école"), Term("東京")))),
        ("cafe\u0301s", Term("cafe\u0301s")),
        ("a\0b", Phrase(("a", "b"))),
        ("a\udc80b", Phrase(("a", "b"))),
        ("\ta\nOR\u3000b ", Or((a, b))),
    ],
)
def test_well_formed_queries_become_trees(text, tree):
    assert parse(text).tree == tree
    assert parse(text).problem == ""


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "the query is empty (character 1)"),
        (" \n ", "the query is empty (character 4)"),
        ("()", "empty parentheses (character 2)"),
        ("a AND ( )", "empty parentheses (character 9)"),
        ("a b", "missing operator between 'a' and 'b' (character 3)"),
        ('a "b c"', "missing operator between 'a' and '\"b c\"' (character 3)"),
        ("NEAR(a OR b, 5)", "missing operator between 'NEAR' and '(' (character 5)"),
        ("(a) b", "missing operator between ')' and 'b' (character 5)"),
        ("a and b", "missing operator between 'a' and 'and' (character 3)"),
        ("AND a", "AND has nothing on its left (character 1)"),
        ("a AND OR b", "OR has nothing on its left (character 7)"),
        ("a NOT AND b", "AND has nothing on its left (character 7)"),
        ("(OR a)", "OR has nothing on its left (character 2)"),
        ("a AND", "AND has nothing on its right (character 6)"),
        ("(a OR)", "OR has nothing on its right (character 6)"),
        ("a AND NOT", "NOT has nothing on its right (character 10)"),
        ("NOT a", "NOT needs a term on its left; write a NOT b (character 1)"),
        ("a AND (NOT b)", "NOT needs a term on its left; write a NOT b (character 8)"),
        ("a OR NOT b", "NOT needs a term on its left; write a NOT b (character 6)"),
        ("a NOT NOT b", "NOT needs a term on its left; write a NOT b (character 7)"),
        ("a OR b)", "this ) closes nothing (character 7)"),
        (")", "this ) closes nothing (character 1)"),
        ("a OR (b AND c", "this ( is not closed (character 6)"),
        ('a OR "b', "this quote is not closed (character 6)"),
        ('""', "no letter or digit in '\"\"' (character 1)"),
        ("a OR --", "no letter or digit in '--' (character 6)"),
        ("_", "no letter or digit in '_' (character 1)"),
        ("*", "a * must end one plain word, unlike in '*' (character 1)"),
        ("th*r", "a * must end one plain word, unlike in 'th*r' (character 1)"),
        ("dir**", "a * must end one plain word, unlike in 'dir**' (character 1)"),
        ("os.pa*", "a * must end one plain word, unlike in 'os.pa*' (character 1)"),
        ('"a b"*', "a * must end one plain word, unlike in '*' (character 6)"),
        ("\0\x1b", r"no letter or digit in '\x00\x1b' (character 1)"),
        ("-" * 50, f"no letter or digit in '{'-' * 37}...' (character 1)"),
        ("(" * 300, "parentheses deeper than 16 (character 17)"),
        ("a" * 2001, "2001 characters, at most 2000 are read (character 2001)"),
        (" OR ".join(["a"] * 65), "more than 64 terms (character 321)"),
        (f'"{"a " * 17}"', "a phrase of 17 words, at most 16 are read (character 1)"),
        (".".join("a" * 17), "a phrase of 17 words, at most 16 are read (character 1)"),
    ],
)
def test_malformed_queries_say_what_is_wrong_and_where(text, problem):
    assert parse(text).problem == problem
    assert parse(text).tree is None


@pytest.mark.parametrize(
    "text",
    [
        "a" * 2000,
        " OR ".join(["a"] * 64),
        f'"{"a " * 16}"',
        "(" * 16 + "a" + ")" * 16,
    ],
)
def test_a_query_at_a_limit_is_still_read(text):
    assert parse(text).problem == ""


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a AND b", "(b AND a)"),
        ("a OR (b OR (c OR a))", "C OR B OR A"),
        ("a AND a", "A"),
        ("a AND NOT b", "a NOT b"),
        ("(a NOT b) NOT c", "a NOT (c OR b)"),
        ("a AND (b NOT c) AND (a NOT d)", "a AND b NOT c NOT d"),
        ("lung-cancer OR x", 'x OR "Lung Cancer"'),
        ("(a AND b) OR c OR (b AND a)", "c OR a AND b"),
    ],
)
def test_queries_of_equal_meaning_share_a_canonical_form(one, other):
    assert canonical(parse(one).tree) == canonical(parse(other).tree)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a AND b", "a OR b"),
        ("a*", "a"),
        ("a NOT b", "b NOT a"),
        ("(a OR b) AND c", "a OR b AND c"),
        ('"a b"', '"b a"'),
    ],
)
def test_queries_of_different_meaning_have_different_canonical_forms(one, other):
    assert canonical(parse(one).tree) != canonical(parse(other).tree)


def test_the_canonical_form_is_readable():
    tree = parse("( file OR path ) AND NOT dir* AND absolute-path").tree
    assert canonical(tree) == '(("file" OR "path") AND "absolute path") NOT "dir"*'


def test_fts5_gets_quoted_words_in_the_text_column_alone():
    assert to_fts5(parse("near OR Title:foo").tree) == 'text : ("near" OR "title foo")'


def test_words_of_hand_made_terms_cannot_leave_their_quotes():
    assert to_fts5(Or((Term('x" OR title:y'), Phrase(("a\0", '"'))))) == 'text : ("a" OR "x or title y")'


def test_terms_lists_all_words_from_left_to_right():
    assert terms(parse('( file OR dir* ) AND "absolute path" NOT file').tree) == [
        "file",
        "dir",
        "absolute",
        "path",
        "file",
    ]


def test_space_around_a_query_is_no_part_of_it():
    assert parse(f" {'x' * 1_998} \n").tree == parse("x" * 1_998).tree is not None
    assert parse("\n a AND b ").tree == parse("a AND b").tree


words = st.sampled_from(["a", "b", "Path", "dir*", '"absolute path"', "os.path"])


def joined(parts):
    return st.tuples(parts, st.sampled_from([" AND ", " OR ", " NOT ", " AND NOT "]), parts).map("".join)


queries = st.recursive(words, lambda inner: joined(inner | inner.map("({})".format)), max_leaves=12)


@given(queries)
@settings(max_examples=100, deadline=None)
def test_the_canonical_form_is_a_query_with_itself_as_canonical_form(text):
    # FTS5 writes a prefix as "dir"*, the query language as dir*.
    once = canonical(parse(text).tree)
    again = canonical(parse(once.replace('"dir"*', "dir*")).tree)
    assert again == once
