"""Train the base model that steadyrl ships: `make base-model`.

Three kinds of batches, whose shares change over three stages: copying (random words, queries of them), reading
(documentation, Python source, pages), and queries of a weak teacher on training requests. Deterministic
given the seed, the interpreter and the number of threads.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from pathlib import Path

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

sys.path.insert(0, str(Path(__file__).parent))
import texts
import vocabulary

PROMPT = "request: {request}\nquery:"
SHAPE = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4, "num_attention_heads": 4}
VOCABULARY = 7168
READING_ROWS, READING_LENGTH = 48, 96
EXERCISE_ROWS, EXERCISE_LENGTH = 128, 48
# (share of the run's steps, {kind of batch: its share of the stage's steps})
STAGES = [
    (0.30, {"copy": 1.0}),
    (0.45, {"copy": 0.30, "read": 0.50, "teach": 0.20}),
    (0.25, {"copy": 0.25, "read": 0.10, "teach": 0.65}),
]


def main() -> None:
    """Build the tokenizer, train, and write the folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("steadyrl/backends/base-model"))
    parser.add_argument("--steps", type=int, default=1400)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    args.out.mkdir(parents=True, exist_ok=True)

    train_requests, all_requests = texts.requests()
    documents, source = texts.documentation(), texts.source()
    tokenizer = vocabulary.train_tokenizer(all_requests, documents, source, VOCABULARY)
    vocabulary.save(tokenizer, args.out)
    data = Data(tokenizer, train_requests, documents, source, args.seed)
    model = new_model(tokenizer)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters, {len(data.stream)} tokens to read")
    train(model, data, STAGES, args.steps, args.rate)
    save(model, data, args)


def save(model, data, args) -> None:
    """Write a trained model and how it was trained into its folder."""
    model.generation_config.eos_token_id = data.end
    model.generation_config.pad_token_id = data.pad
    model.save_pretrained(args.out)
    (args.out / "training.json").write_text(json.dumps({"steps": args.steps, "rate": args.rate, "seed": args.seed}))


def new_model(tokenizer) -> LlamaForCausalLM:
    """Return the untrained model for a tokenizer."""
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(), max_position_embeddings=1024, tie_word_embeddings=True,
        bos_token_id=None, eos_token_id=tokenizer.token_to_id(vocabulary.END),
        pad_token_id=tokenizer.token_to_id(vocabulary.PAD), **SHAPE,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    # Embeddings of unit length are nearly orthogonal, so that a copied token is at once the likeliest: copying appears
    # after 100 steps. With the library's 0.02 it had not appeared after 1500.
    torch.nn.init.normal_(model.model.embed_tokens.weight, std=SHAPE["hidden_size"] ** -0.5)
    return model


class Data:
    """Batches of token ids with the positions that count."""

    def __init__(self, tokenizer, requests, documents, source, seed: int):
        self.rng = random.Random(seed)
        self.encode = lambda text: tokenizer.encode(text).ids
        self.end, self.pad = tokenizer.token_to_id(vocabulary.END), tokenizer.token_to_id(vocabulary.PAD)
        ids = tokenizer.get_vocab()
        self.words = sorted(
            {p[1:] for p in ids if p.startswith("Ġ") and len(p) > 3 and p[1:].isalpha() and p[1:].islower()}
        )
        self.weight = texts.rarity(documents)
        spelled = texts.spelled_words(documents, self.words)
        self.any_words = self.words + self.rng.sample(spelled, min(len(spelled), len(self.words) // 3))
        self.requests = [request.lower() for request in requests]
        pages = [texts.page(self.rng, self.words[:2000]) for _ in range(3000)]
        files = self.rng.sample(source, len(source))
        chunks = [*documents, *documents, *documents, *pages, *(f[:20000] for f in files)]
        self.rng.shuffle(chunks)
        self.stream = np.array([t for text in chunks for t in [*self.encode(text), self.end]], dtype=np.int32)

    def batch(self, kind: str):
        """Return (ids [B, T], positions that count [B, T] bool) of one kind: "read", "copy" or "teach"."""
        if kind == "read":
            starts = [self.rng.randrange(len(self.stream) - READING_LENGTH) for _ in range(READING_ROWS)]
            ids = np.stack([self.stream[s : s + READING_LENGTH] for s in starts]).astype(np.int64)
            return torch.from_numpy(ids), torch.ones(ids.shape, dtype=torch.bool)
        ids = np.full((EXERCISE_ROWS, EXERCISE_LENGTH), self.pad, np.int64)
        counts = np.zeros(ids.shape, bool)
        for row in range(EXERCISE_ROWS):
            prompt, answer = self._exercise(kind)
            whole = [*prompt, *answer][:EXERCISE_LENGTH]
            ids[row, : len(whole)] = whole
            counts[row, len(prompt) : len(whole)] = True
        return torch.from_numpy(ids), torch.from_numpy(counts)

    def _exercise(self, kind: str):
        if kind == "copy":
            request, query = texts.copying(self.rng, self.any_words, self.weight)
        else:
            request = texts.disguised(self.rng, self.rng.choice(self.requests), self.any_words)
            query = texts.teacher(self.rng, texts.blind_words(self.rng, request), self.weight)
        return self.encode(PROMPT.format(request=request)), [*self.encode(" " + query), self.end]


def train(model, data: Data, stages, steps: int, rate: float) -> None:
    """Run the stages: (share of the steps, {kind of batch: its share of the stage's steps}) each."""
    decay = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": decay, "weight_decay": 0.05}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.98))
    bounds = np.cumsum([share for share, _ in stages]) * steps
    start, recent = time.time(), {}
    for step in range(steps):
        shares = stages[int(np.searchsorted(bounds, step, side="right").clip(max=len(stages) - 1))][1]
        (kind,) = data.rng.choices(list(shares), list(shares.values()))
        now = rate * min(1, (step + 1) / 50) * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * step / steps)))
        for group in optimizer.param_groups:
            group["lr"] = now
        ids, counts = data.batch(kind)
        hidden = model.model(input_ids=ids).last_hidden_state[:, :-1][counts[:, 1:]]
        loss = torch.nn.functional.cross_entropy(model.lm_head(hidden), ids[:, 1:][counts[:, 1:]])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        recent[kind] = loss.item()
        if step % 50 == 0 or step == steps - 1:
            losses = ", ".join(f"{name} {value:.2f}" for name, value in recent.items())
            print(f"step {step}: loss of {losses}; {time.time() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
