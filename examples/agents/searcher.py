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
    """The reward is the F1 of the functions that the answer picks of all results.

    An episode begins with what a search for the request finds. A function is shown by its module and the words of its
    own name, with a number. Wherever the policy writes the number, the title is meant. The answer is a title, too. It
    picks results in its module: all of the first search, and those of later searches that have one of its words.

    Args:
        search: Without it the policy has no tool, and answers from what the search for the request found.
    """

    def __init__(self, search: bool = True):
        if not search:
            self.tools = ()
        self.results: list[str] = []  # names of functions, of all searches
        self.titles: list[str] = []

    def search(self, query: str) -> str:
        """Find functions by words or numbers"""
        new = new_results(self.spelled(query), self.results)
        self.results += new
        titles = [words for words in dict.fromkeys(map(title, new)) if words not in self.titles]
        self.titles += titles
        first = len(self.titles) - len(titles) + 1
        return "\n".join(f"{number} {words}" for number, words in enumerate(titles, first)) or "no more"

    tools = (search,)

    def spelled(self, text: str) -> str:
        """Return a text with titles in the place of their numbers."""
        titles = {str(number): words for number, words in enumerate(self.titles, 1)}
        return re.sub(r"\d+", lambda number: titles.get(number[0], number[0]), text)

    def reset(self, problem):
        self.relevant = set(problem.columns["relevant"])
        self.answer: list[str] = []
        return f"request: {problem.prompt.lower()}\n{self.search(problem.prompt)}"

    def step(self, message):
        if message.get("tool_calls") or message.get("invalid_tool_calls"):
            return None, None, False
        self.answer = picked(self.spelled(message["content"]), self.results)
        return None, f1(self.answer, self.relevant), True

    def close(self):
        return {"answer": sorted(self.answer), "relevant": sorted(self.relevant)}

    def expert(self):
        """Search for the title with which most can be picked, in hindsight, and answer with it."""
        if len(self.results) <= RESULTS:
            self.choice = plan(self.results, frozenset(self.relevant), bool(self.tools))
            if self.tools and self.choice:
                number = str(self.titles.index(self.choice) + 1)
                function = {"name": "search", "arguments": {"query": number}}
                call = {"id": "1", "type": "function", "function": function}
                return {"role": "assistant", "content": "", "tool_calls": [call]}
        return self.choice and str(self.titles.index(self.choice) + 1)


def plan(first: list[str], relevant: frozenset[str], searches: bool) -> str | None:
    """Return the title to search for and to answer with, in hindsight; None where none picks anything relevant."""
    best, choice = 0.0, None
    for words in map(title, first):
        score = f1(picked(words, [*first, *new_results(words, first)] if searches else first), relevant)
        if score > best:
            best, choice = score, words
    return choice


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
