"""Commands of which so many run at a time: their order, and a scheduler that does not answer for a while."""

import pytest

from steadyrl.core.errors import ConfigError, EngineError
from steadyrl.lab.launchers.command import Command, Ended, Queue


class Job:
    def __init__(self, command, scheduler):
        if command.name in scheduler["refused"]:
            raise EngineError("no room")
        scheduler["begun"].append(command.name)
        self.name, self.scheduler = command.name, scheduler

    def poll(self):
        if self.name in self.scheduler["silent"]:
            raise EngineError("no answer")
        return Ended(self.name, 0) if self.name in self.scheduler["over"] else None

    def terminate(self):
        self.scheduler["over"].add(self.name)


@pytest.fixture
def scheduler():
    return {"begun": [], "over": set(), "silent": set(), "refused": set()}


def queued(scheduler, tmp_path, names="abc", at_once=2):
    queue = Queue(at_once, lambda command: Job(command, scheduler))
    queue.start([Command(name, ("true",), tmp_path, tmp_path / name) for name in names])
    return queue


def test_so_many_run_at_a_time_and_stopping_begins_nothing_more(scheduler, tmp_path):
    queue = queued(scheduler, tmp_path, "abcd")
    assert scheduler["begun"] == ["a", "b"] and queue.ended() == []
    scheduler["over"].add("a")
    assert queue.ended() == [Ended("a", 0)] and scheduler["begun"] == ["a", "b", "c"]
    queue.stop()
    assert set(queue.ended()) == {Ended("b", 0), Ended("c", 0), Ended("d", None, "was not begun")}
    assert scheduler["begun"] == ["a", "b", "c"] and queue.ended() == []


def test_no_end_is_lost_while_a_scheduler_does_not_answer(scheduler, tmp_path):
    queue = queued(scheduler, tmp_path)
    scheduler["over"], scheduler["silent"] = {"a"}, {"b"}
    with pytest.raises(EngineError, match="no answer"):
        queue.ended()
    scheduler["silent"], scheduler["refused"] = set(), {"c"}
    with pytest.raises(EngineError, match="no room"):
        queue.ended()
    scheduler["refused"] = set()
    assert queue.ended() == [Ended("a", 0)] and scheduler["begun"] == ["a", "b", "c"]


def test_what_is_refused_at_the_start_is_said_with_what_to_do(scheduler, tmp_path):
    scheduler["refused"] = {"a"}
    with pytest.raises(ConfigError, match=r"^no room; fix what it says with --launcher-args"):
        queued(scheduler, tmp_path)
