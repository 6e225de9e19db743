"""Completions from vLLM's engine in this process, which takes the policy's weights over in memory.

What is called follows vLLM 0.32.0: ``LLM`` of vllm/entrypoints/llm.py (``generate``, ``collective_rpc``, ``sleep``,
``wake_up``, ``reset_prefix_cache``), and ``reload_weights`` of vllm/v1/worker/gpu_model_runner.py with its
``weights_iterator``, which loads tensors as it loads a checkpoint's. With VLLM_ENABLE_V1_MULTIPROCESSING=0 engine and
worker are objects of this process, so that the iterator need not be sent anywhere. Between completions the engine
sleeps: its memory is the trainer's.
"""

from __future__ import annotations

import importlib
import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, get_args

import numpy as np
import torch

from steadyrl.backends.huggingface.folder import BASE_MODEL, READING_ERRORS
from steadyrl.backends.vllm import parity
from steadyrl.backends.vllm.client import completion_of, sampling_values
from steadyrl.backends.vllm.parity import Gaps, Policy
from steadyrl.backends.vllm.settings import VllmSettings
from steadyrl.backends.vllm.untied import HEAD
from steadyrl.backends.vllm.written import WrittenPolicies
from steadyrl.core.counting.count import tell
from steadyrl.core.errors import EngineError
from steadyrl.core.plugins import require
from steadyrl.core.sections import ModelSection
from steadyrl.core.types import Completion, Sampling

log = logging.getLogger(__name__)

OLDEST = (0, 32)  # release of vLLM that this was written for; earlier ones take weights over in other ways
MEMORY_SHARE = 0.3  # of the GPU, for vLLM's weights and cache while it samples; the policy needs the rest
NAME = "vLLM in this process"


class ColocatedEngine:
    """vLLM's engine beside the policy, and how old its weights are.

    Attributes:
        stale: True when the policy has changed since the engine was given its weights; set by the backend.
    """

    def __init__(self, settings: VllmSettings, model: ModelSection):
        """Load vLLM; where all weights train it reads none, for it gets the policy's.

        Raises:
            MissingExtraError: vLLM is not installed.
            EngineError: It is too old, does not fit what it is installed beside, or cannot load the model.
        """
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # read when the engine is made
        self._vllm = _fitting_vllm()
        self._adapter = model.lora_rank > 0
        self._sleeps = bool(require("vllm.platforms").current_platform.is_sleep_mode_available())
        self._written = WrittenPolicies(settings.folder)
        self._request: Any = None  # names the adapter that completions are drawn with
        self._gaps, self.stale, self._compared, self._asleep, self._dropped = Gaps(), True, False, False, False
        args: dict[str, Any] = {"gpu_memory_utilization": MEMORY_SHARE, "trust_remote_code": model.trust_remote_code}
        if self._adapter:
            ranks = get_args(require("vllm.config.lora").MaxLoRARanks)  # it makes room for some ranks only
            args |= {"enable_lora": True, "max_lora_rank": min((r for r in ranks if r >= model.lora_rank), default=0)}
        else:
            args["load_format"] = "dummy"  # no weight is read: it gets the policy's
        args |= {"logprobs_mode": "processed_logprobs", "enable_sleep_mode": self._sleeps, **settings.llm}
        path = str(BASE_MODEL) if model.path == "base" else model.path
        with _errors_named("it loads the model"):
            self._unties_head = not self._adapter and require("vllm.platforms").current_platform.is_cpu()
            if self._unties_head:  # on a CPU vLLM would keep the old weights of a head that is shared; see untied
                args["hf_overrides"] = {"tie_word_embeddings": False}
            self._llm = self._vllm.LLM(model=path, **args)
        self.rest()  # before this process loads the model beside it

    def rest(self) -> None:
        """Free the device's memory; this process trains now."""
        if self._sleeps and not self._asleep:
            with _errors_named("it goes to sleep"):
                # Weights that are about to be replaced are dropped; those under an adapter go to the host's memory.
                self._llm.sleep(level=1 if self._adapter else 2)
            self._asleep, self._dropped = True, not self._adapter

    def generate(
        self, policy: Policy, prompts: Sequence[np.ndarray], sampling: Sampling, seeds: Sequence[int]
    ) -> list[Completion]:
        """Sample one completion per prompt; equal seeds give equal tokens as far as vLLM's batches allow.

        Raises:
            EngineError: vLLM fails, or does not take the weights over.
            AccessError: The adapter cannot be written.
        """
        self._make_ready(policy)
        end_ids = policy.tokenizer.end_ids
        params = [self._vllm.SamplingParams(**sampling_values(sampling, seed, end_ids)) for seed in seeds]
        token_prompts = [{"prompt_token_ids": prompt.tolist()} for prompt in prompts]
        with _errors_named("it draws completions"):
            outputs = self._llm.generate(token_prompts, params, use_tqdm=False, lora_request=self._request)
        completions = []
        for output in (request.outputs[0] for request in outputs):
            ids = [int(token) for token in output.token_ids]
            logprobs = [float(top[token].logprob) for token, top in zip(ids, output.logprobs or (), strict=False)]
            completions.append(completion_of(NAME, ids, logprobs, output.finish_reason, sampling, end_ids))
        tell("completions", len(completions), len(completions))
        if not sampling.truncates and not self._compared:  # the one token that greedy sampling keeps tells nothing
            self._compared = True
            rows = list(zip(prompts, completions, strict=True))
            if rows and not parity.compare(policy, rows, sampling, self._gaps, NAME):
                raise EngineError(parity.not_taken_over(NAME, self._gaps))
        return completions

    def _make_ready(self, policy: Policy) -> None:
        """Wake the engine, and give it the weights if these have changed: what they would be loaded into first."""
        if self._asleep:
            torch.cuda.empty_cache()  # what this process holds and does not use; nothing without a GPU
            with _errors_named("it wakes up"):
                self._llm.wake_up(tags=["weights"])
        if self.stale or self._dropped:
            self._push(policy)
        if self._asleep:
            with _errors_named("it wakes up"):
                self._llm.wake_up(tags=["kv_cache"])
            self._asleep = False

    def _push(self, policy: Policy) -> None:
        name, start_time = self._written.next_name(), time.perf_counter()
        if self._adapter:
            folder = self._written.write(policy, name, lambda folder: None)
            requests = require("vllm.lora.request")
            self._request = requests.LoRARequest(f"steadyrl-{name}", self._written.count, str(folder))
            self._written.set_newest(folder)
        else:
            with _errors_named("it takes over weights"), torch.no_grad():
                self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": self._weights(policy)})
        with _errors_named("it forgets prompts"):
            self._llm.reset_prefix_cache()  # which the old weights have read
        self._compared = self._compared and not self.stale
        self.stale = self._dropped = False
        log.info("push %d: weights handed over in %.2f s", self._written.count, time.perf_counter() - start_time)

    def _weights(self, policy: Policy) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield all weights where they are, under the names of the policy's modules."""
        names = set()
        for name, weight in policy.model.named_parameters():
            names.add(name)
            yield name, weight.detach()
        if self._unties_head and HEAD not in names:
            yield HEAD, policy.model.get_output_embeddings().weight.detach()


def _fitting_vllm() -> Any:
    try:
        vllm = importlib.import_module("vllm")
        _ = vllm.LLM, vllm.SamplingParams  # which it imports now
    except READING_ERRORS as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "vllm":
            require("vllm")  # says how it is installed
        raise EngineError(
            f"vLLM is installed and cannot be imported: {_shortened(error)}; its release must fit the installed torch "
            "and transformers. Install one that does, or sample with sampler.engine = 'own'"
        ) from error
    numbers = str(vllm.__version__).split(".")[:2]
    if not all(number.isdigit() for number in numbers) or tuple(map(int, numbers)) < OLDEST:
        raise EngineError(
            f"vLLM {vllm.__version__} is installed; sampler.args.mode = 'colocate' needs "
            f"{'.'.join(map(str, OLDEST))} or newer, which takes weights over in memory: update it, or set "
            "sampler.engine = 'own'"
        )
    return vllm


@contextmanager
def _errors_named(phase: str) -> Iterator[None]:
    """Say what vLLM was doing when it fails."""
    try:
        yield
    except READING_ERRORS as error:
        raise EngineError(
            f"{NAME} fails while {phase}: {_shortened(error)}; its settings are sampler.args.llm, for example "
            "{gpu_memory_utilization = 0.3, max_model_len = 2048}"
        ) from error


def _shortened(error: BaseException) -> str:
    return (" ".join(str(error).split()) or type(error).__name__)[:300]
