from concurrent.futures import ThreadPoolExecutor

import pytest

from steadyrl.tasks.browse.families import FAMILIES

from .conftest import expert, play, stumbler

pytestmark = pytest.mark.browser


def test_chromium_shows_and_does_what_the_site_does_without_it(site, site_in_chromium):
    """Of every family: the expert and a stumbler see the same words and come to the same end."""

    def differing(family):
        known = {p.columns["level"]: p for p in site.problems("train") if p.columns["kind"] == family}
        runs = [(known[3], lambda: expert), (known[2], lambda: stumbler(family))]
        both = [(play(site, p, make()), play(site_in_chromium, p, make())) for p, make in runs]
        return [(a, b) for a, b in both if a != b]

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
