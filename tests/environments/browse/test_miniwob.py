import re
from pathlib import Path

import pytest

from steadyrl.core.errors import ConfigError, MissingExtraError
from steadyrl.environments.browse import miniwob
from steadyrl.environments.browse.miniwob import KINDS
from steadyrl.environments.browse.miniwob_kinds import EXPERTS, REFUSED, WITHOUT_EXPERT, require_playable
from steadyrl.environments.browse.settings import BrowseSettings
from steadyrl.environments.browse.task import BrowseTask
from tests import needs

from .conftest import expert, play


@pytest.fixture(scope="module")
def suite():
    needs.skip_without_packages("miniwob", extra="miniwob")
    task = BrowseTask(BrowseSettings(suite="miniwob", train_count=2, heldout_count=2, workers=2))
    yield task
    task.close()


def problem(task, kind, place=0):
    return [p for p in task.problems("train") if p.columns["kind"] == kind][place]


def test_without_the_package_one_line_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(miniwob, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install --no-deps miniwob .*'steadyrl\[miniwob\]'"):
        BrowseTask(BrowseSettings(suite="miniwob"))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("click-tabs", "MiniWoB\\+\\+ has no page 'click-tabs'; did you mean 'click-tab'"),
        ("loginuser", "has no page 'loginuser'; did you mean 'login-user'"),
        ("zzz", "has no page 'zzz'; expected a name such as 'click-tab'"),
        ("drag-box", "'drag-box' of MiniWoB\\+\\+ cannot be played .*: it needs dragging with the mouse; leave it out"),
        ("count-shape", "'count-shape' .* cannot be played .* drawn and not written"),
    ],
)
def test_an_unknown_or_unplayable_kind_is_refused_with_what_to_do(kind, message):
    with pytest.raises(ConfigError, match=message):
        require_playable(kind)


@pytest.mark.browser
def test_a_kind_is_refused_when_the_task_is_made(suite):
    with pytest.raises(ConfigError, match=r"'drag-box' .* cannot be played"):
        BrowseTask(BrowseSettings(suite="miniwob", kinds=["click-tab", "drag-box"]))


@pytest.mark.browser
def test_every_page_of_the_package_is_in_one_of_the_lists(suite):
    pages = {path.stem for path in (miniwob._pages() / "miniwob").glob("*.html")}
    lists = [set(EXPERTS), set(WITHOUT_EXPERT), set(REFUSED)]
    assert sum(map(len, lists)) == len(pages) and set().union(*lists) == pages


def test_the_page_on_the_task_lists_the_kinds_as_they_are():
    text = (Path(__file__).parents[3] / "docs" / "tasks" / "browse.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| (.*?) \| ((?:`[a-z0-9-]+`(?:, )?)+) \|$", text, re.MULTILINE))
    told = {row: set(re.findall(r"`([a-z0-9-]+)`", kinds)) for row, kinds in rows.items()}
    expected = {reason: {kind for kind in REFUSED if REFUSED[kind] == reason} for reason in REFUSED.values()}
    expected["an expert of ours solves it"] = set(EXPERTS)
    for reason in WITHOUT_EXPERT.values():
        expected[f"no expert: {reason}"] = {kind for kind in WITHOUT_EXPERT if WITHOUT_EXPERT[kind] == reason}
    assert {row: kinds for row, kinds in told.items() if row in expected} == expected


@pytest.mark.browser
def test_training_and_held_out_problems_are_different_seeds(suite):
    train, heldout = ({p.id for p in suite.problems(split)} for split in ("train", "heldout"))
    assert len(train) == len(heldout) == 2 * len(KINDS) >= 2 * 10
    assert not train & heldout


@pytest.mark.browser
@pytest.mark.parametrize("kind", ["click-checkboxes", "click-tab", "enter-password", "choose-list", "read-table"])
def test_a_page_is_solved_by_reading_it_and_paid_by_its_own_reward(suite, kind):
    _, outcome = play(suite, problem(suite, kind), expert)
    assert (outcome["success"], outcome["raw"], outcome["invalid"]) == (1.0, 1.0, 0)


@pytest.mark.browser
def test_a_seed_gives_the_same_page_and_the_same_end_every_time_and_another_another(suite):
    def episode(place):
        return play(suite, problem(suite, "login-user", place), expert)

    assert episode(0) == episode(0)
    assert episode(0)[0] != episode(1)[0]


@pytest.mark.browser
def test_a_wrong_click_costs_what_the_page_says(suite):
    seen, outcome = play(suite, problem(suite, "click-test-2"), lambda e, turn: "click 1")  # ONE is asked for
    assert seen[0].splitlines() == ["goal: Click button ONE.", "[0] button ONE", "[1] button TWO", "action:"]
    assert outcome == {"success": 0.0, "raw": -1.0, "progress": 0.0, "turns": 1, "invalid": 0}


@pytest.mark.browser
def test_neither_reward_nor_clock_nor_answers_are_on_the_page_that_the_policy_sees(suite):
    """The published pages show their last reward and the time left beside the problem."""
    seen, _ = play(suite, problem(suite, "click-checkboxes"), lambda e, turn: f"click {turn % 2}")
    shown = "\n".join(seen).lower()
    assert not [word for word in ("reward", "average", "time left", "episodes", "sec", "start") if word in shown]


@pytest.mark.browser
def test_of_a_goal_that_comes_with_its_parts_only_the_words_are_told():
    """Some pages tell {utterance, fields} instead of a text; the fields are the answer."""
    needs.skip_without_packages("miniwob", extra="miniwob")
    task = BrowseTask(BrowseSettings(suite="miniwob", kinds=["email-inbox-forward-nl"]))
    episode = task.episode(task.problems("train")[0], 0)
    first = episode.open()
    episode.close()
    task.close()
    assert first.startswith("goal: ") and "{" not in first and "field" not in first
    assert "[2] item trash" in first  # an icon, whose picture may not have come yet
