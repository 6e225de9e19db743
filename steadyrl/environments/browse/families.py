"""The families of problems by name; every problem follows from its family, level and seed."""

from __future__ import annotations

import random
from collections.abc import Callable

from steadyrl.environments.browse import desk_quests, form_quests, shop_quests
from steadyrl.environments.browse.quest import Quest

LEVELS = (1, 2, 3, 4)
FAMILIES: dict[str, Callable[[random.Random, int], Quest]] = {
    "open": desk_quests.open_article,
    "press": form_quests.press,
    "tick": form_quests.tick,
    "pick": form_quests.pick,
    "fill": form_quests.fill,
    "register": form_quests.register,
    "find": shop_quests.find,
    "shelf": shop_quests.shelf,
    "turn": shop_quests.turn,
    "cheapest": shop_quests.cheapest,
    "buy": shop_quests.buy,
    "remove": shop_quests.remove,
    "price": shop_quests.price,
    "close": desk_quests.close,
    "reply": desk_quests.reply,
    "lookup": desk_quests.lookup,
}


def make_quest(family: str, level: int, seed: int) -> Quest:
    """Return a problem with a site of its own; equal arguments give equal problems, on every machine."""
    return FAMILIES[family](random.Random(f"{family} {level} {seed}"), level)
