"""The settings of vLLM servers."""

from __future__ import annotations

from pydantic import Field

from steadyrl.core.sections import FolderText, Section


class VllmSettings(Section):
    """Running vLLM servers that sample the completions (see vllm.md)."""

    # The servers may have moved.
    free_on_resume = frozenset({"url", "model", "folder", "requests", "timeout_s", "sleep"})

    url: str | list[str] = Field(
        "http://localhost:8000", description="Address of the vLLM server, or a list of addresses."
    )
    model: str = Field("", description="Name of the model on the server. Empty uses the model that the server serves.")
    folder: FolderText = Field(
        "runs/served",
        description="Folder to which new weights are written. The servers must be able to read the same path.",
    )
    requests: int = Field(
        64, ge=1, le=1024, description="Maximum number of completions requested of a server at the same time."
    )
    timeout_s: float = Field(600.0, gt=0, le=86400, description="Seconds to wait for one completion.")

    sleep: bool = Field(
        False,
        description="Make the servers free their GPU memory while the policy trains, for a GPU that both share. They "
        "need --enable-sleep-mode.",
    )

    def urls(self) -> list[str]:
        """Return the addresses of all servers."""
        return [self.url] if isinstance(self.url, str) else list(self.url)
