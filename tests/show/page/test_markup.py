"""Numbers and foreign text as they appear on the page."""

import pytest

from steadyrl.show.page import html, markup


def test_a_fence_is_longer_than_any_run_of_backticks():
    assert markup.fence("a\n`````\nb") == "``````text\na\n`````\nb\n``````"


def test_halves_of_surrogate_pairs_can_be_written():
    assert markup.fence("\ud83d").encode("utf-8") == "```text\n\ufffd\n```".encode()
    assert markup.clean("a\r\nb\rc") == "a\nb\nc"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        (0.0712, "0.071"),
        (-0.0, "0.000"),
        (0.00002, "2.0e-05"),
        (153.24, "153.2"),
        (-12345.6, "-12,346"),
    ],
)
def test_numbers_keep_the_digits_that_matter(value, shown):
    assert markup.number(value) == shown


def test_differences_show_their_sign():
    assert [markup.signed(value) for value in (0.5, -0.5, 0.0, None)] == ["+0.500", "-0.500", "+0.000", "–"]


def test_inline_pictures_have_ids_of_their_own_and_no_name_spaces():
    svg = '<?xml?>\n<svg xmlns="http://x" width="9pt" height="8pt" viewBox="0 0 9 8"><g id="a"/><use href="#a"/></svg>'
    assert html.inline_svg(svg, "train") == '<svg viewBox="0 0 9 8"><g id="train-a"/><use href="#train-a"/></svg>'
