"""Every attack of the list that does not run into the time limit, and one that does, in every jail that holds here.

``python bench/campaign/sandbox.py --minutes 10`` tries all of them, again and again.
"""

import contextlib
from collections import Counter

import pytest

from steadyrl.environments.code.sandbox.pool import Sandbox
from tests.environments.code.sandbox.attacks.every import EVERY
from tests.environments.code.sandbox.attacks.record import HONEST, LIMITS, PATIENT, Ground, broken_by, deeds

QUICK = [attack for attack in EVERY if not attack.slow or attack.id == "processes: a fork bomb"]


@pytest.fixture(scope="module")
def ground(tmp_path_factory):
    made = Ground(tmp_path_factory.mktemp("ground"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def targets(jail):
    with Sandbox(jail, PATIENT) as patient, Sandbox(jail, LIMITS) as short:
        yield {False: patient, True: short}


def test_the_list_is_long_and_says_why_each_attack_is_there():
    assert len(EVERY) >= 120
    assert [name for name, count in Counter(attack.id for attack in EVERY).items() if count > 1] == []
    assert all(len(attack.why.split()) >= 4 for attack in EVERY)
    assert len({attack.category for attack in EVERY}) >= 10


@pytest.mark.parametrize("attack", QUICK, ids=lambda attack: attack.id)
def test_every_promise_holds_after(attack, targets, ground):
    assert broken_by(attack, targets[attack.slow], ground) == []


def test_what_breaks_a_promise_is_seen(targets, tmp_path):
    """The same check on programs that do what they must not: else it could not fail."""
    with contextlib.closing(Ground(tmp_path)) as ground:
        see_what_breaks(targets[True], ground)


def see_what_breaks(target, ground):
    honest = deeds("x", "x", "x", "x = 1")
    assert [line.partition(":")[0] for line in broken_by(honest, target, ground)] == ["stopped"]
    solved = type(honest)("x", "solves it", "x", HONEST)
    assert [line.partition(":")[0] for line in broken_by(solved, target, ground)] == ["right"]
    ground.target.write_text("changed")
    assert [line.partition(":")[0] for line in broken_by(type(honest)("x", "x", "x", "1"), target, ground)] == ["file"]
