from concurrent.futures import ThreadPoolExecutor

import pytest

from steadyrl.backends.toy import ToyBackend
from steadyrl.environments.browse.families import FAMILIES
from steadyrl.loop.rollout.collect import demonstrate
from steadyrl.loop.rollout.episode import Environment

from .conftest import expert, play, stumbler

pytestmark = pytest.mark.browser


@pytest.mark.parametrize(
    ("level", "player"),
    [(3, lambda family: expert), pytest.param(2, stumbler, marks=pytest.mark.weekly)],
    ids=("expert", "stumbler"),
)
def test_chromium_shows_and_does_what_the_site_does_without_it(site, site_in_chromium, level, player):
    """Of every family: the expert and a stumbler see the same words and come to the same end."""

    def differing(family):
        problem = {p.columns["level"]: p for p in site.problems("train") if p.columns["kind"] == family}[level]
        played, in_chromium = (play(task, problem, player(family)) for task in (site, site_in_chromium))
        return [(played, in_chromium)] if played != in_chromium else []

    with ThreadPoolExecutor(2) as pool:
        found = dict(zip(FAMILIES, pool.map(differing, FAMILIES), strict=True))
    assert {family: pairs for family, pairs in found.items() if pairs} == {}


def test_a_session_sees_its_own_world_only(site, site_in_chromium):
    """Two episodes of one problem at the same time: what one of them buys is not in the other's cart."""
    problem = next(p for p in site.problems("train") if p.id.startswith("buy-1"))
    one, two = site_in_chromium.episode(problem, 0), site_in_chromium.episode(problem, 0)
    one.open()
    two.open()
    in_cart = one.step("click 0").observation
    assert in_cart.splitlines()[2] == "[1] button order"
    assert one.step("click 1").done and one.close()["success"] == 1.0
    assert two.step("click 0").observation == in_cart  # one product in it, not two
    assert two.close() == {"success": 0.0, "raw": 0.0, "progress": 0.5, "turns": 1, "invalid": 0}


def test_no_more_browsers_run_than_workers_however_many_episodes_a_batch_has(site_in_chromium):
    """Twelve episodes, two workers: counted whenever an episode has just been opened, and at the end."""
    chromium, shown = site_in_chromium._suite._browser._chromium, []
    whole, running = chromium.open, set()

    def open_and_count(url, leave):
        tab = whole(url, leave)
        running.update(chromium.pids())
        shown.append(len(chromium.pids()))
        return tab

    chromium.open = open_and_count
    try:
        problems = list(site_in_chromium.problems("train"))[:12]
        environment = Environment(site_in_chromium, 64)
        groups = demonstrate(ToyBackend(), problems, site_in_chromium, (0, 0), environment)
    finally:
        del chromium.open
    assert [group.rollouts[0].outcome["success"] for group in groups] == [1.0] * 12
    assert len(shown) == 12 and max(shown) <= 2
    assert len(running) <= 2  # and they are used again
