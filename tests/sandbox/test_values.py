import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steadyrl.sandbox.values import Opaque, dumps, loads, same

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
    line = dumps(value)
    assert "\n" not in line and line.isascii()
    back = loads(line)
    assert back == value
    assert repr(type(back)) == repr(type(value))


def test_what_is_not_plain_comes_back_as_the_name_of_its_type():
    back = loads(dumps([object(), len]))
    assert [item.type_name for item in back] == ["object", "builtin_function_or_method"]
    assert isinstance(back[0], Opaque)


def test_subclasses_come_back_as_the_built_in_type():
    from collections import Counter, OrderedDict, namedtuple

    point = namedtuple("point", "x y")
    back = loads(dumps([Counter("aab"), OrderedDict(a=1), point(1, 2), True]))
    assert back == [{"a": 2, "b": 1}, {"a": 1}, (1, 2), True]
    assert [type(item) for item in back] == [dict, dict, tuple, bool]


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{",
        '{"int": 5}',
        '{"set": 3}',
        '{"a": 1, "b": 2}',
        "{}",
        '{"dict": [[1]]}',
        '{"bytes": "zz"}',
        '{"set": [[1]]}',
        "[" * 10**5,
    ],
)
def test_what_dumps_does_not_write_is_refused(line):
    with pytest.raises(ValueError):
        loads(line)


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
        ([0.1 + 0.2], [0.3], True),
        ([1, 2], (1, 2), False),
        ([1], [1, 2], False),
        ({"a": 0.1 + 0.2}, {"a": 0.3}, True),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ({1, 2}, {2, 1}, True),
        (None, 0, False),
        ([], False, False),
    ],
)
def test_values_compare_as_a_reader_expects(got, expected, equal):
    assert same(got, expected) is equal
