"""Completions from running vLLM servers, which are given the policy's weights whenever they have changed.

Weights go by NCCL to servers that take them so. Otherwise the servers and this process share a folder: weights are
written into a new subfolder each time. With a LoRA adapter only the adapter is written. Whether a server's log-probs
are those of the policy is checked after every push; between pushes, ``Backend.score`` measures it on every step.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Lock

import numpy as np
import torch

from steadyrl.backends.huggingface.folder import BASE_MODEL
from steadyrl.backends.vllm import parity, untied
from steadyrl.backends.vllm.http import ServerDown
from steadyrl.backends.vllm.parity import Policy
from steadyrl.backends.vllm.servers import Server, Servers
from steadyrl.backends.vllm.settings import VllmSettings
from steadyrl.backends.vllm.transfer import NcclTransfer
from steadyrl.backends.vllm.written import WrittenPolicies
from steadyrl.core.errors import EngineError
from steadyrl.core.sections import ModelSection
from steadyrl.core.types import Completion, Sampling

log = logging.getLogger(__name__)

PARITY_TOKENS = 16  # of each, where nothing else is asked of the servers


class VllmEngine:
    """The servers, and how old their weights are.

    Attributes:
        stale: True when the policy has changed since the servers were given its weights; set by the backend.
    """

    def __init__(self, settings: VllmSettings, model: ModelSection):
        self._settings, self._adapter = settings, model.lora_rank > 0
        self._servers = Servers(settings, start_command(model))
        self._written = WrittenPolicies(settings.folder)
        self._nccl_lock = Lock()
        self.stale, self._compared, self._asleep, self._apart = True, False, False, False
        self._parity_request: tuple[Sequence[np.ndarray], Sampling, Sequence[int]] | None = None
        self.rest()  # before this process loads the model beside them

    def rest(self) -> None:
        """Make the servers free the device's memory where they share it with this process; it trains now.

        Raises:
            EngineError: One of them cannot.
        """
        if self._settings.sleep and not self._asleep:
            try:
                self._servers.for_each(lambda server: server.client.sleep())
            finally:
                self._servers.close()
            self._asleep = True

    @contextmanager
    def apart(self, policy: Policy) -> Iterator[bool]:
        """See Detached.

        The servers are compared on the beginnings of a few completions, before the policy changes. It gives False where
        the servers share the device's memory with this process, and in a process that has not asked for any completions
        yet: there is nothing to compare.
        """
        if self._parity_request is not None and not self._settings.sleep:
            if self.stale:
                self.generate(policy, *self._parity_request)
            self._apart = True
        try:
            yield self._apart
        finally:
            self._apart = False

    def generate(
        self, policy: Policy, prompts: Sequence[np.ndarray], sampling: Sampling, seeds: Sequence[int]
    ) -> list[Completion]:
        """Sample one completion per prompt; equal seeds give equal tokens as far as the servers' batches allow.

        Raises:
            EngineError: No server answers, or one of them not with what is needed.
            AccessError: The weights cannot be written.
        """
        end_ids = policy.tokenizer.end_ids

        def draw_row(server: Server, row: int) -> Completion:
            return server.client.complete(server.model, prompts[row], sampling, seeds[row], end_ids)

        try:
            if not self._apart:
                self._make_ready(policy)
            tokens = max(map(len, prompts), default=0) + sampling.max_new_tokens
            draws = self._servers.draw(len(prompts), tokens, draw_row)
            self._servers.for_each(_require_our_weights)
        finally:
            self._servers.close()
        if not sampling.truncates and not self._apart:  # the one token that greedy sampling keeps tells nothing
            parity_sampling = replace(sampling, max_new_tokens=min(PARITY_TOKENS, sampling.max_new_tokens))
            if self._parity_request is None:
                self._parity_request = prompts[: parity.ROWS], parity_sampling, seeds[: parity.ROWS]
            if not self._compared:  # once after each push
                self._compare(policy, prompts, draws, sampling)
        return [completion for completion, _ in draws]

    def _make_ready(self, policy: Policy) -> None:
        """Wake the servers, and give them the weights if these have changed: what they would be loaded into first."""
        if self._asleep:
            torch.cuda.empty_cache()  # what this process holds and does not use; nothing without a GPU
            self._servers.for_each(lambda server: server.client.wake("weights"))
        if self.stale:
            self._push(policy)
        if self._asleep:
            self._servers.for_each(lambda server: server.client.wake("kv_cache"))
            self._asleep = False

    def _compare(
        self,
        policy: Policy,
        prompts: Sequence[np.ndarray],
        draws: Sequence[tuple[Completion, Server]],
        sampling: Sampling,
    ) -> None:
        """Compare the log-probs of every server with the policy's, and leave out those that keep other weights."""
        self._compared = True
        for server in self._servers.active():
            pairs = zip(prompts, draws, strict=True)
            rows = [(prompt, completion) for prompt, (completion, source) in pairs if source is server]
            name = f"the vLLM server at {server.client.url}"
            if rows and not parity.compare(policy, rows, sampling, server.gaps, name):
                server.excluded_for_good = True
                self._servers.leave_out(server, ServerDown(parity.not_taken_over(name, server.gaps)))

    def _push(self, policy: Policy) -> None:
        self._servers.ask_again()
        name, start_time = self._written.next_name(), time.perf_counter()
        uses_nccl = not self._adapter and policy.device.type == "cuda"
        folder = None
        if not (uses_nccl and all(server.nccl for server in self._servers.active())):
            folder = self._written.write(policy, name, self._add_head)
        write_end = time.perf_counter()

        def push_to(server: Server) -> None:
            if folder is None or (uses_nccl and server.nccl):
                server.excluded_for_good = (
                    True  # unless the transfer succeeds: a group that failed cannot be used again
                )
                with self._nccl_lock:  # two groups at a time on one GPU may wait for each other
                    if server.transfer is None:
                        http = server.client.http.without_retries()
                        server.transfer = NcclTransfer(http, policy.model, self._settings.timeout_s)
                    server.transfer.send()
                server.excluded_for_good = False
            elif self._adapter:
                if server.model != server.base:  # first, for a server may have room for one adapter only
                    server.client.unload_adapter(server.model)
                    server.model = server.base
                server.client.load_adapter(f"steadyrl-{name}", str(folder))
                server.model = f"steadyrl-{name}"
            else:
                server.client.reload(str(folder))
            if not self._adapter:
                server.client.forget_prompts()
                server.version = name if server.client.name_weights(name) else ""

        self._servers.for_each(push_to)
        self._written.set_newest(folder)
        self.stale, self._compared = False, False
        log.info(
            "push %d: weights written in %.2f s, taken over in %.2f s",
            self._written.count, write_end - start_time, time.perf_counter() - write_end,
        )  # fmt: skip

    def _add_head(self, folder: Path) -> None:
        """Write a head of its own for servers on a CPU, which do not take a shared one over."""
        if self._adapter or not untied.is_tied(folder):
            return
        for server in self._servers.active():
            if server.own_head is False:
                raise EngineError(
                    f"the vLLM server at {server.client.url} computes on a CPU and would keep the head of the weights "
                    "that it was started with, for it is shared with the embedding; start it on a copy made by "
                    "`python -m steadyrl.backends.vllm.untied MODEL COPY`"
                )
        if any(server.own_head for server in self._servers.active()):
            untied.add_head(folder)


def start_command(model: ModelSection) -> str:
    """Return how to start a server for a model."""
    serve = f"vllm serve {BASE_MODEL if model.path == 'base' else model.path} --logprobs-mode processed_logprobs"
    if model.lora_rank:
        return f"VLLM_ALLOW_RUNTIME_LORA_UPDATING=True {serve} --enable-lora --max-lora-rank {model.lora_rank}"
    return f"VLLM_SERVER_DEV_MODE=1 {serve}"


def _require_our_weights(server: Server) -> None:
    """Refuse completions of other weights than the server was given: it was started again, or serves two runs."""
    if server.version and (served_name := server.client.weights_name()) != server.version:
        raise ServerDown(
            f"the vLLM server at {server.client.url} has the weights '{served_name}'; expected '{server.version}', "
            "which it was given: it was started again meanwhile, or another run gives it weights; let one run use it, "
            "and resume"
        )
