"""Counts and shares as sentences have them."""

import re
from pathlib import Path

import pytest

import steadyrl
from steadyrl.core.words import percent


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.0, "0%"), (0.00031, "0.03%"), (0.0042, "0.4%"), (0.005, "0.5%"), (0.0149, "1%"), (0.62, "62%"),
        (0.994, "99%"), (0.9962, "99.6%"), (0.99993, "99.993%"), (1.0, "100%"), (1.4, "140%"), (-0.3, "-30%"),
    ],
)  # fmt: skip
def test_only_nothing_is_0_percent_and_only_all_is_100(share, text):
    assert percent(share) == text


def test_no_sentence_rounds_a_share_by_itself():
    sources = Path(steadyrl.__file__).parent.rglob("*.py")
    places = [path.name for path in sources if re.search(r":\.\d%\}", path.read_text(encoding="utf-8"))]
    assert places == ["words.py"]
