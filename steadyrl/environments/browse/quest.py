"""One problem of the site: a goal, the state of the site at the start, how far a state is on the way, and a plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from steadyrl.environments.browse.world import World

Condition = Callable[[World], bool]


def always(world: World) -> bool:
    """Return True."""
    return True


@dataclass(frozen=True)
class Step:
    """One thing that the scripted expert does when it can."""

    verb: str
    """"click", "type", "select", "tick" or "stop"."""
    kind: str
    """Of the element: "link", "button", "textbox", "select", "checkbox"; unused by "stop"."""
    name: str
    """Of the element; what is answered by "stop"."""
    text: str = ""
    """What is typed or chosen."""
    beside: str = ""
    """A text that stands on the element's line; for "stop" one that stands on the page. "" for any."""
    when: Condition = always
    """Whether the step is due in this state of the site."""


@dataclass(frozen=True)
class Quest:
    """A problem on a site of its own."""

    goal: str
    """What the policy is asked to do."""
    world: World
    """The state of the site at the start; an episode changes it."""
    start: str
    """The path that is shown first."""
    milestones: tuple[Condition, ...]
    """Conditions on the way, each of which earns its share of the progress."""
    solved: Condition
    """Whether the goal is reached."""
    over: Condition
    """Whether something was done that cannot be taken back, rightly or wrongly."""
    plan: tuple[Step, ...]
    """What the expert does."""

    def potential(self) -> float:
        """Return how far the site's state is on the way, 0 to 1; progress is the difference between two moments."""
        if self.solved(self.world):
            return 1.0
        return sum(milestone(self.world) for milestone in self.milestones) / (len(self.milestones) + 1)


def by_level(level: int, *values: int) -> int:
    """Return the value of a level, the first one for level 1."""
    return values[level - 1]


def viewing_quest(goal: str, world: World, start: str, target: int, plan: list[Step], on_the_way: str = "") -> Quest:
    """Return a quest that is over when a product's page is opened, and solved if it is the right one."""
    return Quest(
        goal=goal,
        world=world,
        start=start,
        milestones=(lambda world: on_the_way in world.events,) if on_the_way else (),
        solved=lambda world: world.did("item")[:1] == [str(target)],
        over=lambda world: bool(world.did("item")),
        plan=tuple(plan),
    )


def question(goal: str, world: World, start: str, answer: str, plan: list[Step], on_the_way: str) -> Quest:
    """Return a quest that is over when it is answered."""
    return Quest(
        goal=goal,
        world=world,
        start=start,
        milestones=(lambda world: on_the_way in world.events,) if on_the_way else (),
        solved=lambda world: world.answer == answer,
        over=lambda world: world.answer is not None,
        plan=tuple(plan),
    )
