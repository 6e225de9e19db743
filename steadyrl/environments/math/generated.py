"""Arithmetic and word problems in six levels, generated: each prompt once, each answer a whole number."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

NAMES = ("Ana", "Ben", "Chi", "Dora", "Eli", "Femi", "Gita", "Hugo", "Ines", "Jun")
THINGS = ("apples", "books", "coins", "cards", "eggs", "pens", "shells", "stamps", "stones", "tickets")
TRIES = 40  # per problem that is wanted; a level without enough different problems gives fewer

PromptAnswer = tuple[str, int]


def generate(level: int, count: int, seed: int) -> list[PromptAnswer]:
    """Return up to ``count`` different problems of a level, as prompt and answer; equal seeds give equal lists."""
    generator = np.random.default_rng([seed, level])
    answers: dict[str, int] = {}
    for _ in range(TRIES * count):
        if len(answers) == count:
            break
        prompt, answer = LEVELS[level](generator)
        answers.setdefault(prompt, answer)
    return list(answers.items())


def _sum_of_digits(generator: np.random.Generator) -> PromptAnswer:
    a, b = _numbers(generator, 0, 10, 2)
    return f"What is {a} + {b}?", a + b


def _two_digits(generator: np.random.Generator) -> PromptAnswer:
    a, b = _numbers(generator, 10, 100, 2)
    if generator.random() < 0.5:
        return f"What is {a} + {b}?", a + b
    return f"What is {max(a, b)} - {min(a, b)}?", abs(a - b)


def _product_or_quotient(generator: np.random.Generator) -> PromptAnswer:
    a, b = _numbers(generator, 2, 13, 2)
    if generator.random() < 0.5:
        return f"What is {a} * {b}?", a * b
    return f"What is {a * b} / {b}?", a


def _two_operations(generator: np.random.Generator) -> PromptAnswer:
    a, b, c = _numbers(generator, 2, 20, 3)
    forms = (
        (f"({a} + {b}) * {c}", (a + b) * c),
        (f"{a} * {b} - {c}", a * b - c),
        (f"{a} + {b} * {c}", a + b * c),
        (f"{a} * ({b} - {c})", a * (b - c)),
    )
    text, answer = forms[int(generator.integers(len(forms)))]
    return f"What is {text}?", answer


def _one_step_story(generator: np.random.Generator) -> PromptAnswer:
    (name, friend), thing = _names(generator)
    a, b = _numbers(generator, 2, 50, 2)
    larger, smaller = max(a, b) + 1, min(a, b)  # one is left at least
    stories = (
        (f"{name} has {a} {thing}. {friend} gives {name} {b} more. How many {thing} does {name} have now?", a + b),
        (f"{name} has {larger} {thing} and gives {smaller} of them to {friend}. How many are left?", larger - smaller),
        (f"{name} has {a} boxes with {b} {thing} each. How many {thing} are there in all?", a * b),
    )
    return stories[int(generator.integers(len(stories)))]


def _two_step_story(generator: np.random.Generator) -> PromptAnswer:
    (name, friend), thing = _names(generator)
    a, b, c = _numbers(generator, 2, 12, 3)
    stories = (
        (
            f"{name} has {a} boxes with {b} {thing} each and buys {c} more {thing}. How many {thing} does {name} have?",
            a * b + c,
        ),
        (
            f"{name} buys {a} packs of {b} {thing} and gives {min(c, a * b)} {thing} to {friend}. How many are left?",
            a * b - min(c, a * b),
        ),
        (
            f"{name} and {friend} have {a} {thing} each. They put them together and share {b * c - b} more {thing} "
            f"that they find. How many {thing} do they have together?",
            2 * a + b * c - b,
        ),
        (
            f"Each of {a} children has {b} {thing}, and {name} has {c} times as many as one child. How many {thing} "
            "are there in all?",
            a * b + c * b,
        ),
    )
    return stories[int(generator.integers(len(stories)))]


def _numbers(generator: np.random.Generator, low: int, high: int, count: int) -> list[int]:
    return [int(number) for number in generator.integers(low, high, count)]


def _names(generator: np.random.Generator) -> tuple[tuple[str, str], str]:
    first, second = (NAMES[int(i)] for i in generator.choice(len(NAMES), 2, replace=False))
    return (first, second), THINGS[int(generator.integers(len(THINGS)))]


LEVELS: dict[int, Callable[[np.random.Generator], PromptAnswer]] = {
    1: _sum_of_digits,
    2: _two_digits,
    3: _product_or_quotient,
    4: _two_operations,
    5: _one_step_story,
    6: _two_step_story,
}
