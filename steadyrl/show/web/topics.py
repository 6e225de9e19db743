"""Which curves stand together: metrics by topic, with their units, in the order in which people look at them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from steadyrl.core.metrics import describe

_MACHINE = ("memory", "mem_", "gpu", "cuda", "cpu", "system", "disk", "max_memory")
# Topic: what its metrics begin with. The first topic that fits has a metric; what fits none stands under "Other".
TOPICS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Held-out", ("heldout/", "eval")),
    ("KL", ("kl", "algorithm/kl", "loss/kl", "objective/kl", "policy/approxkl", "approx_kl", "sampler_gap")),
    ("Entropy", ("entropy", "policy/entropy", "objective/entropy")),
    ("Value", ("value", "vf", "loss/value", "return", "clip_fraction_value", "critic", "explained_variance")),
    ("Policy", ("clip", "loss", "grad", "learning_rate", "lr", "advantage", "ratio", "policy", "actor", "importance")),
    ("Length and text", ("completion", "length", "response", "observation", "tokens/sampled", "truncated", "repet")),
    ("Curriculum", ("curriculum", "groups/", "no_signal", "frac_reward")),
    ("Judge", ("judge",)),
    ("Tools", ("tools/", "time/tool")),
    ("System", ("time", "tokens", "throughput", "perf", "timing", "steps_per", "samples_per", *_MACHINE)),
    ("Reward", ("reward", "score", "env/reward", "objective/score", "objective/rlhf", "critic/score")),
)
FIRST = ("Reward", "Held-out", "KL", "Entropy", "Policy", "Value", "Length and text")
# Panels that hold several metrics: what belongs together is compared in one picture.
TOGETHER: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("KL to the reference, per sequence", ("kl_ref_k1_seq", "kl_ref_exact_seq", "kl_ref_full_seq")),
    ("KL to the reference, per token", ("kl_ref_k1", "kl_ref_k3", "kl_ref_exact", "kl_ref_full")),
    ("KL to the old policy", ("kl_old_k1", "kl_old_k3", "kl_step_k3")),
    ("Entropy", ("entropy", "entropy_sampled")),
    ("Reward", ("reward/mean", "groups/best")),
    ("Range of the reward", ("reward/min", "reward/max")),
    ("Spread of the reward", ("reward/std", "reward/std_within", "groups/mean_std")),
    ("Clip fraction", ("clip_fraction", "clip_fraction_value")),
    ("Return", ("return/mean", "value/mean")),
    ("Advantage", ("advantage/mean", "advantage/std")),
    ("Ends of completions", ("completion/truncated", "completion/empty", "completion/repetition")),
    (
        "Ends of calls",
        ("tools/ok", "tools/malformed", "tools/unknown", "tools/arguments", "tools/raised", "tools/timeout"),
    ),
    ("Groups", ("groups/no_signal", "curriculum/signal")),
    ("Time of a step", ("time/step", "time/rollout", "time/reward", "time/score", "time/update")),
)
# What a reader looks at first: titles, and of each the metrics that can stand there, the best first.
OVERVIEW: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "KL",
        ("kl_ref_exact_seq", "kl_ref_k1_seq", "kl_ref_exact", "kl_ref_k1", "kl_ref", "kl_old_k3", "kl"),
    ),
    ("Entropy", ("entropy", "entropy_sampled")),
    ("Gradient norm", ("grad_norm",)),
    ("Length of the answers", ("completion/length", "length")),
    ("Loss", ("loss/total", "loss/policy", "loss_policy", "loss")),
)
MOST_OVERVIEW = 4
_NAMES = {name: title for title, names in TOGETHER for name in names}


@dataclass(frozen=True)
class Panel:
    """One picture: a title, a unit, and its metrics with their labels."""

    title: str
    unit: str
    meaning: str
    metrics: tuple[tuple[str, str], ...]


def topic_of(name: str) -> str:
    """Return the topic of a metric."""
    lower = name.lower()
    for part in (lower, lower.rpartition("train/")[2], lower.rpartition("/")[2]):
        for topic, beginnings in TOPICS:
            if part.startswith(beginnings):
                return topic
    return "Other"


def panels(names: Iterable[str], apart: bool = False) -> dict[str, list[Panel]]:
    """Return the panels of some metrics by topic.

    Args:
        names: Of the metrics.
        apart: Each metric has a panel of its own, for pictures with the lines of many runs.
    """
    titled: dict[tuple[str, str], list[str]] = {}
    for name in names:
        title = name if apart else _NAMES.get(name, name)
        first = next((names[0] for panel_title, names in TOGETHER if panel_title == title), name)
        titled.setdefault((topic_of(first), title), []).append(name)
    by_topic: dict[str, list[Panel]] = {}
    for (topic, title), members in titled.items():
        order = next((names for panel_title, names in TOGETHER if panel_title == title), ())
        members.sort(key=lambda name: order.index(name) if name in order else len(order))
        by_topic.setdefault(topic, []).append(_panel(title, members))
    for topic_panels in by_topic.values():
        topic_panels.sort(key=_place)
    return in_order(by_topic)


def in_order(by_topic: Mapping[str, list[Panel]]) -> dict[str, list[Panel]]:
    """Return the topics in the order in which people look at them."""
    remaining_topics = [topic for topic, _ in TOPICS if topic not in FIRST]
    return {topic: by_topic[topic] for topic in (*FIRST, *remaining_topics, "Other") if topic in by_topic}


def overview(names: Sequence[Mapping[str, str]], score: str = "", apart: bool = False) -> list[Panel]:
    """Return the panels that a reader looks at first: held-out score with reward, KL, entropy, gradient norm.

    Args:
        names: Of each run, the names of its lines by metric, or by quantity of the doctor where another trainer wrote.
        score: The metric of the held-out score; "" for the first one that there is.
        apart: Each metric has a panel of its own, for pictures with the lines of many runs.
    """

    def lines(*metrics: str) -> list[str]:
        """Return the line of each run that has the first of some metrics that it has."""
        found = (next((held[name] for name in metrics if name in held), "") for held in names)
        return list(dict.fromkeys(name for name in found if name))

    heldout = lines(
        *([score] if score else sorted({name for held in names for name in held if name.startswith("heldout/")}))
    )
    reward = lines("reward/mean", "reward")
    titled = [("Held-out score", heldout), ("Reward", reward)]
    if heldout and reward and not apart:
        titled = [("Held-out score and reward", [*heldout, *reward])]
    titled += [(title, lines(*metrics)) for title, metrics in OVERVIEW]
    return [_panel(title, members) for title, members in titled if members][:MOST_OVERVIEW]


def _place(panel: Panel) -> tuple[bool, bool]:
    """Return the place of a panel among those of its topic: what the catalogue puts together comes first."""
    return panel.metrics[0][0] not in _NAMES, panel.metrics[0][0].startswith("reward_share/")


def _panel(title: str, names: list[str]) -> Panel:
    metric = describe(names[0])
    labels = tuple((name, name if len(names) > 1 else "") for name in names)
    return Panel(title, metric.unit if metric else "", metric.meaning if metric else "", labels)
