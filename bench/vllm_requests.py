"""Ways to ask a vLLM server for many completions: python bench/vllm_requests.py --url http://localhost:8000

Every way asks for the same number of completions of random prompts, several of each. What is compared is the processor
time of this process and, on a machine that does nothing else, the wall time. A server on a CPU needs room for all
prompts at once (--max-num-batched-tokens 2048), for it dies of a seeded request that it reads in parts.
"""

import argparse
import http.client
import json
import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import numpy as np

PROMPTS, SAMPLES, LENGTH, NEW, REPEATS = 8, 8, 16, 16, 3


class Asker:
    """Asks on new connections, or on one for each thread."""

    def __init__(self, url: str):
        self._host, self._kept = urlsplit(url).netloc, threading.local()
        self.model = json.loads(self.ask("/v1/models", None, False))["data"][0]["id"]
        generator = np.random.default_rng(0)
        self.prompts = [generator.integers(100, 40_000, LENGTH).tolist() for _ in range(PROMPTS)]

    def ask(self, path: str, body: dict[str, object] | None, keep: bool) -> bytes:
        """Return the answer's body."""
        connection = getattr(self._kept, "connection", None) if keep else None
        if connection is None:
            connection = http.client.HTTPConnection(self._host, timeout=600)
            self._kept.connection = connection
        connection.request("POST" if body else "GET", path, json.dumps(body), {"Content-Type": "application/json"})
        with connection.getresponse() as answer:
            raw = answer.read()
            assert answer.status == 200, raw
        if not keep:
            connection.close()
        return raw

    def complete(self, prompt: object, seed: int | None, samples: int, keep: bool) -> int:
        """Return how many completions the server gave."""
        sampling = {"max_tokens": NEW, "temperature": 1.0, "seed": seed, "n": samples, "ignore_eos": True}
        body = {"model": self.model, "prompt": prompt, "logprobs": 0, "return_token_ids": True} | sampling
        return len(json.loads(self.ask("/v1/completions", body, keep))["choices"])

    def one_each(self, keep: bool) -> int:
        """Ask for every completion by itself, with its own seed."""
        jobs = [(prompt, i * SAMPLES + k) for i, prompt in enumerate(self.prompts) for k in range(SAMPLES)]
        with ThreadPoolExecutor(len(jobs)) as pool:
            return sum(pool.map(lambda job: self.complete(job[0], job[1], 1, keep), jobs))

    def by_prompt(self) -> int:
        """Ask for all completions of a prompt at once; their seeds follow each other."""
        with ThreadPoolExecutor(PROMPTS) as pool:
            return sum(pool.map(lambda i: self.complete(self.prompts[i], i * SAMPLES, SAMPLES, False), range(PROMPTS)))

    def in_one(self) -> int:
        """Ask for all completions at once; one seed for all would make those of a prompt equal, so there is none."""
        return self.complete([prompt for prompt in self.prompts for _ in range(SAMPLES)], None, 1, False)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://localhost:8000")
    asker = Asker(parser.parse_args().url)
    ways: dict[str, Callable[[], int]] = {
        "one request a completion, new connections": lambda: asker.one_each(False),
        "one request a completion, kept connections": lambda: asker.one_each(True),
        "one request a prompt": asker.by_prompt,
        "one request in all": asker.in_one,
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    asker.one_each(True)  # warms up
    for _ in range(REPEATS):
        for name, way in ways.items():
            wall, own = time.perf_counter(), time.process_time()
            assert way() == PROMPTS * SAMPLES
            found[name].append((time.perf_counter() - wall, time.process_time() - own))
    print(f"| {PROMPTS * SAMPLES} completions of {NEW} tokens | wall (s) | this process (ms) |\n|---|---|---|")
    for name, times in found.items():
        wall, own = (statistics.median(column) for column in zip(*times, strict=True))
        print(f"| {name} | {wall:.2f} | {own * 1000:.0f} |")


if __name__ == "__main__":
    main()
