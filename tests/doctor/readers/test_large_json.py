"""Large JSON goes through another parser than small JSON, and nobody may notice."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steadyrl.doctor.readers.lines import LARGE, parse_json, parse_objects

ODD = (
    *("NaN", "Infinity", "-Infinity", "1e400", "-1e400", "1e-400", "-0", "-0.0", "5e-324", "2.2250738585072011e-308"),
    *("0.1000000000000000055511151231257827021", "17976931348623159e292", "9" * 40, "-9223372036854775809"),
    *('"\\ud800"', '"\\ud83d\\ude00"', '"\\u0000\\/é"', '"\x7f"', '{"a": 1, "b": 2, "a": 3}', "[" * 500 + "]" * 500),
    *("-NaN", "nan", "Inf", "01", "1.", ".5", "+1", "1_0", '"\x01"', "[1,]", '{"a": 1,}', "1 2", "\ufeff1", "1\x00"),
    *("9" * 5000, ""),
)
NESTED = st.recursive(
    st.sampled_from(ODD) | st.floats().map(json.dumps) | st.integers().map(str) | st.text(max_size=5).map(json.dumps),
    lambda inner: (
        st.lists(inner, max_size=4).map(lambda texts: f"[{', '.join(texts)}]")
        | st.lists(st.tuples(st.sampled_from("abé"), inner), max_size=4).map(
            lambda pairs: "{" + ",".join(f'"{key}": {text}' for key, text in pairs) + "}"
        )
    ),
    max_leaves=8,
)


def by_python(text):
    """Return what Python's own parser makes of a text, None for what it refuses."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def same(text):
    """Return whether a text that is large by blanks before it is read as Python reads it."""
    return repr(parse_json(b" " * LARGE + text.encode())) == repr(by_python(text))


@pytest.mark.parametrize("text", ODD, ids=lambda text: text[:12])
def test_odd_values_are_read_as_python_reads_them(text):
    assert same(text)


@settings(max_examples=60, deadline=None)
@given(text=NESTED)
def test_any_large_text_is_read_as_python_reads_it(text):
    assert same(text)


@settings(max_examples=30, deadline=None)
@given(values=st.lists(st.floats(), min_size=1, max_size=20))
def test_every_digit_of_a_float_survives(values):
    assert repr(parse_json(b" " * LARGE + json.dumps(values).encode())) == repr(values)


def test_broken_unicode_in_a_large_text_is_replaced_and_not_lost():
    assert parse_json(b" " * LARGE + b'{"name": "\xff", "loss": 1}') == {"name": "\ufffd", "loss": 1}


def test_a_torn_line_among_many_costs_only_itself():
    line = b'{"step": 1, "loss": 0.25, "note": "' + b"x" * 1000 + b'"}'
    rows, broken = parse_objects([line] * 400 + [line[:50]] + [line] * 400)
    assert (len(rows), broken) == (800, 1) and {row["loss"] for row in rows} == {0.25}
