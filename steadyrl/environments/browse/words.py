"""The words of the site: short, common, and most of them one token of the base model with their space."""

from __future__ import annotations

import random

ADJECTIVES = (
    "red blue green black white yellow small large big old new fast slow light round square wide narrow long short "
    "hard dark plain simple double"
).split()
COLORS = ("red", "blue", "green", "black", "white", "yellow")
NOUNS = (
    "banner bar book box circle circuit clock cookie cursor disk flag font fork frame grid hook icon key keyboard "
    "label layer leaf letter lock machine map mask monitor mouse note package page panel pen photo pipe point ring "
    "root rule salt screen shelf shield signal slider socket stack stamp switch table tag template timer tool "
    "tree turtle wheel widget window wire"
).split()
CATEGORIES = "tools office music travel sport light print home".split()
CUSTOMERS = "alpha delta sigma gamma robin pearson north sun polar motor west star".split()
GROUPS = ("basic", "standard", "special", "master", "single", "double")
COMMANDS = "save send cancel close open reset next reply delete print start stop copy move update search".split()
LABELS = "title name subject email label note code password author comment".split()
SWITCHES = "messages notes reports updates files calendar profile sound groups search".split()
CHOICES = {
    "color": ("red", "blue", "green", "black", "white", "yellow", "dark"),
    "size": ("small", "large", "short", "long", "wide", "narrow", "full"),
    "priority": ("low", "normal", "high", "critical", "none", "first", "last"),
}
REPLIES = "thanks yes no done sent fixed closed soon later".split()


def names(rng: random.Random, count: int, alike: bool = False) -> list[str]:
    """Return different names of two words; ``alike`` ones share their words with others."""
    first = rng.sample(ADJECTIVES, 3 if alike else len(ADJECTIVES))
    second = rng.sample(NOUNS, max(2, (count + 1) // 2) if alike else len(NOUNS))
    pairs = [f"{a} {n}" for a in first for n in second] if alike else []
    if alike:
        return rng.sample(pairs, count)
    return [f"{a} {n}" for a, n in zip(rng.choices(first, k=count), second[:count], strict=True)]
