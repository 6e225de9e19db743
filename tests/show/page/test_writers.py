"""Each record is written by each writer, with all that it holds, and no text of it becomes markup."""

import re
from html import unescape
from typing import get_args

import pytest
from markdown_it import MarkdownIt

from steadyrl.core.types import Finding
from steadyrl.doctor.causes import Placed
from steadyrl.show.page import html, markdown
from steadyrl.show.page.records import (
    TONES,
    Answer,
    Code,
    Curves,
    Facts,
    Findings,
    Fold,
    Heading,
    Items,
    Note,
    Panel,
    Picture,
    Record,
    Sample,
    Span,
    Table,
    numbers,
    strong,
    word,
)

WILD = "<b>wild</b> | *x* [y](z)"
FINDING = Finding("kl", "critical", 7, "rate", WILD, ("seen " + WILD,), "lower it", ("a=1",), "a paper", "rates")
CHART = Panel("t", "nats", "what it means", (("kl_ref_k1", ""),))
RECORDS = [
    Heading((f"{WILD} ", word("sick")), 2, "top"),
    Note(WILD, "note"),
    Facts([("model", WILD)]),
    Items([WILD, (strong("bold"), " and plain")]),
    Table(("name", *numbers("n")), ["a group", (WILD, "1"), ("mine", "2")], frozenset({2})),
    Code("``` " + WILD),
    Picture("a.svg", WILD, "below"),
    Findings([Placed(0, FINDING), Placed(1, FINDING)]),
    Sample(WILD, "ask " + WILD, [Answer("A", "say " + WILD, "remark"), Answer("B", "no")]),
    Fold("more", [Note("inside")]),
    Curves('[{"x":"</script>"}]', [CHART], {"KL": [CHART]}, "page.html"),
]


def test_there_is_an_example_of_every_record():
    assert {type(record) for record in RECORDS} == set(get_args(Record))


@pytest.mark.parametrize("record", RECORDS[:-1], ids=lambda record: type(record).__name__)
def test_html_shows_text_as_it_is(record):
    page = str(html.write([record]))
    assert "<b>" not in page
    shown = unescape(re.sub(r"<[^>]+>", "", page)) if not isinstance(record, Picture) else unescape(page)
    assert WILD in shown or isinstance(record, Fold)


def test_no_text_becomes_markup_in_markdown():
    tokens = MarkdownIt("commonmark").enable("table").parse(markdown.page(RECORDS))
    inline = [child for token in tokens for child in token.children or []]
    assert not [token for token in [*tokens, *inline] if token.type in ("html_block", "html_inline", "em_open")]
    assert [token.attrs for token in inline if token.type == "link_open"] == [{"href": "page.html"}]
    assert [token.tag for token in tokens if token.type == "heading_open"] == ["h2", "h3"]


def test_a_finding_is_written_with_all_that_it_holds():
    for page in (unescape(html.write([RECORDS[7]])), markdown.page([RECORDS[7]]).replace("\\", "")):
        for text in ("critical", "kl", "since step 7", "rate", "seen ", "lower it", "a=1", "a paper", "rates"):
            assert text in page
    lines = markdown.page([RECORDS[7]]).splitlines()
    assert [len(line) - len(line.lstrip()) for line in lines if "**critical**" in line] == [0, 2]
    assert html.write([RECORDS[7]]).count("<details") == html.write([RECORDS[7]]).count(" open>") == 2
    assert 'data-step="7"' in html.findings(RECORDS[7].placed, steps=True)


def test_a_table_aligns_numbers_and_marks_groups_and_our_rows():
    text = markdown.page([RECORDS[4]])
    assert text.splitlines()[1:3] == ["|---|--:|", "| **a group** |  |"]
    assert "| **mine** | 2 |" in text
    page = html.write([RECORDS[4]])
    assert '<tr class="ours"><td>mine</td><td class="n" data-label="n">2</td></tr>' in page
    assert '<th colspan="2" scope="rowgroup">a group</th>' in page
    with pytest.raises(ValueError, match="zip"):
        html.write([Table(("a", "b"), [("1",)])])


def test_code_and_links_stand_inside_a_text():
    text = ("see `steadyrl doctor`, ", Span("kl", href="#the-kl"), " and ", word("better"))
    assert html.inline(text) == (
        'see <code>steadyrl doctor</code>, <a href="#the-kl">kl</a> and <span class="word is-good">better</span>'
    )
    assert markdown.inline(text) == "see `steadyrl doctor`, [kl](#the-kl) and **better**"


def test_bold_texts_beside_one_another_are_bold_in_markdown():
    line = markdown.inline((strong("A rate: "), strong("refuted"), strong(" ")))
    assert line == "**A rate:** **refuted** "
    assert MarkdownIt().renderInline(line) == "<strong>A rate:</strong> <strong>refuted</strong> "


def test_a_page_is_whole_and_loads_nothing():
    page = html.page("<title>", [*RECORDS])
    assert "<title>&lt;title&gt;</title>" in page and page.count("</script>") == 2
    assert not re.search(r"(src|href)=\"(?!#|a\.svg)", page)
    assert html.page("plain", RECORDS[:3]).count("<script") == 0


def test_every_word_that_judges_has_a_tone():
    for judged in ("healthy", "sick", "better", "worse", "supported", "refuted", "critical", "warning", "pass", "fail"):
        assert TONES[judged] != "none"
    assert word("not asked").tone == "none"
