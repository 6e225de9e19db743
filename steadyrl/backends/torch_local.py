"""The PyTorch backend: a Hugging Face causal model on one device, its frozen reference and its value head.

Log-probs are computed from the hidden states of completion tokens only, in float32, under the distribution that was
sampled from. The model is always in eval mode: with dropout on, the ratio of new to old probabilities would be noise
before the first update.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from steadyrl.backends import torch_state
from steadyrl.backends.torch_model import load_model, split_head
from steadyrl.backends.torch_sampler import sample
from steadyrl.backends.value_head import ValueHead
from steadyrl.batch import loss_arrays, micro_batches, take_rows
from steadyrl.config import Config
from steadyrl.errors import ConfigError
from steadyrl.types import Algorithm, Batch, Completion, LossFn, Sampling, TokenScores

ADAM_BETAS, ADAM_EPS = (0.9, 0.95), 1e-8


class TorchBackend:
    """See Backend."""

    def __init__(self, config: Config, algorithm: Algorithm):
        if config.backend.threads:
            torch.set_num_threads(config.backend.threads)
        self.device = _device(config.backend.device)
        with torch.random.fork_rng(devices=[]):  # what is not in the files (an adapter) starts from the run's seed
            torch.manual_seed(config.run.seed)
            self.model, self.tokenizer = load_model(config.model, self.device)
        self._body, self._head = split_head(self.model)
        self._lora = config.model.lora_rank > 0
        self._micro_batch_tokens = config.backend.micro_batch_tokens
        self._generate_rows = config.backend.generate_rows
        self.value_head: ValueHead | None = None
        if "values" in algorithm.needs:
            self.value_head = ValueHead(self._head.in_features).to(self.device)
        self._reference: tuple[nn.Module, Any] | None = None
        if "ref_logprobs" in algorithm.needs and not self._lora:
            frozen = copy.deepcopy(self.model).requires_grad_(False)
            self._reference = split_head(frozen)
        self.optimizer = torch.optim.AdamW(
            list(self._trainable().values()),
            betas=ADAM_BETAS,
            eps=ADAM_EPS,
            weight_decay=config.update.weight_decay,
        )

    @classmethod
    def create(cls, config: Config, algorithm: Algorithm) -> TorchBackend:
        """Build the backend of a run."""
        return cls(config, algorithm)

    def describe(self) -> dict[str, object]:
        """Return what run.json records of the model."""
        inner = self.model.get_base_model() if self._lora else self.model
        return {
            "type": inner.config.model_type,
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "trained": sum(p.numel() for p in self._trainable().values()),
            "device": str(self.device),
            "threads": torch.get_num_threads(),
        }

    def generate(self, prompts: Sequence[np.ndarray], sampling: Sampling, seeds: Sequence[int]) -> list[Completion]:
        """See Backend."""
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        done: dict[int, Completion] = {}
        for start in range(0, len(order), self._generate_rows):
            rows = order[start : start + self._generate_rows]
            drawn = sample(
                self.model,
                [prompts[i] for i in rows],
                sampling,
                [seeds[i] for i in rows],
                self.tokenizer.eos_id,
                self.tokenizer.pad_id,
            )
            done.update(zip(rows, drawn, strict=True))
        return [done[i] for i in range(len(prompts))]

    def score(self, batch: Batch, sampling: Sampling, needs: frozenset[str]) -> TokenScores:
        """See Backend."""
        names = ["logprobs", "entropy"]
        names += ["values"] if "values" in needs else []
        names += ["ref_logprobs", "kl_ref_exact"] if "ref_logprobs" in needs else []
        found = {name: np.zeros(batch.tokens.shape) for name in names}
        with torch.inference_mode():
            for rows in micro_batches(batch, self._micro_batch_tokens):
                part = take_rows(batch, rows)
                for name, flat in self._measure(part, sampling, needs).items():
                    full = np.zeros(part.tokens.shape)
                    full[part.completion_mask] = flat.double().cpu().numpy()
                    found[name][rows, : part.tokens.shape[1]] = full
        return TokenScores(**found)

    def _measure(self, part: Batch, sampling: Sampling, needs: frozenset[str]) -> dict[str, torch.Tensor]:
        """Return the asked measurements of a micro-batch, [N] each, completion tokens in row-major order."""
        hidden = self._hidden(self._body, part)
        chosen = self._chosen(part)
        kept = self._kept_mask(part, sampling)
        logp = _log_softmax(self._head(hidden), sampling, kept)  # [N, V]
        found = {"logprobs": logp.gather(1, chosen[:, None])[:, 0], "entropy": _entropy(logp)}
        if "values" in needs:
            assert self.value_head is not None, "values asked of a backend built without a value head"
            found["values"] = self.value_head(hidden)
        if "ref_logprobs" in needs:
            body, head = self._reference or (self._body, self._head)
            with self.model.disable_adapter() if self._lora else nullcontext():
                ref = _log_softmax(head(self._hidden(body, part)), sampling, kept)
            found["ref_logprobs"] = ref.gather(1, chosen[:, None])[:, 0]
            p = logp.exp()
            found["kl_ref_exact"] = torch.where(p > 0, p * (logp - ref), 0.0).sum(-1)
        return found

    def step(
        self,
        batch: Batch,
        loss: LossFn,
        sampling: Sampling,
        needs: frozenset[str],
        learning_rate: float,
        max_grad_norm: float,
    ) -> dict[str, tuple[float, float]]:
        """See Backend."""
        count = float(batch.completion_mask.sum())
        totals: dict[str, float] = {"loss/total": 0.0}
        self.optimizer.zero_grad(set_to_none=True)
        for rows in micro_batches(batch, self._micro_batch_tokens):
            part = take_rows(batch, rows)
            value, sums = loss(torch, self._new_scores(part, sampling, needs), self._arrays(part), count)
            value.backward()
            totals["loss/total"] += value.item()
            for name, total in sums.items():
                totals[name] = totals.get(name, 0.0) + total.item()
        parameters = list(self._trainable().values())
        norm = nn.utils.clip_grad_norm_(parameters, max_grad_norm).item()
        if math.isfinite(norm):  # otherwise the weights stay as they are, and the loop stops
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate
            self.optimizer.step()
        stats = {name: (total, count) for name, total in totals.items()}
        return stats | {"loss/total": (totals["loss/total"], 1.0), "grad_norm": (norm, 1.0)}

    def _new_scores(self, part: Batch, sampling: Sampling, needs: frozenset[str]) -> TokenScores:
        hidden = self._hidden(self._body, part)
        logp = _log_softmax(self._head(hidden), sampling, self._kept_mask(part, sampling))
        mask = torch.from_numpy(part.completion_mask).to(self.device)

        def spread(flat: torch.Tensor) -> torch.Tensor:
            full = torch.zeros(mask.shape, device=self.device)
            full[mask] = flat
            return full

        return TokenScores(
            logprobs=spread(logp.gather(1, self._chosen(part)[:, None])[:, 0]),
            entropy=spread(_entropy(logp)) if "entropy" in needs else None,
            values=spread(self.value_head(hidden)) if self.value_head is not None else None,
        )

    def save(self, folder: Path) -> None:
        """See Backend."""
        self.model.save_pretrained(folder / torch_state.POLICY)
        self.tokenizer.hf.save_pretrained(folder / torch_state.POLICY)
        torch_state.save_tensors(
            folder / torch_state.VALUE_HEAD, self.value_head.state_dict() if self.value_head else {}
        )
        torch_state.save_optimizer(folder / torch_state.OPTIMIZER, self.optimizer, self._trainable())

    def load(self, folder: Path) -> None:
        """See Backend."""
        torch_state.load_policy(folder / torch_state.POLICY, self.model, self._lora)
        if self.value_head is not None:
            torch_state.load_into(self.value_head, folder / torch_state.VALUE_HEAD)
        torch_state.load_optimizer(folder / torch_state.OPTIMIZER, self.optimizer, self._trainable())

    def _trainable(self) -> dict[str, nn.Parameter]:
        named = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        if self.value_head is not None:
            named |= {f"value_head.{name}": p for name, p in self.value_head.named_parameters()}
        return named

    def _hidden(self, body: nn.Module, part: Batch) -> torch.Tensor:
        """Return the hidden states [N, H] from which the chosen tokens were drawn.

        Rows are padded on the right: under causal attention padding cannot reach what stands before it, so that no
        attention mask is needed.
        """
        ids = torch.from_numpy(part.tokens.astype(np.int64)).to(self.device)
        mask = torch.from_numpy(part.completion_mask[:, 1:]).to(self.device)
        hidden: torch.Tensor = body(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
        return hidden[mask]

    def _chosen(self, part: Batch) -> torch.Tensor:
        return torch.from_numpy(part.tokens[part.completion_mask].astype(np.int64)).to(self.device)

    def _kept_mask(self, part: Batch, sampling: Sampling) -> torch.Tensor | None:
        """Return [N, V] bool, True for the ids that truncation left, or None where nothing was cut."""
        if part.kept is None or sampling.logprobs == "raw":
            return None
        lengths = part.kept.lengths[part.completion_mask]
        keep = torch.zeros(len(lengths), self._head.out_features, dtype=torch.bool, device=self.device)
        rows = torch.from_numpy(np.repeat(np.arange(len(lengths)), lengths)).to(self.device)
        keep[rows, torch.from_numpy(part.kept.ids.astype(np.int64)).to(self.device)] = True
        keep[torch.from_numpy(lengths == 0).to(self.device)] = True
        return keep

    def _arrays(self, part: Batch) -> dict[str, Any]:
        return {
            name: torch.from_numpy(array if array.dtype == bool else array.astype(np.float32)).to(self.device)
            for name, array in loss_arrays(part).items()
        }


def _log_softmax(logits: torch.Tensor, sampling: Sampling, kept: torch.Tensor | None) -> torch.Tensor:
    logits = logits.float()
    if sampling.logprobs == "sampled":
        logits = logits / sampling.temperature
    if kept is not None:
        logits = logits.masked_fill(~kept, -torch.inf)
    return logits.log_softmax(-1)


def _entropy(logp: torch.Tensor) -> torch.Tensor:
    p = logp.exp()
    return -(p * logp.masked_fill(p == 0, 0.0)).sum(-1)


def _device(name: str) -> torch.device:
    if name != "auto":
        try:
            return torch.zeros(0, device=name).device
        except (RuntimeError, AssertionError) as error:
            first = str(error).splitlines()[0]
            raise ConfigError(f"backend.device = '{name}' cannot be used: {first}; try 'auto' or 'cpu'") from error
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
