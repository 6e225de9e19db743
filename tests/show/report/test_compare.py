"""The page of a comparison: its numbers, and text of models that cannot become markup."""

import json
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import pytest

from steadyrl.core.errors import RunError
from steadyrl.core.types import Problem
from steadyrl.lab.compare.findings import findings
from steadyrl.show.page.html import PAGE_COLOURS
from steadyrl.show.report.compare import write_comparison


def answered(text, reward):
    unscored = "no verdict" if reward is None else None
    return {
        "text": text,
        "reward": reward,
        "parts": {"f1": 0.25},
        "unscored": unscored,
        "note": "",
        "truncated": False,
        "tokens": 3,
    }


def written(folder, first, second, text="plain", levels=(1, 2)):
    """Write the record of a comparison of rewards, one sample each, and its page; return the page."""
    given = [Problem(f"p{i}", f"ask {text}", {"level": levels[i % len(levels)]}) for i in range(len(first))]
    answers = tuple({f"p{i}": [answered(text, reward)] for i, reward in enumerate(side)} for side in (first, second))
    about = {"name": text, "what": "model folder", "answers": len(first), "unscored": sum(r is None for r in second)}
    record = {
        "task": "made",
        "metric": "reward",
        "decoding": "sampled",
        "samples": 1,
        "seed": 0,
        "a": {**about, "unscored": 0},
        "b": about,
        **findings(given, answers, "reward", None, ("A", "B")),
        "doubts": [],
    }
    folder.mkdir(exist_ok=True)
    (folder / "comparison.json").write_text(json.dumps(record))
    return write_comparison(folder).read_text()


class Text(HTMLParser):
    """Collects what a reader sees, and the tags that make it."""

    def __init__(self, page):
        super().__init__()
        self.text, self.tags = "", []
        self.feed(page)

    def handle_data(self, data):
        self.text += data

    def handle_endtag(self, tag):
        if tag == "td":
            self.text += " "

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)


def test_the_page_has_the_verdict_the_tests_and_the_tables(tmp_path):
    page = Text(written(tmp_path, [0.0] * 8, [0.5, 0.25] * 4)).text
    assert "B is better than A: reward 0.0000 → 0.3750, difference +0.3750" in page
    assert "problems won, tied, lost by B8, 0, 0" in page
    assert "By difficulty" in page
    assert "large win, +0.500" in page
    assert "reward 8 0.000 0.375 +0.375" in " ".join(page.split())


def test_an_undecided_comparison_says_what_could_not_be_shown(tmp_path):
    page = Text(written(tmp_path, [0.0, 1.0] * 6, [1.0, 0.0] * 6, levels=(1,))).text
    assert "Undecided, and this set could not have shown less than" in page
    assert "By difficulty" not in page


def test_unscored_answers_are_counted(tmp_path):
    page = " ".join(Text(written(tmp_path, [0.0] * 8, [None, None, *[1.0] * 6])).text.split())
    assert (
        "2 problems could not be measured for both and are left out (0 answers of A and 2 of B have no reward)" in page
    )


def test_what_a_model_wrote_stays_text(tmp_path):
    nasty = "</pre><script>alert(1)</script>{{ 7 * 7 }}\x00"
    page = Text(written(tmp_path, [0.0] * 6, [1.0] * 6, text=nasty))
    assert "script" not in page.tags
    assert "<script>alert(1)</script>{{ 7 * 7 }}\ufffd" in page.text


@pytest.mark.pictures
@pytest.mark.parametrize("second", [[0.5] * 5, [1.0] * 5], ids=["no difference at all", "one difference for all"])
def test_the_picture_of_a_set_without_spread_is_drawn(tmp_path, second):
    written(tmp_path, [0.5] * 5, second)
    root = ElementTree.fromstring((tmp_path / "comparison.svg").read_text())
    assert root.tag.endswith("svg") and len(list(root.iter())) > 100


@pytest.mark.pictures
def test_every_grey_of_the_picture_is_one_that_a_dark_page_replaces(tmp_path):
    written(tmp_path, [0.0, 0.3, 0.1, 0.2], [0.2, 0.1, 0.5, 0.0])
    picture = (tmp_path / "comparison.svg").read_text()
    greys = {f"#{shade * 3}" for shade in re.findall(r": #([0-9a-f]{2})\1\1\b", picture)}
    assert greys == {"#222222", "#6e6e6e", "#e4e4e4", "#ffffff"} == set(PAGE_COLOURS)


def test_the_same_record_gives_the_same_bytes(tmp_path):
    pages = [written(tmp_path / name, [0.0, 0.3, 0.1], [0.2, 0.1, 0.5]) for name in ("one", "two")]
    assert pages[0] == pages[1]


def test_a_folder_without_a_comparison_is_refused(tmp_path):
    with pytest.raises(RunError, match=r"comparison\.json"):
        write_comparison(tmp_path)
