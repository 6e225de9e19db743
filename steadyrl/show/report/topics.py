"""Which curves and which numbers stand together: metrics by topic, in the order in which people look at them."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from steadyrl.core.metrics import describe
from steadyrl.show.page.records import Panel

if TYPE_CHECKING:
    from steadyrl.lab.study.file import Take  # pydantic takes longer to load than the doctor to print a small log

_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
TOPICS: Mapping[str, Sequence[str]] = _TABLES["topics"]
FIRST: Sequence[str] = _TABLES["first"]
TOGETHER: Mapping[str, Sequence[str]] = _TABLES["together"]
OVERVIEW: Mapping[str, Sequence[str]] = _TABLES["overview"]
MOST_OVERVIEW = 4
COMPARED: Mapping[str, Sequence[tuple[str, Take]]] = _TABLES["compared"]
TAKES: Mapping[Take, str] = _TABLES["takes"]
DIAGNOSED: Mapping[str, Sequence[str]] = _TABLES["diagnosed"]
NOT_EXPLORED = tuple(_TABLES["not_explored"])
_NAMES = {name: title for title, names in TOGETHER.items() for name in names}


def topic_of(name: str) -> str:
    """Return the topic of a metric."""
    lower = name.lower()
    for part in (lower, lower.rpartition("train/")[2], lower.rpartition("/")[2]):
        for topic, beginnings in TOPICS.items():
            if part.startswith(tuple(beginnings)):
                return topic
    return "Other"


def panels(names: Iterable[str], apart: bool = False) -> dict[str, list[Panel]]:
    """Return the panels of some metrics by topic; ``apart`` gives each its own, for pictures of many runs."""
    titled: dict[tuple[str, str], list[str]] = {}
    for name in names:
        title = name if apart else _NAMES.get(name, name)
        titled.setdefault((topic_of(TOGETHER.get(title, [name])[0]), title), []).append(name)
    by_topic: dict[str, list[Panel]] = {}
    for (topic, title), members in titled.items():
        order = TOGETHER.get(title, ())
        members.sort(key=lambda name: order.index(name) if name in order else len(order))
        by_topic.setdefault(topic, []).append(_panel(title, members))
    for topic_panels in by_topic.values():  # what the catalogue puts together comes first
        topic_panels.sort(
            key=lambda panel: (panel.metrics[0][0] not in _NAMES, panel.metrics[0][0].startswith("reward_share/"))
        )
    return in_order(by_topic)


def in_order(by_topic: Mapping[str, list[Panel]]) -> dict[str, list[Panel]]:
    """Return the topics in the order in which people look at them."""
    remaining_topics = [topic for topic in TOPICS if topic not in FIRST]
    return {topic: by_topic[topic] for topic in (*FIRST, *remaining_topics, "Other") if topic in by_topic}


def overview(names: Sequence[Mapping[str, str]], score: str = "", apart: bool = False) -> list[Panel]:
    """Return the panels that a reader looks at first: held-out score with reward, KL, entropy, gradient norm.

    Args:
        names: Of each run, the names of its lines by metric, or by quantity of the doctor where another trainer wrote.
        score: The metric of the held-out score; "" for the first one that there is.
        apart: Each metric has a panel of its own, for pictures with the lines of many runs.
    """

    def lines(*metrics: str) -> list[str]:
        """Return the line of each run that has the first metric that all of them have, or else that the run has."""
        shared = [name for name in metrics if all(name in of_run for of_run in names)][:1]
        run_lines = (next((of_run[name] for name in shared or metrics if name in of_run), "") for of_run in names)
        return list(dict.fromkeys(name for name in run_lines if name))

    scores = [score] if score else sorted({name for of_run in names for name in of_run if name.startswith("heldout/")})
    heldout = lines(*scores)
    reward = lines("reward/mean", "reward")
    titled = [("Held-out score", heldout), ("Reward", reward)]
    if heldout and reward and not apart:
        titled = [("Held-out score and reward", [*heldout, *reward])]
    titled += [(title, lines(*metrics)) for title, metrics in OVERVIEW.items()]
    return [_panel(title, members) for title, members in titled if members][:MOST_OVERVIEW]


def _panel(title: str, names: list[str]) -> Panel:
    metric = describe(names[0])
    labels = tuple((name, name if name != title else "") for name in names)
    mixed = len({topic_of(name) for name in names}) > 1
    return Panel(title, metric.unit if metric else "", metric.meaning if metric else "", labels, mixed)
