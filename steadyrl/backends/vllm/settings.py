"""The settings of vLLM, whose servers or whose engine in this process samples."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from steadyrl.core.sections import FolderName, Section


class VllmSettings(Section):
    """vLLM, which samples the completions (see vllm.md)."""

    # The servers may have moved.
    free_on_resume = frozenset({"url", "model", "folder", "requests", "timeout_s", "sleep", "llm"})

    mode: Literal["server", "colocate"] = Field("server")
    """'server' asks running vLLM servers. 'colocate' loads vLLM in this process, beside the policy and on its GPU, and
    gives it the weights in memory. It needs the package vllm."""
    llm: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Arguments of vLLM's class LLM in mode 'colocate', such as gpu_memory_utilization, dtype and max_model_len."""
    url: str | list[str] = Field("http://localhost:8000")
    """Address of the vLLM server, or a list of addresses."""
    model: str = Field("", description="Name of the model on the server. Empty uses the model that the server serves.")
    folder: FolderName = Field("runs/served")
    """Folder to which new weights are written. The servers must be able to read the same path."""
    requests: int = Field(64, ge=1, le=1024)
    """Maximum number of completions requested of a server at the same time."""
    timeout_s: float = Field(600.0, gt=0, le=86400, description="Seconds to wait for one completion.")

    sleep: bool = Field(False)
    """Make the servers free their GPU memory while the policy trains, for a GPU that both share. They need
    --enable-sleep-mode. In mode 'colocate' vLLM always does, where its platform can."""

    def urls(self) -> list[str]:
        """Return the addresses of all servers."""
        return [self.url] if isinstance(self.url, str) else list(self.url)
