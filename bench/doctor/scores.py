"""Rewards of the prompt tasks: cheap, of known range, and learned within some dozen steps."""

from __future__ import annotations

import words

from steadyrl.core.types import Problem, Rollout

TARGET_WORDS = 16


def target_words(problem: Problem, rollout: Rollout) -> float:
    """Return 1 for a text of 16 words, less the further from it."""
    return words.near_length(rollout.text, TARGET_WORDS)


def operators(problem: Problem, rollout: Rollout) -> float:
    """Return a third for every AND, OR or NOT between two other words, 1 at the most."""
    return words.operators(rollout.text)


def ten_words(problem: Problem, rollout: Rollout) -> float:
    """Return 1 for a text of ten words, less the further from it."""
    return words.near_length(rollout.text, 10)


def early_letters(problem: Problem, rollout: Rollout) -> float:
    """Return the share of a text's words that begin with a to h."""
    return words.early_letters(rollout.text)


def in_order(problem: Problem, rollout: Rollout) -> float:
    """Return the share of neighbouring characters that are in the order of the alphabet."""
    return words.in_order(rollout.text)


def never(problem: Problem, rollout: Rollout) -> float:
    """Return 1 for a text that ends in a form that nobody writes."""
    return float(rollout.text.rstrip().endswith("</query>"))


def distinct_words(problem: Problem, rollout: Rollout) -> float:
    """Return the share of a text's words that are not repetitions."""
    return words.distinct(rollout.text)


def alternating(problem: Problem, rollout: Rollout) -> float:
    """Return a thirtieth for every vowel beside a consonant, 1 at the most."""
    return words.alternating(rollout.text)


def middle_words(problem: Problem, rollout: Rollout) -> float:
    """Return the share of a text's words that are four to six letters and nothing else."""
    return words.middle(rollout.text)


def open_words(problem: Problem, rollout: Rollout) -> float:
    """Return the share of a text's words that end in a vowel."""
    return words.open_words(rollout.text)
