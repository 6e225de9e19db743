"""A backend without a network: a table of next-token logits in numpy float64, with exact gradients.

The policy is a bigram model: the logits of a token depend on the token before it, and so does the value. It runs the
whole loop in milliseconds and is offered for tests of rewards, tasks and algorithms, yours too.
"""

from __future__ import annotations

import string
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np

from steadyrl.backends import tape
from steadyrl.backends.step import products_of
from steadyrl.backends.text_chat import FORMATS, TextChat
from steadyrl.core.config import Config
from steadyrl.core.errors import CheckpointError
from steadyrl.core.protocols import Algorithm, Stats, Update
from steadyrl.core.types import Batch, Completion, Message, Sampling, TokenScores, plain_text
from steadyrl.maths.batch import loss_arrays, loss_count, loss_stats

ADAM_BETAS, ADAM_EPS = (0.9, 0.999), 1e-8
_FILE = "toy.npz"


class CharTokenizer:
    """One token per character: lower-case letters, digits, space and a little punctuation; others become "?"."""

    characters = string.ascii_lowercase + string.digits + " .,:?()\n"

    def __init__(self) -> None:
        self.end_id = len(self.characters)
        self.end_ids: tuple[int, ...] = (self.end_id,)
        self.pad_id = self.end_id + 1
        self.size = self.end_id + 2
        self._ids = {c: i for i, c in enumerate(self.characters)}

    def encode_prompt(self, prompt: str | Sequence[Message]) -> np.ndarray:
        """Return [P] int32 ids; an empty prompt becomes one space, since something has to stand before a token."""
        text = prompt if isinstance(prompt, str) else plain_text(prompt)
        return np.array([self._ids.get(c, self._ids["?"]) for c in text.lower() or " "], np.int32)

    def encode_answer(self, text: str, after: str) -> np.ndarray:
        """See Tokenizer."""
        return np.append(self.encode_prompt(text) if text else np.zeros(0, np.int32), self.end_id).astype(np.int32)

    def encode_turn(self, observation: str, ended: bool) -> np.ndarray:
        """See Tokenizer: the observation on lines of its own."""
        ids = self.encode_prompt(f"\n{observation}\n")
        return ids if ended else np.append(self.end_id, ids).astype(np.int32)

    def chat(self, tools: Sequence[Mapping[str, Any]], tool_format: str) -> TextChat:
        """See Conversing: calls in Python's form without quotes, whatever is asked for; tools are not described."""

        def write(name: str, arguments: Mapping[str, Any]) -> str:
            return f"{name}({', '.join(map(str, arguments.values()))})"

        return TextChat(self, tools, replace(FORMATS["python"], write=write))

    def decode(self, ids: np.ndarray) -> str:
        """Return the characters of ids, end and padding left out."""
        return "".join(self.characters[i] for i in ids if i < len(self.characters))


class _NextToken(NamedTuple):
    """What may follow a token."""

    cumulative: list[float]  # [V] sum of the probabilities up to and with each token
    total: float  # of all probabilities, 1 up to rounding
    logprobs: list[float]  # [V] as the setting ``sampling.logprobs`` wants them
    kept_ids: np.ndarray  # ids that truncation kept, ascending


class ToyBackend:
    """See Backend. Parameters: ``logits`` [V, V] by (previous, next) token, ``values`` [V] by previous token."""

    def __init__(self, seed: int = 0, value_rate: float = 0.0):
        self._value_rate = value_rate
        self.tokenizer = CharTokenizer()
        size = self.tokenizer.size
        start = np.random.default_rng(seed).normal(0.0, 0.1, (size, size))
        start[:, self.tokenizer.pad_id] = -1e9  # never sampled, however hot
        self.parameters = {"logits": start, "values": np.zeros(size)}
        self._reference = start.copy()
        self._moments = {f"{m}.{name}": np.zeros_like(p) for m in "mv" for name, p in self.parameters.items()}
        self._updates = 0

    @classmethod
    def create(cls, config: Config, algorithm: Algorithm) -> ToyBackend:
        """Build the backend of a run."""
        return cls(config.run.seed, algorithm.value_rate)

    def describe(self) -> dict[str, object]:
        """Return what run.json records of the model."""
        return {"model": "toy", "parameters": sum(p.size for p in self.parameters.values()), "device": "cpu"}

    def generate(self, prompts: Sequence[np.ndarray], sampling: Sampling, seeds: Sequence[int]) -> list[Completion]:
        """See Backend."""
        table = self.parameters["logits"]
        keep = np.stack([truncation(logits, sampling) for logits in table / sampling.temperature])  # [V, V]
        tokens = np.arange(len(table))
        sampled_logp = self._logp(table, tokens, replace(sampling, logprobs="sampled"), keep)
        logprobs = sampled_logp if sampling.logprobs == "sampled" else self._logp(table, tokens, sampling, keep)
        p = np.exp(sampled_logp)
        kept_ids = [np.flatnonzero(row).astype(np.int32) for row in keep]
        choices = list(map(_NextToken, p.cumsum(axis=1).tolist(), p.sum(axis=1).tolist(), logprobs.tolist(), kept_ids))
        return [self._complete(prompt, sampling, seed, choices) for prompt, seed in zip(prompts, seeds, strict=True)]

    def _complete(self, prompt: np.ndarray, sampling: Sampling, seed: int, choices: Sequence[_NextToken]) -> Completion:
        # Lists and numbers of Python: a call of NumPy for each token would take most of the time of a step.
        uniform = np.random.default_rng(seed).random(sampling.max_new_tokens).tolist()
        previous, ids, logprobs, kept_ids = int(prompt[-1]), [], [], []
        for u in uniform:
            choice = choices[previous]
            previous = min(bisect_right(choice.cumulative, u * choice.total), int(choice.kept_ids[-1]))
            ids.append(previous)
            logprobs.append(choice.logprobs[previous])
            kept_ids.append(choice.kept_ids)
            text = self.tokenizer.decode(np.array(ids)) if sampling.stop else ""
            ended = previous == self.tokenizer.end_id or any(stop in text for stop in sampling.stop)
            if ended:
                break
        return Completion(
            np.array(ids, np.int32),
            np.array(logprobs, np.float32),
            "stop" if ended else "length",
            tuple(kept_ids) if sampling.truncates else None,
        )

    def score(self, batch: Batch, sampling: Sampling, needs: frozenset[str]) -> TokenScores:
        """See Backend."""
        previous, keep = self._contexts(batch, sampling)
        mask, chosen = batch.completion_mask, batch.tokens[batch.completion_mask]
        rows = np.arange(len(chosen))
        logp = self._logp(self.parameters["logits"], previous, sampling, keep)  # [N, V]
        ref = self._logp(self._reference, previous, sampling, keep)
        p = np.exp(logp)
        with np.errstate(invalid="ignore"):  # cut tokens: 0 * (-inf) is 0 here
            scores = {
                "logprobs": logp[rows, chosen],
                "entropy": -np.where(p > 0, p * logp, 0.0).sum(axis=1),
                "values": self.parameters["values"][previous] if "values" in needs else None,
                "ref_logprobs": ref[rows, chosen] if "ref_logprobs" in needs else None,
                "kl_ref_exact": np.where(p > 0, p * (logp - ref), 0.0).sum(axis=1) if "ref_logprobs" in needs else None,
            }
            if "ref_logprobs" in needs and sampling.truncates and sampling.logprobs == "sampled":
                full_ref = self._logp(self._reference, previous, sampling, np.ones_like(keep))
                scores["kl_ref_full"] = np.where(p > 0, p * (logp - full_ref), 0.0).sum(axis=1)
        return TokenScores(**{name: None if x is None else _scatter(x, mask) for name, x in scores.items()})

    def step(self, batch: Batch, update: Update) -> Stats:
        """See Backend."""
        gradients, stats = self.gradients(batch, update)
        stats = stats | self._momentum_cosine(gradients)
        norm = self._adam(gradients, update.learning_rate, update.max_grad_norm)
        return stats | {"grad_norm": (norm, 1.0)}

    def remember(self) -> Callable[[], None]:
        """See Reversible; updates put new arrays in the place of old ones, which stay as they are."""
        parameters, moments, updates = dict(self.parameters), dict(self._moments), self._updates

        def put_back() -> None:
            self.parameters, self._moments, self._updates = parameters, moments, updates

        return put_back

    def gradients(self, batch: Batch, update: Update) -> tuple[dict[str, np.ndarray], Stats]:
        """Return the gradient of each parameter, and what the loss measured."""
        sampling = update.sampling
        previous, keep = self._contexts(batch, sampling)
        mask, chosen = batch.completion_mask, batch.tokens[batch.completion_mask]
        logp = self._logp(self.parameters["logits"], previous, sampling, keep)
        p = np.exp(logp)
        plogp = np.where(p > 0, p * np.where(p > 0, logp, 0.0), 0.0)
        entropy = -plogp.sum(axis=1)
        new_logprobs = tape.Tensor(_scatter(logp[np.arange(len(chosen)), chosen], mask))
        new_entropy = tape.Tensor(_scatter(entropy, mask))
        new_values = tape.Tensor(_scatter(self.parameters["values"][previous], mask))
        new = TokenScores(logprobs=new_logprobs, entropy=new_entropy, values=new_values)
        total, sums = update.loss(tape, new, loss_arrays(batch), loss_count(batch))
        total.backward()
        # d logp(chosen) = onehot - p; d entropy = -(p log p + p * entropy); each over the temperature
        onehot = np.zeros_like(p)
        onehot[np.arange(len(chosen)), chosen] = 1.0
        scale = sampling.temperature if sampling.logprobs == "sampled" else 1.0
        by_choice = (
            new_logprobs.grad[mask][:, None] * (onehot - p)
            - new_entropy.grad[mask][:, None] * (plogp + p * entropy[:, None])
        ) / scale
        gradients = {name: np.zeros_like(x) for name, x in self.parameters.items()}
        np.add.at(gradients["logits"], previous, by_choice)
        np.add.at(gradients["values"], previous, new_values.grad[mask])
        measured = {"loss/total": total, **sums}
        totals = {name: float(np.sum(x.data if isinstance(x, tape.Tensor) else x)) for name, x in measured.items()}
        return gradients, loss_stats(batch, totals)

    def gradient_products(self, batches: Sequence[Batch], update: Update) -> np.ndarray:
        """See GradientProducts."""
        return products_of([self.gradients(batch, update)[0] for batch in batches])

    def save(self, folder: Path) -> None:
        """See Backend."""
        with (folder / _FILE).open("wb") as file:
            arrays: dict[str, Any] = {**self.parameters, **self._moments}
            np.savez(file, updates=self._updates, reference=self._reference, **arrays)

    def load(self, folder: Path) -> None:
        """See Backend."""
        try:
            with (folder / _FILE).open("rb") as file, np.load(file, allow_pickle=False) as saved:
                self._updates, self._reference = int(saved["updates"]), saved["reference"]
                self.parameters = {name: saved[name] for name in self.parameters}
                self._moments = {name: saved[name] for name in self._moments}
        except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
            raise CheckpointError(f"cannot read '{folder / _FILE}': {error}; use an earlier checkpoint") from error

    def _contexts(self, batch: Batch, sampling: Sampling) -> tuple[np.ndarray, np.ndarray]:
        """Return the previous token [N] of every chosen token, and what truncation kept there [N, V] bool."""
        rows, columns = np.nonzero(batch.completion_mask)
        keep = np.ones((len(rows), self.tokenizer.size), bool)
        if batch.kept is not None and sampling.logprobs == "sampled":
            lengths = batch.kept.lengths[rows, columns]
            keep[lengths > 0] = False  # where no ids are recorded nothing was cut
            keep[np.repeat(np.arange(len(rows)), lengths), batch.kept.ids] = True
        return batch.tokens[rows, columns - 1], keep

    def _logp(self, table: np.ndarray, previous: np.ndarray, sampling: Sampling, keep: np.ndarray) -> np.ndarray:
        logits = table[previous]
        if sampling.logprobs == "sampled":
            logits = np.where(keep, logits / sampling.temperature, -np.inf)
        logits = logits - logits.max(axis=1, keepdims=True)
        logp: np.ndarray = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        return logp

    def _momentum_cosine(self, gradients: dict[str, np.ndarray]) -> dict[str, tuple[float, float]]:
        """Return the cosine of gradients with Adam's mean of those before them, as a statistic; empty without one."""
        new = np.concatenate([gradient.ravel() for gradient in gradients.values()])
        mean = np.concatenate([self._moments[f"m.{name}"].ravel() for name in gradients])
        size = float(np.linalg.norm(new) * np.linalg.norm(mean))
        return {"grad_cosine": (float(new @ mean) / size, 1.0)} if 0 < size < np.inf else {}

    def _adam(self, gradients: dict[str, np.ndarray], learning_rate: float, max_grad_norm: float) -> float:
        norm = float(np.sqrt(sum(np.sum(g**2) for g in gradients.values())))
        if not np.isfinite(norm):
            return norm  # the weights stay as they are, and the loop stops
        self._updates += 1
        for name, gradient in gradients.items():
            gradient = gradient * min(1.0, max_grad_norm / (norm + ADAM_EPS))
            m = self._moments[f"m.{name}"] = ADAM_BETAS[0] * self._moments[f"m.{name}"] + (1 - ADAM_BETAS[0]) * gradient
            v = self._moments[f"v.{name}"] = (
                ADAM_BETAS[1] * self._moments[f"v.{name}"] + (1 - ADAM_BETAS[1]) * gradient**2
            )
            m, v = m / (1 - ADAM_BETAS[0] ** self._updates), v / (1 - ADAM_BETAS[1] ** self._updates)
            rate = max(learning_rate, self._value_rate) if name == "values" else learning_rate
            self.parameters[name] = self.parameters[name] - rate * m / (np.sqrt(v) + ADAM_EPS)
        return norm


def truncation(logits: np.ndarray, sampling: Sampling) -> np.ndarray:
    """Return which tokens top-k and then top-p keep.

    Args:
        logits: [V], already divided by the temperature.
        sampling: Its top_k and top_p are used.

    Returns:
        [V] bool; at least one True. Top-p keeps the smallest set whose probability reaches top_p.
    """
    keep = np.ones(len(logits), bool)
    if sampling.top_k > 0:
        keep &= logits >= np.sort(logits)[-min(sampling.top_k, len(logits))]
    if sampling.top_p < 1.0:
        p = np.where(keep, np.exp(logits - logits.max()), 0.0)
        order = np.argsort(-p, kind="stable")
        shares = p[order] / p.sum()
        mass_before = np.cumsum(shares) - shares
        keep[order[mass_before >= sampling.top_p]] = False
    return keep


def _scatter(values: np.ndarray, mask: np.ndarray) -> np.ndarray:
    full = np.zeros(mask.shape)
    full[mask] = values
    return full
