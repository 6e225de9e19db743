"""Train the model that examples/search-grpo.toml begins with: `make search-start`.

Goes on from the base model and teaches it one thing more: to write words of a list that stands in the prompt, as the
search task puts words there which a first search found. The lists are made of random words, so no request is answered
and no word is better than another: which ones to take is learned from rewards. Deterministic as train.py is.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import texts
import torch
import train
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

PROMPT = "request: {request}\nfound: {found}\nquery:"
LENGTH = 88  # tokens of a row, at most
STAGES = [(1.0, {"found": 0.9, "copy": 0.1})]


def main() -> None:
    """Load the base model, train, and write the folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--start", type=Path, default=Path("steadyrl/backends/base-model"))
    parser.add_argument("--out", type=Path, default=Path("examples/search-start"))
    parser.add_argument("--steps", type=int, default=2400)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--near", type=float, default=0.0, help="share of the pairs that are neighbours in the list")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    requests, _ = texts.requests()
    tokenizer = Tokenizer.from_file(str(args.start / "tokenizer.json"))
    data = Data(tokenizer, requests, texts.documentation(), texts.source(), args.seed, args.near)
    model = LlamaForCausalLM.from_pretrained(args.start, dtype=torch.float32)
    train.train(model, data, STAGES, args.steps, args.rate)
    args.out.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (args.out / name).write_bytes((args.start / name).read_bytes())
    train.save(model.half(), data, args)


class Data(train.Data):
    """As of the base model, with one more kind of batch: "found"."""

    def __init__(self, tokenizer, requests, documents, source, seed: int, near: float):
        super().__init__(tokenizer, requests, documents, source, seed)
        self.near = near
        self.spelled = texts.spelled_words(documents, self.words)
        self.ready: list[list[tuple[list[int], list[int]]]] = []

    def batch(self, kind: str):
        """Return (ids [B, T], positions that count [B, T] bool); rows of a batch are of nearly the same length."""
        if kind != "found":
            return super().batch(kind)
        if not self.ready:
            rows = sorted((self._found() for _ in range(8 * train.EXERCISE_ROWS)), key=lambda row: len(row[0] + row[1]))
            self.ready = [rows[i : i + train.EXERCISE_ROWS] for i in range(0, len(rows), train.EXERCISE_ROWS)]
            self.rng.shuffle(self.ready)
        rows = self.ready.pop()
        ids = np.full((len(rows), max(len(prompt + answer) for prompt, answer in rows)), self.pad, np.int64)
        counts = np.zeros(ids.shape, bool)
        for row, (prompt, answer) in enumerate(rows):
            ids[row, : len(prompt + answer)] = prompt + answer
            counts[row, len(prompt) : len(prompt + answer)] = True
        return torch.from_numpy(ids), torch.from_numpy(counts)

    def _found(self) -> tuple[list[int], list[int]]:
        """Return (prompt, answer) of at most LENGTH tokens; half of the requests are random words."""
        while True:
            if self.rng.random() < 0.5:
                request = texts.disguised(self.rng, self.rng.choice(self.requests), self.any_words)
            else:
                request = " ".join(self.rng.sample(self.any_words, self.rng.randint(3, 9)))
            content = texts.blind_words(self.rng, request)
            found, query = texts.found_words(self.rng, content, self.words, self.spelled, self.near)
            prompt = self.encode(PROMPT.format(request=request, found=found))
            answer = [*self.encode(" " + query), self.end]
            if len(prompt) + len(answer) <= LENGTH:
                return prompt, answer


if __name__ == "__main__":
    main()
