"""Completions from a running vLLM server, which is given the policy's weights whenever they have changed.

The server and this process share a folder: weights are written into a new subfolder each time, for vLLM may hold the
old files open and may answer from what it has read of a path before (vllm-project/vllm#32718). With a LoRA adapter
only the adapter is written. Whether the server's log-probs are those of the policy is checked on the first
completions; after that, ``Backend.score`` measures it on every step.
"""

from __future__ import annotations

import logging
import shutil
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np

from steadyrl.backends.torch.folder import BASE_MODEL
from steadyrl.backends.vllm.client import VllmClient
from steadyrl.backends.vllm.settings import VllmSettings
from steadyrl.batch import make_batch
from steadyrl.counting.count import tell
from steadyrl.errors import AccessError, EngineError
from steadyrl.protocols import Tokenizer
from steadyrl.sections import ModelSection
from steadyrl.types import Batch, Completion, Group, Problem, Rollout, Sampling, TokenScores

log = logging.getLogger(__name__)

PARITY_ROWS = 8  # completions whose log-probs are compared at first
ROUNDING = 1e-3  # nats: the greatest difference that float32 on both sides leaves
OTHER_PRECISION = 0.05  # nats: a mean difference beyond it is no rounding, not even bfloat16's
SOLVED = 0.1  # share of a difference that is left where a reason explains it


class Policy(Protocol):
    """What the engine needs of the backend whose policy it serves."""

    @property
    def tokenizer(self) -> Tokenizer:
        """Encodes prompts, and names the end tokens."""

    def save_policy(self, folder: Path) -> None:
        """Write the weights, or the adapter, in Hugging Face layout into an existing folder."""

    def score(self, batch: Batch, sampling: Sampling, needs: frozenset[str]) -> TokenScores:
        """See Backend."""


class VllmEngine:
    """A server, and how old its weights are.

    Attributes:
        stale: True when the policy has changed since the server was given its weights; set by the backend.
    """

    def __init__(self, settings: VllmSettings, model: ModelSection):
        self._settings, self._adapter = settings, model.lora_rank > 0
        self._client = VllmClient(settings.url, settings.timeout_s, start_command(model))
        self._base = self._model = self._served_model()
        # Several runs may share folder and server: names are never used twice.
        self._run, self._pushes = uuid.uuid4().hex[:8], 0
        self._served: Path | None = None
        self.stale, self._compared = True, False

    def generate(
        self, policy: Policy, prompts: Sequence[np.ndarray], sampling: Sampling, seeds: Sequence[int]
    ) -> list[Completion]:
        """Sample one completion per prompt; equal seeds give equal tokens as far as the server's batches allow.

        Raises:
            EngineError: The server does not answer, or not with what is needed.
            AccessError: The weights cannot be written.
        """
        if self.stale:
            self._push(policy)
        completions = self._draw(prompts, sampling, seeds, policy.tokenizer.end_ids)
        if not self._compared and not sampling.truncates:  # the one token that greedy sampling keeps tells nothing
            self._compare(policy, prompts, completions, sampling)
            self._compared = True
        return completions

    def _served_model(self) -> str:
        names, wanted = self._client.served_models(), self._settings.model
        if wanted and wanted not in names:
            raise EngineError(
                f"sampler.args.model = '{wanted}' is not served at {self._client.url}; expected one of: "
                f"{', '.join(names)}"
            )
        return wanted or names[0]

    def _draw(
        self, prompts: Sequence[np.ndarray], sampling: Sampling, seeds: Sequence[int], end_ids: Sequence[int]
    ) -> list[Completion]:
        """Ask for every row with its own seed; the server reads a prompt that it has cached only once."""
        pool = ThreadPoolExecutor(min(self._settings.requests, max(1, len(prompts))))
        try:
            rows = [
                pool.submit(self._client.complete, self._model, prompt, sampling, seed, end_ids)
                for prompt, seed in zip(prompts, seeds, strict=True)
            ]
            for done, _ in enumerate(as_completed(rows), start=1):
                tell("completions", done, len(rows))
            return [row.result() for row in rows]
        finally:
            pool.shutdown(cancel_futures=True)  # after a failure nothing else is asked

    def _push(self, policy: Policy) -> None:
        """Write the weights and make the server take them over; the folder before is removed."""
        self._pushes += 1
        folder = Path(self._settings.folder).resolve() / f"{self._run}-{self._pushes:06d}"
        try:
            folder.mkdir(parents=True)
            policy.save_policy(folder)
        except OSError as error:
            raise AccessError(f"cannot write the weights for the server into '{folder}': {error}") from error
        if self._adapter:
            self._push_adapter(folder)
        else:
            self._client.reload(str(folder))
        if self._served is not None:
            shutil.rmtree(self._served)
        self._served, self.stale = folder, False

    def _push_adapter(self, folder: Path) -> None:
        name = f"steadyrl-{folder.name}"
        if self._model != self._base:  # first, for a server may have room for one adapter only
            self._client.unload_adapter(self._model)
            self._model = self._base
        self._client.load_adapter(name, str(folder))
        self._model = name

    def _compare(
        self, policy: Policy, prompts: Sequence[np.ndarray], completions: Sequence[Completion], sampling: Sampling
    ) -> None:
        """Compare the server's log-probs with the policy's on some rows, and say what is found."""
        at = np.linspace(0, len(prompts) - 1, min(len(prompts), PARITY_ROWS)).astype(int)
        batch = _batch([(prompts[i], completions[i]) for i in at], policy.tokenizer)
        gap = _gap(policy, batch, sampling)
        found = f"log-probs of the vLLM server and of the trainer differ by {gap.mean():.2g} nats on average"
        if gap.max() <= ROUNDING:
            log.info("%s (%d tokens)", found, len(gap))
            return
        raw = _gap(policy, batch, replace(sampling, logprobs="raw"))
        log.warning(
            "%s (at most %.2g, %d tokens): %s; where they differ, the trainer's are used (see the metric sampler_gap)",
            found, gap.max(), len(gap), _cause(gap, raw),
        )  # fmt: skip


def start_command(model: ModelSection) -> str:
    """Return how to start a server for a model."""
    serve = f"vllm serve {BASE_MODEL if model.path == 'base' else model.path} --logprobs-mode processed_logprobs"
    if model.lora_rank:
        return f"VLLM_ALLOW_RUNTIME_LORA_UPDATING=True {serve} --enable-lora --max-lora-rank {model.lora_rank}"
    return f"VLLM_SERVER_DEV_MODE=1 {serve}"


def _batch(rows: Sequence[tuple[np.ndarray, Completion]], tokenizer: Tokenizer) -> Batch:
    rollouts = [
        Rollout("", prompt, c.ids, np.ones(len(c.ids), bool), c.logprobs, "", c.stop_reason, reward=0.0)
        for prompt, c in rows
    ]
    return make_batch([Group(Problem("", ""), tuple(rollouts))], tokenizer.pad_id)


def _gap(policy: Policy, batch: Batch, sampling: Sampling) -> np.ndarray:
    """Return |policy - server| of the completion tokens, [N]."""
    own = policy.score(batch, sampling, frozenset()).logprobs
    found: np.ndarray = np.abs(own - batch.sampling_logprobs)[batch.completion_mask]
    return found


def _cause(gap: np.ndarray, raw: np.ndarray) -> str:
    if raw.mean() <= SOLVED * gap.mean():
        return (
            "the server reports log-probs from before the temperature; start it with --logprobs-mode processed_logprobs"
        )
    if gap.mean() <= OTHER_PRECISION:
        return "as another precision does; --dtype float32 on the server and backend.precision = 'fp32' remove it"
    return (
        "the server has other weights (it was started on another model, or has not taken the new ones over) or "
        "changes the logits (a penalty, a quantization)"
    )
