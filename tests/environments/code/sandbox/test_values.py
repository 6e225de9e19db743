import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steadyrl.environments.code.sandbox.values import (
    MAX_DEPTH,
    Opaque,
    check,
    decode,
    encode,
    line,
    read_line,
    same,
    short_repr,
)

hashable = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.complex_numbers(allow_nan=False),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=5,
)
plain = st.recursive(
    hashable,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(hashable, inner, max_size=3) | st.sets(hashable, max_size=3)
    ),
    max_leaves=10,
)


@given(plain)
def test_plain_values_come_back_as_they_were(value):
    text = line(encode(value))
    assert text.endswith(b"\n") and text.count(b"\n") == 1 and b"{" not in text
    wire = read_line(text)
    check(wire)
    back = decode(wire)
    assert back == value
    assert repr(type(back)) == repr(type(value))
    assert same(wire, value)


@given(plain, plain)
def test_values_are_the_same_exactly_if_they_are_equal_and_of_one_kind(first, second):
    def kinds(value):
        """Write out what == passes over and ``same`` does not: [1] is not (1,), wherever they stand in lists."""
        if isinstance(value, list | tuple):
            return [type(value).__name__, *map(kinds, value)]
        return {key: kinds(item) for key, item in value.items()} if isinstance(value, dict) else value

    assert same(encode(first), second, tolerance=0.0) == (kinds(first) == kinds(second))


def test_what_is_not_plain_comes_back_as_the_name_of_its_type():
    back = decode(encode([object(), len]))
    assert [item.type_name for item in back] == ["object", "builtin_function_or_method"]
    assert isinstance(back[0], Opaque)


def test_built_in_types_come_back_as_themselves_and_others_do_not():
    class int(float):  # named as a built-in type is
        pass

    back = decode(encode([str, ValueError, type(None), int, Opaque]))
    assert back[:3] == [str, ValueError, type(None)]
    assert [type(item) for item in back[3:]] == [Opaque, Opaque]


def test_subclasses_come_back_as_the_built_in_type():
    from collections import Counter, OrderedDict, namedtuple

    point = namedtuple("point", "x y")
    back = decode(encode([Counter("aab"), OrderedDict(a=1), point(1, 2), True]))
    assert back == [{"a": 2, "b": 1}, {"a": 1}, (1, 2), True]
    assert [type(item) for item in back] == [dict, dict, tuple, bool]


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[",
        b'{"a": 1}',
        b'["list", {}]',
        b'["int", 5]',
        b'["int", "5"]',
        b'["int", "0x5", 1]',
        b'["set", ["nothing", 1]]',
        b"[]",
        b"[1, 2]",
        b'[["list"]]',
        b'["dict", 1]',
        b'["bytes", "zz"]',
        b'["bytes", "abc"]',
        b'["float", "1.5"]',
        b'["float", ["nan"]]',
        b'["complex", 1.0]',
        b'["complex", 1, 2.0]',
        b'["type", "Opaque"]',
        b'["type", ["int"]]',
        b'["reference", 0]',
        b'["opaque", 0]',
        b"9" * 5000,
        "\ufeff1".encode(),
        '["list"]'.encode("utf-16"),
        b"[" * 10**5,
        b'["list", ' * (MAX_DEPTH + 1) + b"1" + b"]" * (MAX_DEPTH + 1),
    ],
)
def test_what_a_candidate_cannot_have_meant_is_refused(text):
    with pytest.raises((ValueError, RecursionError)):
        check(read_line(text))


def nested(depth):
    value = []
    for _ in range(depth - 1):
        value = [value]
    return value


def test_values_may_be_nested_a_hundred_deep_and_no_deeper():
    check(encode(nested(MAX_DEPTH)))
    assert same(encode(nested(MAX_DEPTH)), nested(MAX_DEPTH))
    for deep in (MAX_DEPTH + 1, 492, 10**5):
        with pytest.raises(ValueError, match="more than 100 deep"):
            encode(nested(deep))
    endless = []
    endless.append(endless)
    with pytest.raises(ValueError, match="more than 100 deep"):
        encode(endless)


COLLIDING = [index * (2**61 - 1) for index in range(31_000)]  # CPython's hash of each of them is 0


def test_reading_and_comparing_values_hashes_nothing_that_a_candidate_chose():
    """Rebuilt as a set or dict, these take some twenty seconds; nothing here may take one."""
    kinds = [["set", *COLLIDING], ["dict", *(part for item in COLLIDING for part in (item, None))]]
    began = time.process_time()
    for wire in kinds:
        got = read_line(line(wire))
        check(got)
        assert not same(got, {1, 2})
        assert not same(got, dict.fromkeys(range(31_000)))
        assert not same(got, set(range(31_000)))
        assert short_repr(got).endswith("...")
    assert time.process_time() - began < 5


def test_a_repeated_element_or_key_stands_for_no_other():
    assert not same(["set", 1, 1], {1, 2})
    assert not same(["dict", 1, "a", 1, "a"], {1: "a", 2: "a"})
    assert same(["set", 2, ["frozenset", 3, 4]], {frozenset({4, 3}), 2})
    assert same(["dict", ["tuple", 1, 2.0], 0.1 + 0.2], {(1.0, 2): 0.3})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([1, (2,), {3}], "[1, (2,), {3}]"),
        ({"a": [1.5, None]}, "{'a': [1.5, None]}"),
        (10**400, "an integer of 1329 bits"),
        ("\ud800", "'\\ud800'"),
        ("x" * 100, "'" + "x" * 56 + "..."),
        (object(), "an object of type 'object'"),
        (b"ab", "b'ab'"),
        (float("nan"), "nan"),
        (int, "int"),
        ([0] * 10**5, "[" + "0, " * 18 + "0,..."),
    ],
)
def test_values_are_shown_as_a_reader_would_write_them(value, text):
    assert short_repr(encode(value)) == text


@pytest.mark.parametrize(
    ("got", "expected", "equal"),
    [
        (1, 1, True),
        (1, True, True),  # as == has it
        (0.1 + 0.2, 0.3, True),
        (1e12 + 1, 1e12, True),
        (1.00001, 1.0, False),
        (1, 1.0, True),
        ("1", 1.0, False),
        (10**400, 1.0, False),
        (math.inf, math.inf, True),
        (math.inf, 1e308, False),
        (math.nan, math.nan, True),
        (math.nan, 0.0, False),
        (1 + 2j, 1 + 2j, True),
        (1 + 0j, 1, True),
        (b"a", b"a", True),
        ("a", b"a", False),
        ([], {}, False),
        ([0.1 + 0.2], [0.3], True),
        ([1, 2], (1, 2), False),
        ([1], [1, 2], False),
        ({"a": 0.1 + 0.2}, {"a": 0.3}, True),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ({1, 2}, {2, 1}, True),
        (None, 0, False),
        ([], False, False),
        (b"", ..., False),
        (b"abc", object(), False),
        ([b""], [...], False),
    ],
)
def test_values_compare_as_a_reader_expects(got, expected, equal):
    assert same(encode(got), expected) is equal
