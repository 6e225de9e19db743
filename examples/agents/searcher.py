"""An agent that searches the documentation of Python's standard library, and answers with the functions for a request.

The first search finds what a plain search would. The names that it finds show where to look next: functions that belong
together share words, and a module.
"""

import functools
import re
from itertools import combinations

from steadyrl.environments.search.cache import stdlib_with_index
from steadyrl.environments.search.stdlib_corpus import name_words
from steadyrl.environments.search.words import content_words

RESULTS = 6  # of a search
# Reading documents and index takes a second, and each episode is a new object.
library = functools.cache(stdlib_with_index)


class Searcher:
    """The reward is the F1 of the functions that the answer picks of all results.

    A function is shown by its module and the words of its own name. An answer is such a line, too. It picks results of
    the module that it begins with: all of the first six, and those of the later ones that have one of its words.

    Args:
        search: Without it the policy has no tool, and its answer picks of what a search with the request finds.
    """

    def __init__(self, search: bool = True):
        if not search:
            self.tools = ()
        self.results: list[str] = []  # of all searches

    def search(self, query: str) -> str:
        """Find functions by words"""
        new = new_results(query, self.results)
        self.results += new
        return "\n".join(f"- {title(name)}" for name in new) or "nothing new"

    tools = (search,)

    def reset(self, problem):
        self.relevant = set(problem.columns["relevant"])
        self.request = " ".join(re.findall(r"\w+", problem.prompt.lower()))
        self.answer: list[str] = []
        if self.tools:
            return f"request: {self.request}"
        return f"request: {self.request}\n{self.search(self.request)}"

    def step(self, message):
        if message.get("tool_calls") or message.get("invalid_tool_calls"):
            return None, None, False
        self.answer = picked(message["content"], self.results)
        return None, f1(self.answer, self.relevant), True

    def close(self):
        return {"answer": sorted(self.answer), "relevant": sorted(self.relevant)}

    def expert(self):
        """Search for the result with which most can be picked, in hindsight, and pick it so."""
        if not self.results:
            return call(self.request)
        if len(self.results) <= RESULTS:
            choice, self.words = plan(self.results, frozenset(self.relevant), bool(self.tools))
            if self.tools and self.words:
                return call(title(choice))
        return self.words


def plan(first: list[str], relevant: frozenset[str], searches: bool) -> tuple[str, str | None]:
    """Return the result to search for and the words to answer with, in hindsight; None where nothing is relevant."""
    best, choice, words = 0.0, "", None
    for name in first:
        results = [*first, *new_results(title(name), first)] if searches else first
        for count in range(len(subject(name)), -1, -1):
            for chosen in combinations(subject(name), count):
                answer = " ".join(dict.fromkeys([module(name), *chosen]))
                score = f1(picked(answer, results), relevant)
                if score > best:
                    best, choice, words = score, name, answer
    return choice, words


@functools.lru_cache(100_000)
def ranked(query: str, count: int) -> list[str]:
    """Return the functions that BM25 ranks first."""
    _, index = library()
    return [index.ids[number] for number, _ in index.ranked(content_words(query), count)]


def new_results(query: str, earlier: list[str]) -> list[str]:
    """Return the first functions that were not in earlier results."""
    return [name for name in ranked(query, 3 * RESULTS) if name not in earlier][:RESULTS]


def picked(answer: str, results: list[str]) -> list[str]:
    """Return the results that an answer picks."""
    words = re.findall(r"\w+", answer) or [""]
    same = [(n, name) for n, name in enumerate(results) if module(name) == words[0]]
    return [name for n, name in same if n < RESULTS or set(words).intersection(subject(name))]


def f1(answer, relevant) -> float:
    return 2 * len(relevant.intersection(answer)) / (len(answer) + len(relevant))


def call(query: str):
    """Return a turn that searches; with the space in front each word is the token that the policy read."""
    function = {"name": "search", "arguments": {"query": f" {query}"}}
    return {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "type": "function", "function": function}]}


def title(name: str) -> str:
    """Return what is shown of a function: its module, and the words of its own name."""
    return " ".join(dict.fromkeys([module(name), *subject(name)]))


def module(name: str) -> str:
    return name.partition(".")[0].lower()


@functools.cache
def subject(name: str) -> list[str]:
    """Return the words of a function's own name, without its class."""
    words = name_words(name.rpartition(".")[2])
    return list(dict.fromkeys(word for word in words if len(word) > 2)) or words
