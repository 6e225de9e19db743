"""vLLM's HTTP API, as far as training needs it: completions of token ids, and taking over new weights.

What is sent and read follows vLLM's sources and documents:

- completions: vllm/entrypoints/openai/completion/protocol.py and serving.py at 002032ee and 030ea52e (``prompt`` as
  ids, ``seed`` within int64, ``logprobs: 0`` for the sampled token alone, ``return_token_ids``, for which see
  blog.vllm.ai/2025/10/22/agent-lightning.html). Every sampling value is sent, since what is left out is taken from
  the model's generation config; ``ignore_eos`` with the tokenizer's end token as ``stop_token_ids`` keeps that
  config's further end tokens out.
- weights: POST /collective_rpc of vllm/entrypoints/serve/dev/rpc/api_router.py at cd20a578, with the method
  ``reload_weights`` and its ``weights_path`` as in vllm-project/vllm#48284; POST /reset_prefix_cache of
  dev/cache/api_router.py at b35f7c2b, since cached prompts outlive a reload. Both need VLLM_SERVER_DEV_MODE=1.
- adapters: POST /v1/load_lora_adapter and /v1/unload_lora_adapter of vllm/entrypoints/serve/lora/api_router.py at
  27873cab. Every version has a name of its own: a name used again may meet prompts cached under the adapter that bore
  it before (vllm-project/vllm#42125). They need VLLM_ALLOW_RUNTIME_LORA_UPDATING=True.
"""

from __future__ import annotations

import http.client
import json
import math
import os
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from steadyrl.errors import EngineError
from steadyrl.types import Completion, Sampling

ATTEMPTS, FIRST_WAIT_S = 3, 0.5  # each wait is twice the one before
_BUSY = frozenset({429, 502, 503, 504})  # answers after which the same request may succeed
_SEEDS = 2**63  # vLLM's seeds are signed
_LONGEST_MESSAGE = 300  # characters of what the server says


class VllmClient:
    """One server; methods may be called from several threads."""

    def __init__(self, url: str, timeout_s: float, start_command: str):
        self.url, self._timeout_s, self._start_command = url.rstrip("/"), timeout_s, start_command

    def served_models(self) -> list[str]:
        """Return the names of the models (not of adapters) that the server knows, at least one."""
        found = self._parsed("/v1/models", None)
        try:
            names = [str(model["id"]) for model in found["data"] if not model.get("parent")]
        except (KeyError, TypeError, AttributeError) as error:
            raise EngineError(
                f"{self.url}/v1/models answers {_short(found)}; expected vLLM's list of models"
            ) from error
        if not names:
            raise EngineError(f"the server at {self.url} serves no model; start it with `{self._start_command}`")
        return names

    def complete(
        self, model: str, prompt: np.ndarray, sampling: Sampling, seed: int, end_ids: Sequence[int]
    ) -> Completion:
        """Sample one completion.

        Args:
            model: Name of the model or adapter.
            prompt: [P] token ids.
            sampling: How to draw.
            seed: Any number >= 0.
            end_ids: Each ends the completion, and is its last id then.

        Raises:
            EngineError: The server does not answer, or answers what is no completion with token ids and log-probs.
        """
        answer = self._parsed(
            "/v1/completions",
            {
                "model": model,
                "prompt": prompt.tolist(),
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
                "return_token_ids": True,
                "skip_special_tokens": False,
            },
        )
        try:
            choice = answer["choices"][0]
            ids, reason = choice.get("token_ids"), choice.get("finish_reason")
            logprobs = (choice.get("logprobs") or {}).get("token_logprobs")
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise EngineError(f"{self.url}/v1/completions answers {_short(answer)}; expected a completion") from error
        return self._checked(ids, logprobs, reason, sampling, end_ids)

    def reload(self, folder: str) -> None:
        """Make the server read a model folder's weights, and forget the prompts it has cached."""
        need = "start the server with VLLM_SERVER_DEV_MODE=1, and where it sees this path"
        reload = {"method": "reload_weights", "kwargs": {"weights_path": folder}, "timeout": self._timeout_s}
        self._ask("/collective_rpc", reload, need)
        self._ask("/reset_prefix_cache", {}, need)

    def load_adapter(self, name: str, folder: str) -> None:
        """Make the server read a LoRA adapter under a new name."""
        need = "start the server with VLLM_ALLOW_RUNTIME_LORA_UPDATING=True, --enable-lora and --max-lora-rank"
        self._ask("/v1/load_lora_adapter", {"lora_name": name, "lora_path": folder}, need)

    def unload_adapter(self, name: str) -> None:
        """Make the server forget an adapter."""
        self._ask("/v1/unload_lora_adapter", {"lora_name": name})

    def _checked(self, ids: Any, logprobs: Any, reason: Any, sampling: Sampling, end_ids: Sequence[int]) -> Completion:
        where = f"{self.url}/v1/completions"
        if not isinstance(ids, list) or not ids:
            raise EngineError(
                f"{where} gives no token ids; expected 'token_ids', as vLLM returns them since autumn 2025: update the "
                "server (text cannot be turned back into the very tokens that were sampled)"
            )
        if not isinstance(logprobs, list) or len(logprobs) != len(ids) or not all(_finite(x) for x in logprobs):
            raise EngineError(f"{where} gives no log-prob for some of {len(ids)} tokens: {_short(logprobs)}")
        if reason == "stop" and ids[-1] in end_ids:
            return _completion(ids, logprobs, "stop", sampling)
        if reason == "length" and len(ids) == sampling.max_new_tokens:
            return _completion(ids, logprobs, "length", sampling)
        raise EngineError(
            f"{where} ended a completion after {len(ids)} tokens with '{reason}' at token {ids[-1]}; expected the "
            f"tokenizer's end token {' or '.join(map(str, end_ids))}, or {sampling.max_new_tokens} tokens: look for a "
            "larger --max-model-len, --generation-config vllm, and the same tokenizer on both sides"
        )

    def _parsed(self, path: str, body: Mapping[str, Any] | None) -> Any:
        raw = self._ask(path, body)
        try:
            return json.loads(raw)
        except ValueError as error:
            raise EngineError(
                f"{self.url}{path} answers {_short(raw)}; expected JSON: is this a vLLM server?"
            ) from error

    def _ask(self, path: str, body: Mapping[str, Any] | None, need: str = "") -> bytes:
        """Return the answer to a GET, or with a body to a POST; ``need`` is what a 404 may be for want of."""
        request = urllib.request.Request(self.url + path, None if body is None else json.dumps(body).encode())
        request.add_header("Content-Type", "application/json")
        if key := os.environ.get("VLLM_API_KEY"):
            request.add_header("Authorization", f"Bearer {key}")
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(FIRST_WAIT_S * 2 ** (attempt - 1))
            try:
                with urllib.request.urlopen(request, timeout=self._timeout_s) as answer:
                    found: bytes = answer.read()
                    return found
            except urllib.error.HTTPError as error:
                with error:
                    failure = self._refusal(path, error.code, _message(error.read()), need)
                if error.code not in _BUSY:
                    raise failure from error
            except (OSError, http.client.HTTPException) as error:
                cause = error.reason if isinstance(error, urllib.error.URLError) else error
                if isinstance(cause, TimeoutError):
                    raise EngineError(
                        f"{self.url}{path} does not answer within {self._timeout_s:g} s; raise "
                        "sampler.args.timeout_s or lower sampler.args.requests"
                    ) from error
                failure = EngineError(
                    f"no vLLM server answers at {self.url} ({cause}); start one with `{self._start_command}`, or set "
                    "sampler.engine = 'own'"
                )
        raise failure

    def _refusal(self, path: str, code: int, message: str, need: str) -> EngineError:
        hint = f"; {need}" if need else ""
        if code == 401:
            hint = "; set the environment variable VLLM_API_KEY to the server's key"
        return EngineError(f"{self.url}{path} answers {code}: {message}{hint}")


def _completion(ids: list[int], logprobs: list[float], reason: Any, sampling: Sampling) -> Completion:
    found = np.array(ids, np.int32)
    # Of one token that truncation leaves, the server need not tell which it was.
    kept = tuple(found[t : t + 1] for t in range(len(found))) if sampling.top_k == 1 else None
    return Completion(found, np.array(logprobs, np.float32), reason, kept)


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _message(raw: bytes) -> str:
    """Return what an error's body says: vLLM nests it under "error", FastAPI under "detail"."""
    text = raw.decode(errors="replace").strip()
    try:
        found = json.loads(text)
    except ValueError:
        return _short(text)
    for key in ("error", "message", "detail"):
        if isinstance(found, dict) and found.get(key):
            found = found[key]
    return _short(found)


def _short(found: object) -> str:
    text = " ".join((found if isinstance(found, str) else repr(found)).split())
    return text[:_LONGEST_MESSAGE] or "nothing"
