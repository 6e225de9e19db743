"""Lines that differ in their numbers alone say the same of other numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from steadyrl.doctor.readers import templates
from steadyrl.doctor.readers.templates import Templates
from steadyrl.doctor.readers.words import _parse

FORMS = (
    "step {i} | loss: {x} | reward={y} (new high)",
    "Iter {i}: Train loss {x}, KL {y}, grad norm {z}",
    "[INFO] step {i} loss={x} acc: {i}% pass@1={y}",
    "12:0{i}:07 epoch {i} - kl: {x} - rewards: [{y}, {z}]",
    "Iteration 1/1, Step {i}/500: reward {x}",
    "Step {i}/500, Iteration 1/1: reward {x}",
    " 7%|# | {i}/500 [00:{i}<9:00, 1.5s/it, kl={x}, reward={y}]",
    "tokens: {i},{i}00 loss: {x}",
    "kl: nan loss: {x}",
    "nothing but {x} and words",
)


def lines() -> list[str]:
    """Return lines of all forms in turn, with numbers of all kinds."""
    rng, numbers = np.random.default_rng(3), ["0", "-0.5", "1e-05", "+2.25E+3", ".5", "7", "7000001", "1.", "-3"]
    return [
        form.format(i=i, x=rng.choice(numbers), y=rng.choice(numbers), z=rng.choice(numbers))
        for i in range(1, 60)
        for form in FORMS
    ]


def test_every_line_is_read_as_the_function_reads_it() -> None:
    remembered = Templates(_parse)
    for line in lines():
        read, parsed = remembered.read(line), _parse(line)
        assert read == parsed or "nan" in line, line
        assert list(read) == list(parsed), line
        assert [type(value) for value in read.values()] == [type(value) for value in parsed.values()], line


def test_lines_that_are_alike_are_parsed_twice_at_most_and_few_kinds_are_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[str] = []

    def parse(line: str) -> dict[str, Any]:
        seen.append(line)
        return _parse(line)

    remembered = Templates(parse)
    for i in range(1, 500):
        assert remembered.read(f"step {i} reward {i / 8} kl {i / 4}")["reward"] == i / 8
    assert len(seen) == 2
    monkeypatch.setattr(templates, "MOST_TEMPLATES", 3)
    for word in ("one", "two", "three", "four", "two"):
        assert remembered.read(f"{word}: 0.5 kl: 0.25")["kl"] == 0.25
    assert len(seen) == 2 + 2 + 2 + 1 + 1  # both parses of two kinds, and one of each line after that
