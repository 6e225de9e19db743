"""Print what the base model can do on held-out requests, before any reinforcement learning."""

from __future__ import annotations

import argparse
import random

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from steadyrl.core.config import resolve
from steadyrl.core.metrics import answer_means
from steadyrl.environments.search.stdlib_corpus import is_held_out
from steadyrl.environments.search.stdlib_docs import read_entries
from steadyrl.loop.evaluate import evaluate
from steadyrl.loop.train import open_session


def main() -> None:
    """Measure one model folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="steadyrl/backends/base-model")
    args = parser.parse_args()
    session = open_session(resolve({"model": {"path": args.model}, "rewards": {"retrieval": 1.0, "parseable": 0.0}}))
    sampling, metric = session.sampling, session.task.metric
    records = evaluate(session.backend, session.heldout, session.terms, metric, sampling, 0)
    print(f"{len(records)} held-out requests")
    for decoding in ("sampled", "greedy"):
        found = answer_means(records, decoding)
        print(decoding, ", ".join(f"{name} {found[name]:.4f}" for name in sorted(found)))
    copied = [copied_share(r["prompt"], r["answers"]["sampled"]["text"]) for r in records]
    print(f"words of the queries that stand in the request: {sum(copied) / len(copied):.3f}")
    print(f"held-out reading: {reading_loss(args.model):.3f} nats a token")


def copied_share(prompt: str, query: str) -> float:
    """Return the share of a query's words (operators aside) that its request holds."""
    words = [w.strip('()*"') for w in query.split() if w not in {"AND", "OR", "NOT", "(", ")"}]
    asked = set("".join(c if c.isalnum() else " " for c in prompt).split())
    return sum(w in asked for w in words) / len(words) if words else 0.0


def reading_loss(folder: str) -> float:
    """Return the mean loss on documentation of modules that were held out."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    held = [f"{e.name}: {e.summary}\n{e.body[:1500]}".lower() for e in read_entries() if is_held_out(e.module)]
    losses = []
    for text in random.Random(0).sample(held, 100):
        ids = torch.tensor([tokenizer(text)["input_ids"][:256]])
        with torch.no_grad():
            losses.append(model(ids, labels=ids).loss.item())
    return sum(losses) / len(losses)


if __name__ == "__main__":
    main()
