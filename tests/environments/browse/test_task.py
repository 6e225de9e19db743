import subprocess
import sys

import pytest

from steadyrl.core import config
from steadyrl.core.config import resolve
from steadyrl.core.errors import ConfigError
from steadyrl.core.protocols import Editable, Interactive
from steadyrl.environments.browse.episode import SiteEpisode
from steadyrl.environments.browse.families import make_quest
from steadyrl.environments.browse.settings import BrowseSettings
from steadyrl.environments.browse.site_suite import show_in_process
from steadyrl.environments.browse.task import BrowseTask
from steadyrl.loop.tasks.check import check_task

from .conftest import play


def settings(**args):
    return {"task": {"name": "browse", "args": args}, "rewards": {"success": 1.0}}


def test_the_task_is_sound_by_its_own_check():
    found = check_task(resolve(settings(train_count=3, heldout_count=1)))
    assert [(c.check, c.state == "ok") for c in found] == [
        ("problems", True),
        ("gold answer", True),
        ("empty answer", True),
        ("scoring repeats", True),
        ("hostile answers", True),
    ]
    assert found[1].message == "mean success 1.000, expected at least 0.8"


def test_it_is_a_task_that_answers_back_and_can_be_edited(site):
    assert isinstance(site, Interactive) and isinstance(site, Editable)
    assert (site.workers, site.max_open) == (1, None)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"levels": [5]}, "expected some of 1, 2, 3, 4"),
        ({"levels": []}, "expected some of 1, 2, 3, 4"),
        ({"levels": [1, 2, 1]}, "task.args.levels: got [1, 2, 1]; expected every level once"),
        ({"kinds": ["buy", "buy"]}, "task.args.kinds: got ['buy', 'buy']; expected every kind once"),
        ({"prompt": "do it"}, "expected the text {goal}"),
        ({"engine": "firefox"}, "'inprocess' or 'browser'"),
    ],
)
def test_wrong_settings_are_refused(args, message):
    with pytest.raises(ConfigError, match=r"task\.args") as caught:
        resolve(settings(**args))
    assert message in str(caught.value)


def test_an_unknown_family_is_refused_with_those_there_are():
    with pytest.raises(ConfigError, match="no family is called 'bye'; known are open, press"):
        BrowseTask(BrowseSettings(kinds=["bye"]))


def test_an_episode_from_the_goal_to_the_order():
    episode = SiteEpisode(make_quest("buy", 1, 0), show_in_process, 600)
    first = episode.open()
    assert first == "heading white rule\nprice | 41\n[0] button add\naction:"
    assert episode.step("press add").observation == "error: that is no action\naction:"
    assert episode.step("click 4").observation == "error: there is no element 4 in view\naction:"
    assert episode.step("back").observation == "error: there is no page before\naction:"
    cart = episode.step("click 0").observation
    assert cart == "heading cart\nwhite rule | [0] button remove\n[1] button order\n[2] link products\naction:"
    assert episode.step("click 1").done
    assert episode.close() == {"success": 1.0, "raw": 1.0, "progress": 1.0, "turns": 5, "invalid": 3}


def test_the_expert_finds_back_from_a_wrong_page():
    quest = make_quest("close", 2, 0)
    episode = SiteEpisode(quest, show_in_process, 600)
    episode.open()
    right = episode.expert()
    wrong = "click 1" if right == "click 0" else "click 0"
    assert episode.step(wrong).observation.startswith("heading ticket")
    said = []
    for _ in range(4):
        said.append(episode.expert())
        ended = episode.step(said[-1]).done
    assert said[:2] == ["back", right]
    assert ended and episode.close()["success"] == 1.0


def test_slips_are_a_share_of_the_experts_turns_and_follow_from_the_seed():
    def said(seed, slips):
        """Return what the expert says first in 200 problems of two links each."""
        quests = [make_quest("open", 1, i) for i in range(200)]
        episodes = [SiteEpisode(q, show_in_process, 600, slips, seed + i) for i, q in enumerate(quests)]
        return [episode.open() and episode.expert() for episode in episodes]

    right = said(0, 0.0)
    slipping = said(0, 0.6)
    assert said(0, 0.6) == slipping != said(1000, 0.6)
    # Of two links a slip hits the right one half the time: 30 % of 200 differ, give or take three deviations of 6.5.
    assert 40 < sum(a != b for a, b in zip(right, slipping, strict=True)) < 80


def test_where_little_changes_only_that_is_shown():
    episode = SiteEpisode(make_quest("fill", 3, 0), show_in_process, 600)
    first = episode.open().splitlines()
    box = first[1].removeprefix("[0] ")
    assert episode.step('type 0 "red"').observation == f"[0] {box} = red\naction:"
    assert episode.step('type 0 " red "').observation == "nothing changed\naction:"
    assert episode.step('type 0 ""').observation == f"[0] {box}\naction:"


def test_a_long_page_is_scrolled_and_what_is_out_of_view_cannot_be_pressed():
    episode = SiteEpisode(make_quest("press", 4, 0), show_in_process, 60)
    assert episode.open().splitlines()[-2:] == ["more below", "action:"]
    assert "no element 8 in view" in episode.step("click 8").observation
    assert "nothing more to scroll up to" in episode.step("scroll up").observation
    while "more below" in (seen := episode.step("scroll down").observation):
        pass
    assert seen.splitlines()[0] == "more above" and "[8] button" in seen
    assert "no element 0 in view" in episode.step("click 0").observation
    assert episode.step("click 8").done


def test_a_stop_is_an_answer_only_where_one_is_asked_for(site):
    price = next(p for p in site.problems("train") if p.id.startswith("price-1"))
    buy = next(p for p in site.problems("train") if p.id.startswith("buy-1"))
    assert play(site, price, lambda e, turn: e.expert())[1]["success"] == 1.0
    for problem in (price, buy):
        assert play(site, problem, lambda e, turn: 'stop "0"')[1] == {
            "success": 0.0,
            "raw": 0.0,
            "progress": 0.0,
            "turns": 1,
            "invalid": 0,
        }


def test_ones_own_words_become_a_goal_and_lines_that_are_no_actions_are_named(site):
    asked = site.ask("buy two of everything")
    assert asked.prompt == "goal: buy two of everything"
    assert site.episode(asked, 0).open().startswith("heading products\n")
    assert site.show("click 3\n\nclick there\nback\n") == ["click there: that is no action"]
    assert site.show("click 3") == ["every line is an action"]
    assert site.show("") == [": that is no action"]


def test_a_prompt_of_ones_own_explains_the_actions():
    task = BrowseTask(BrowseSettings(kinds=["open"], levels=[1], prompt="You may click 0.\nGoal: {goal}"))
    assert task.problems("train")[0].prompt.startswith("You may click 0.\nGoal: open ")


def test_the_site_without_a_browser_needs_no_playwright():
    code = (
        "import sys; sys.modules['playwright'] = None\n"
        "from steadyrl.environments.browse.task import BrowseTask\n"
        "from steadyrl.environments.browse.settings import BrowseSettings\n"
        "task = BrowseTask(BrowseSettings(train_count=1))\n"
        "print(task.episode(task.problems('train')[0], 0).open())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("heading help\n")


def test_defaults_survive_a_round_trip():
    found = resolve(settings())
    assert config.resolve(config.dump(found)) == found
