"""vLLM's HTTP API, as far as training needs it: completions of token ids, and taking over new weights.

What is sent and read follows vLLM's sources and documents, and was run against vLLM 0.32.0:

- completions: vllm/entrypoints/openai/completion/protocol.py and serving.py at 002032ee and 030ea52e (``prompt`` as
  ids, ``seed`` within int64, ``logprobs: 0`` for the sampled token alone, ``return_token_ids``, for which see
  blog.vllm.ai/2025/10/22/agent-lightning.html). Every sampling value is sent, since what is left out is taken from
  the model's generation config; ``ignore_eos`` with the tokenizer's end token as ``stop_token_ids`` keeps that
  config's further end tokens out.
- weights: POST /collective_rpc of vllm/entrypoints/serve/dev/rpc/api_router.py at cd20a578, with the method
  ``reload_weights`` and its ``weights_path`` as in vllm-project/vllm#48284; POST /reset_prefix_cache of
  dev/cache/api_router.py at b35f7c2b, since cached prompts outlive a reload. Both need VLLM_SERVER_DEV_MODE=1, as does
  /server_info of dev/server_info/api_router.py in 0.32.0.
- versions: POST /update_weight_version and GET /weight_info of vllm/entrypoints/rl/online/api_router.py in 0.32.0. A
  server that was started again calls its weights "default". POST /weight_checker there tells their names.
- adapters: POST /v1/load_lora_adapter and /v1/unload_lora_adapter of vllm/entrypoints/serve/lora/api_router.py at
  27873cab. Every version has a name of its own: a name used again may meet prompts cached under the adapter that bore
  it before (vllm-project/vllm#42125). They need VLLM_ALLOW_RUNTIME_LORA_UPDATING=True.
- sleep: POST /sleep and /wake_up of dev/sleep/api_router.py in 0.32.0. They need --enable-sleep-mode.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from steadyrl.backends.vllm.http import Absent, Http, short
from steadyrl.core.errors import EngineError
from steadyrl.core.types import Completion, Sampling

_SEEDS = 2**63  # vLLM's seeds are signed
DRAWING, WEIGHTS, CONNECTING = "it draws a completion", "it takes over weights", "its models are asked for"
_DIED = (
    "its log says why; where that is 'CPU Generator does not use offset', start it with a larger "
    "--max-num-batched-tokens"
)
DEV_MODE = "start the server with VLLM_SERVER_DEV_MODE=1"


class VllmClient:
    """One server; methods may be called from several threads."""

    def __init__(self, url: str, timeout_s: float, start_command: str):
        self.http = Http(url, timeout_s, start_command)
        self._start_command = start_command
        self.url = self.http.url

    def served_models(self) -> list[str]:
        """Return the names of the models (not of adapters) that the server knows, at least one."""
        answer = self.http.json("/v1/models", None, CONNECTING)
        try:
            names = [str(model["id"]) for model in answer["data"] if not model.get("parent")]
        except (KeyError, TypeError, AttributeError) as error:
            raise EngineError(
                f"{self.url}/v1/models answers {short(answer)}; expected vLLM's list of models"
            ) from error
        if not names:
            raise EngineError(f"the server at {self.url} serves no model; start it with `{self._start_command}`")
        return names

    def complete(
        self, model: str, prompt: np.ndarray, sampling: Sampling, seed: int, end_ids: Sequence[int]
    ) -> Completion:
        """Sample one completion of a prompt [P]; each of the ``end_ids`` ends it, and is its last id then.

        Raises:
            EngineError: The server does not answer, or answers what is no completion with token ids and log-probs.
        """
        request = {"model": model, "prompt": prompt.tolist(), "return_token_ids": True}
        request |= sampling_values(sampling, seed, end_ids)
        answer = self.http.json("/v1/completions", request, DRAWING, broken=_DIED)
        try:
            choice = answer["choices"][0]
            ids, reason = choice.get("token_ids"), choice.get("finish_reason")
            logprobs = (choice.get("logprobs") or {}).get("token_logprobs")
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise EngineError(f"{self.url}/v1/completions answers {short(answer)}; expected a completion") from error
        return completion_of(f"{self.url}/v1/completions", ids, logprobs, reason, sampling, end_ids)

    def settings(self) -> dict[str, dict[str, Any]]:
        """Return the server's own settings by section, as far as it shows them."""
        try:
            answer = self.http.json("/server_info?config_format=json", None, CONNECTING)
        except Absent:
            return {}
        sections = answer.get("vllm_config") if isinstance(answer, dict) else None
        if not isinstance(sections, dict):
            return {}
        return {name: section for name, section in sections.items() if isinstance(section, dict)}

    def has_weights(self, name: str) -> bool:
        """Return whether the server's model has weights of a name, other than under a shared one."""
        try:
            answer = self.http.json("/weight_checker", {"action": "checksum"}, CONNECTING)
        except Absent:
            return False
        return isinstance(answer, dict) and any(key.endswith(name) for key in answer.get("checksums", ()))

    def reload(self, folder: str) -> None:
        """Make the server read a model folder's weights; one that cannot dies of it."""
        need = f"{DEV_MODE}, and where it sees this path"
        reload = {"method": "reload_weights", "kwargs": {"weights_path": folder}}
        self.http.ask("/collective_rpc", reload, WEIGHTS, need)

    def forget_prompts(self) -> None:
        """Make the server forget the prompts it has cached, which the old weights read."""
        self.http.ask("/reset_prefix_cache", {}, WEIGHTS, DEV_MODE)

    def name_weights(self, version: str) -> bool:
        """Give the server's weights a name; return False where it keeps none."""
        try:
            self.http.ask("/update_weight_version", {"new_version": version}, WEIGHTS)
        except Absent:
            return False
        return True

    def weights_name(self) -> str:
        """Return the name of the weights that the server has."""
        answer = self.http.json("/weight_info", None, "the name of its weights is asked for")
        return str(answer.get("weight_version")) if isinstance(answer, dict) else ""

    def load_adapter(self, name: str, folder: str) -> None:
        """Make the server read a LoRA adapter under a new name."""
        need = "start the server with VLLM_ALLOW_RUNTIME_LORA_UPDATING=True, --enable-lora and --max-lora-rank"
        self.http.ask("/v1/load_lora_adapter", {"lora_name": name, "lora_path": folder}, WEIGHTS, need)

    def unload_adapter(self, name: str) -> None:
        """Make the server forget an adapter."""
        self.http.ask("/v1/unload_lora_adapter", {"lora_name": name}, WEIGHTS)

    def sleep(self) -> None:
        """Make the server keep its weights in the host's memory and free the device's."""
        self.http.ask("/sleep?level=1", {}, "it goes to sleep", f"{DEV_MODE} and --enable-sleep-mode")

    def wake(self, memory: str) -> None:
        """Make the server take a part of the device's memory again: "weights" or "kv_cache"."""
        self.http.ask(f"/wake_up?tags={memory}", {}, "it wakes up", f"{DEV_MODE} and --enable-sleep-mode")


def sampling_values(sampling: Sampling, seed: int, end_ids: Sequence[int]) -> dict[str, Any]:
    """Return every sampling value of a completion by the names that vLLM's API and its SamplingParams share."""
    return {
        "max_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "seed": seed % _SEEDS,
        "stop_token_ids": list(end_ids),
        "ignore_eos": True,
        "logprobs": 0,
        "skip_special_tokens": False,
    }


def completion_of(
    source: str, ids: Any, logprobs: Any, reason: Any, sampling: Sampling, end_ids: Sequence[int]
) -> Completion:
    """Return a completion of vLLM.

    Raises:
        EngineError: It has no ids or log-probs, or ended otherwise.
    """
    if not isinstance(ids, list) or not ids:
        raise EngineError(
            f"{source} gives no token ids; expected 'token_ids', as vLLM returns them since autumn 2025: update the "
            "server (text cannot be turned back into the very tokens that were sampled)"
        )
    if (
        not isinstance(logprobs, list)
        or len(logprobs) != len(ids)
        or not all(isinstance(x, int | float) and math.isfinite(x) for x in logprobs)
    ):
        raise EngineError(f"{source} gives no log-prob for some of {len(ids)} tokens: {short(logprobs)}")
    ended = ids[-1] in end_ids if reason == "stop" else reason == "length" and len(ids) == sampling.max_new_tokens
    if ended:
        tokens = np.array(ids, np.int32)
        # Of one token that truncation leaves, the server need not tell which it was.
        kept_ids = tuple(tokens[t : t + 1] for t in range(len(tokens))) if sampling.top_k == 1 else None
        return Completion(tokens, np.array(logprobs, np.float32), reason, kept_ids)
    raise EngineError(
        f"{source} ended a completion after {len(ids)} tokens with '{reason}' at token {ids[-1]}; expected the "
        f"tokenizer's end token {' or '.join(map(str, end_ids))}, or {sampling.max_new_tokens} tokens: look for a "
        "larger --max-model-len, --generation-config vllm, and the same tokenizer on both sides"
    )
