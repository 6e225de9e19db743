"""An agent that searches the documentation of Python's standard library, and answers with the functions for a request.

The first search finds what a plain search would. The names that it finds show where to look next: functions that belong
together share words, and a module.
"""

import functools
import re

from steadyrl.environments.search.cache import stdlib_with_index
from steadyrl.environments.search.stdlib_corpus import name_words
from steadyrl.environments.search.words import content_words

RESULTS = 6  # of a search
# Reading documents and index takes a second, and each episode is a new object.
library = functools.cache(stdlib_with_index)


class Searcher:
    """The reward is the F1 of the answered functions.

    Args:
        search: Without it the policy has no tool, and answers from memory.
    """

    def __init__(self, search: bool = True):
        if not search:
            self.tools = ()
        self.results: list[str] = []  # of all searches
        self.first: list[str] = []  # of the first search

    def search(self, query: str) -> str:
        """Find functions by words"""
        new = new_results(query, self.results)
        self.results += new
        self.first = self.first or new
        return "\n".join(new) or "nothing new"

    tools = (search,)

    def reset(self, problem):
        self.request, self.relevant = problem.prompt, set(problem.columns["relevant"])
        self.answer: set[str] = set()
        how = "Search, then answer" if self.tools else "Answer"
        return f"{how} with the full names of all functions for this: {self.request}"

    def step(self, message):
        if message.get("tool_calls") or message.get("invalid_tool_calls"):
            return None, None, False
        self.answer = set(re.findall(r"[\w.]*\w", message["content"])) & names()
        return None, f1(self.answer, self.relevant), True

    def close(self):
        return {"answer": sorted(self.answer), "relevant": sorted(self.relevant)}

    def expert(self):
        """Expand the result with which most can be found, in hindsight, and answer by rule."""
        if not self.tools:
            return " ".join(sorted(self.relevant))
        if not self.results:
            first = ranked(self.request, RESULTS)
            self.choice = max(first, key=lambda name: f1(expanded(name, first), self.relevant), default="")
            self.worth_it = bool(self.relevant & set(first))
        if not self.worth_it:  # where no result is relevant there is nothing to learn from
            return None
        if not self.results:
            return call(" ".join(re.findall(r"\w+", self.request)))
        if self.results == self.first:
            return call(self.choice)
        return "\n".join(belonging(self.choice, self.first, self.results))


def ranked(query: str, count: int) -> list[str]:
    """Return the functions that BM25 ranks first."""
    _, index = library()
    return [index.ids[number] for number, _ in index.ranked(content_words(query), count)]


def new_results(query: str, earlier: list[str]) -> list[str]:
    """Return the first functions that were not in earlier results."""
    return [name for name in ranked(query, RESULTS + len(earlier)) if name not in earlier][:RESULTS]


@functools.cache
def names() -> frozenset[str]:
    """Return all there is to find."""
    return frozenset(library()[1].ids)


def f1(answer, relevant) -> float:
    return 2 * len(relevant.intersection(answer)) / (len(answer) + len(relevant))


def call(query: str):
    """Return a turn that searches."""
    function = {"name": "search", "arguments": {"query": query}}
    return {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "type": "function", "function": function}]}


def module(name: str) -> str:
    return name.partition(".")[0]


def subject(name: str) -> set[str]:
    """Return the words of a function's own name."""
    return {word for word in name_words(name.rpartition(".")[2]) if len(word) > 2}


def belonging(name: str, first: list[str], results: list[str]) -> list[str]:
    """Return the results of a function's module that the first search found, or that share a word with the function."""
    same = [result for result in results if module(result) == module(name)]
    return [result for result in same if result in first or subject(name) & subject(result)]


def expanded(name: str, first: list[str]) -> list[str]:
    """Return what belongs to a function of the first results after a search for its name."""
    return belonging(name, first, [*first, *new_results(name, first)])
