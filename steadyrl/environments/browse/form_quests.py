"""Problems of one form or panel: what has to be pressed, ticked, chosen or written, and nothing else."""

from __future__ import annotations

import random

from steadyrl.environments.browse.pages import Box, Choice, Control, Field, initial_value
from steadyrl.environments.browse.quest import Condition, Quest, Step, by_level
from steadyrl.environments.browse.words import CHOICES, COMMANDS, LABELS, NOUNS, SWITCHES, names
from steadyrl.environments.browse.world import World


def press(rng: random.Random, level: int) -> Quest:
    """One button among others."""
    buttons = rng.sample(COMMANDS, by_level(level, 2, 4, 6, 9))
    button = rng.choice(buttons)
    return Quest(
        goal=f"press {button}",
        world=World(buttons=buttons),
        start="/panel",
        milestones=(),
        solved=lambda world: world.did("press") == [button],
        over=lambda world: bool(world.did("press")),
        plan=(Step("click", "button", button),),
    )


def tick(rng: random.Random, level: int) -> Quest:
    """Boxes of a form, the named ones and no others."""
    boxes = rng.sample(SWITCHES, by_level(level, 2, 3, 4, 6))
    values = dict.fromkeys(rng.sample(boxes, by_level(level, 1, 1, 2, 3)), "on")
    return _settings_quest(
        goal="tick " + " and ".join(values),
        world=World(form=tuple(Box(name) for name in boxes)),
        values=values,
        plan=[Step("tick", "checkbox", name) for name in values],
    )


def pick(rng: random.Random, level: int) -> Quest:
    """An option of a list, or of two."""
    lists = rng.sample(sorted(CHOICES), by_level(level, 1, 1, 2, 3))
    options = {name: rng.sample(CHOICES[name], by_level(level, 2, 4, 4, 6)) for name in lists}
    values = {name: rng.choice(options[name][1:]) for name in lists[: by_level(level, 1, 1, 2, 2)]}
    return _settings_quest(
        goal=_set_goal(values),
        world=World(form=tuple(Choice(name, tuple(options[name]), options[name][0]) for name in lists)),
        values=values,
        plan=[Step("select", "select", name, option) for name, option in values.items()],
    )


def fill(rng: random.Random, level: int) -> Quest:
    """Words into the named boxes of a form."""
    labels = rng.sample(LABELS, by_level(level, 1, 2, 3, 4))
    filled_labels = rng.sample(labels, by_level(level, 1, 1, 1, 2))
    values = {label: names(rng, 1)[0] if level > 2 else rng.choice(NOUNS) for label in filled_labels}
    return _settings_quest(
        goal=_set_goal(values),
        world=World(form=tuple(Field(label) for label in labels)),
        values=values,
        plan=[Step("type", "textbox", label, text) for label, text in values.items()],
    )


def register(rng: random.Random, level: int) -> Quest:
    """A form of boxes to write into, lists and boxes to tick."""
    labels = rng.sample(LABELS, by_level(level, 1, 1, 2, 2))
    lists = rng.sample(sorted(CHOICES), by_level(level, 1, 1, 1, 2))
    boxes = rng.sample(SWITCHES, by_level(level, 0, 1, 1, 2))
    options = {name: rng.sample(CHOICES[name], by_level(level, 2, 3, 4, 4)) for name in lists}
    written = {label: rng.choice(NOUNS) for label in labels}
    picked = {name: rng.choice(options[name][1:]) for name in lists}
    ticked = dict.fromkeys(boxes[:1], "on")
    form: tuple[Control, ...] = (
        *(Field(label) for label in labels),
        *(Choice(name, tuple(options[name]), options[name][0]) for name in lists),
        *(Box(name) for name in boxes),
    )
    return _settings_quest(
        goal=_set_goal({**written, **picked}) + "".join(f", tick {name}" for name in ticked),
        world=World(form=form),
        values={**written, **picked, **ticked},
        plan=[
            *(Step("type", "textbox", label, text) for label, text in written.items()),
            *(Step("select", "select", name, option) for name, option in picked.items()),
            *(Step("tick", "checkbox", name) for name in ticked),
        ],
    )


def _settings_quest(goal: str, world: World, values: dict[str, str], plan: list[Step]) -> Quest:
    """Return a quest that is over when the form is saved, and solved if it then holds what is wanted and no more."""
    expected = {control.name: initial_value(control) for control in world.form} | values
    return Quest(
        goal=goal,
        world=world,
        start="/settings",
        milestones=tuple(_saved_as(name, value) for name, value in values.items()),
        solved=lambda world: world.saved == expected,
        over=lambda world: world.saved is not None,
        plan=(*plan, Step("click", "button", "save")),
    )


def _saved_as(name: str, value: str) -> Condition:
    return lambda world: world.saved is not None and world.saved[name] == value


def _set_goal(values: dict[str, str]) -> str:
    return "set " + ", ".join(f"{name} to {value}" for name, value in values.items())
