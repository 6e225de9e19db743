"""The sampler ``vllm``: completions from vLLM, from its servers or in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from steadyrl.backends.vllm.settings import VllmSettings
from steadyrl.core.config import Config
from steadyrl.core.sections import ModelSection

if TYPE_CHECKING:
    from steadyrl.backends.vllm.colocate import ColocatedEngine
    from steadyrl.backends.vllm.engine import VllmEngine

Settings = VllmSettings


def check(config: Config, settings: VllmSettings) -> list[str]:
    """Return what is wrong with a config that samples from vLLM."""
    sampling, problems = config.sampling, []
    urls = settings.urls()
    if not urls or len(set(urls)) < len(urls):
        problems.append(f"sampler.args.url: got {urls}; expected at least one address, and each once")
    problems += [
        f"sampler.args.url: got '{url}'; expected an address such as http://localhost:8000"
        for url in urls
        if not _is_address(url)
    ]
    if settings.llm and settings.mode != "colocate":
        problems.append(
            "sampler.args.llm has no effect with sampler.args.mode = 'server'; give a server's settings to "
            "`vllm serve`, or set sampler.args.mode = 'colocate'"
        )
    if sampling.top_p < 1 or sampling.top_k > 0:
        problems.append(
            f"sampling.top_p = {sampling.top_p:g}, top_k = {sampling.top_k}: vLLM does not report which tokens "
            "truncation left, over which log-probs are normalised; set top_p = 1 and top_k = 0, or "
            "sampler.engine = 'own'"
        )
    if sampling.stop:
        problems.append("sampling.stop ends completions of sampler.engine = 'own' only; set one or the other")
    if sampling.logprobs == "raw":
        problems.append("sampling.logprobs = 'raw' is measured by sampler.engine = 'own' only; set one or the other")
    return problems


def _is_address(url: str) -> bool:
    try:
        address = urlsplit(url)
        return address.scheme in {"http", "https"} and bool(address.hostname) and address.port != 0  # no port is None
    except ValueError:  # a port that is no number, half of an IPv6 address
        return False


def build(settings: VllmSettings, model: ModelSection) -> VllmEngine | ColocatedEngine:
    """Connect to the servers, or load vLLM in this process.

    Raises:
        EngineError: No server answers, one of them serves another model, or vLLM cannot be loaded.
    """
    if settings.mode == "colocate":
        from steadyrl.backends.vllm.colocate import ColocatedEngine

        return ColocatedEngine(settings, model)
    from steadyrl.backends.vllm.engine import VllmEngine  # needs torch, which reading a config does not

    return VllmEngine(settings, model)
