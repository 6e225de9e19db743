"""Environments and tools that tests name by import path."""

import asyncio

from steadyrl.core.errors import EpisodeError

ADD = {
    "name": "add",
    "description": "Add two numbers.",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    },
}


def look(word: str) -> str:
    """Look a word up.

    Args:
        word: What is looked up.
    """
    return f"{word} is a word"


def broken(word: str) -> str:
    """Look a word up in a library that burnt down."""
    raise OSError("no such library")


class Guess:
    """The number is 1 more than the last digit of the problem's; each wrong guess costs."""

    def reset(self, problem):
        self.number = problem.columns["seed"] % 3 + 1
        return "guess"

    def step(self, message):
        correct = message["content"].strip() == str(self.number)
        return "no", 1.0 if correct else -0.1, correct

    def expert(self):
        return str(self.number)

    def close(self):
        return {"number": self.number}


class Endless:
    """Every turn earns 0.25, and the episode 1, whenever it ends."""

    def reset(self, problem):
        return "on"

    def step(self, message):
        return "on", 0.25, False

    def close(self):
        return {"reward": 1.0}


class AsyncGuess(Guess):
    async def reset(self, problem):
        await asyncio.sleep(0.001)
        return super().reset(problem)

    async def step(self, message):
        await asyncio.sleep(0.001)
        return super().step(message)

    async def close(self):
        return super().close()


class Safe:
    """A safe that opens after the button was pressed as often as its seed says; the button is a method."""

    def __init__(self, presses=2):
        self.presses, self.pressed = presses, 0

    def press(self, times: int = 1) -> str:
        """Press the button."""
        self.pressed += times
        return f"pressed {self.pressed}"

    tools = (press, look)

    def reset(self, problem, seed):
        self.seed = seed
        return [{"role": "system", "content": "you open safes."}, {"role": "user", "content": "open it"}]

    def step(self, message):
        return None, 0.25 * bool(message.get("tool_calls")), self.pressed >= self.presses

    def expert(self):
        function = {"name": "press", "arguments": {"times": 1}}
        return {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "c", "type": "function", "function": function}],
        }


class Adder:
    """Answers calls of a tool that is a schema alone."""

    tools = (ADD,)

    def reset(self, problem):
        return None

    def step(self, message):
        self.invalid = [(call["text"], call["error"]) for call in message.get("invalid_tool_calls", ())]
        sums = [
            c["function"]["arguments"]["a"] + c["function"]["arguments"]["b"] for c in message.get("tool_calls", ())
        ]
        return (sums, 1.0, False) if sums else ("what?", None, True)


class Caller:
    """Learns in seconds: a call of a() is worth 1, its beginnings a little."""

    def a(self) -> str:
        """Return a word."""
        return "yes"

    tools = (a,)

    def reset(self, problem):
        return "call"

    def step(self, message):
        if message.get("tool_calls"):
            return None, 1.0, True
        return "no", 0.2 * sum(message["content"].startswith("a()"[:length]) for length in (1, 2)), True


class LostGuess(Guess):
    def expert(self):
        return "nowhere"


class PaysForEachTurn(Guess):
    def step(self, message):
        return "on", 1.0, False

    expert = None


class Breaks(Guess):
    def step(self, message):
        raise EpisodeError("the lights went out") if message["content"] == "1" else ValueError("what?")


class ReturnsTwo(Guess):
    def step(self, message):
        return "no", 1.0


class EndsWithAWord(Guess):
    def step(self, message):
        return "no", 1.0, "false"


class RewardsNothing(Guess):
    def step(self, message):
        return "no", float("nan"), False


class RewardsWords(Guess):
    def step(self, message):
        return "no", "much", False


class ClosesWithWords(Guess):
    def close(self):
        return {"reward": "much"}


class ClosesWithANumber(Guess):
    def close(self):
        return 7


class OpensWithANumber(Guess):
    def reset(self, problem):
        return 3


class WithoutReset:
    def step(self, message):
        return None, 0.0, True


class ResetOfNothing(Guess):
    def reset(self):
        return "guess"


class NeedsASetting(Guess):
    def __init__(self, level):
        self.level = level


class Shelf:
    """Its tools depend on its arguments: what is on the shelf, counted by a method, or nothing at all."""

    def __init__(self, open=True):
        self.count = 0
        self.tools = [self.take, look] if open else []

    def take(self) -> int:
        """Take a book."""
        self.count += 1
        return self.count

    def reset(self, problem):
        return "read"

    def step(self, message):
        return None, 0.3 * bool(message.get("tool_calls")) * (self.count == 1), True

    def expert(self):
        function = {"name": "take", "arguments": {}}
        return {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "c", "type": "function", "function": function}],
        }


class Seeded(Guess):
    """Its seed is given by name alone, as to the environments of Gymnasium."""

    def reset(self, problem, *, seed):
        return f"seed {seed}"


class SeededStep(Guess):
    """Its step wants a seed too, which nobody gives."""

    def step(self, message, seed):
        return None, float(seed), True
