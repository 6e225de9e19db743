"""The records of the preflight and of the check of a task: each has its code, and every text is there."""

import pytest

from steadyrl.loop.preflight import run, trial
from steadyrl.loop.tasks import check, checked

ROOMS = {"preflight": (trial.RECORDS, run.CHECKS), "task check": (checked.RECORDS, check.CHECKS)}


@pytest.mark.parametrize("room", ROOMS)
def test_every_record_has_its_code_and_stands_in_the_order_of_the_findings(room):
    records, checks = ROOMS[room]
    assert list(records.records) == [look.name for look in checks]


@pytest.mark.parametrize("room", ROOMS)
def test_every_check_and_every_cause_says_what_it_is_and_what_to_do(room):
    for look in ROOMS[room][1]:
        texts = [look.topic, look.title, look.healthy]
        texts += [text for cause in look.causes for text in (cause.sign, cause.remedy)]
        assert all(text and "{" not in text for text in texts), look.name
        assert all(cause.remedy.endswith(".") and not cause.sign.endswith(".") for cause in look.causes), look.name
