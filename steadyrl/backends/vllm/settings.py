"""The settings of a vLLM server."""

from __future__ import annotations

from pydantic import Field

from steadyrl.sections import PathText, Section


class VllmSettings(Section):
    """A running vLLM server that samples the completions (see vllm.md)."""

    free_on_resume = frozenset({"url", "model", "folder", "requests", "timeout_s"})  # the server may have moved

    url: str = Field("http://localhost:8000", description="Address of the vLLM server.")
    model: str = Field("", description="Name of the model on the server. Empty uses the model that the server serves.")
    folder: PathText = Field(
        "runs/served",
        description="Folder to which new weights are written. The server must be able to read the same path.",
    )
    requests: int = Field(64, ge=1, le=1024, description="Maximum number of completions requested at the same time.")
    timeout_s: float = Field(600.0, gt=0, le=86400, description="Seconds to wait for one completion.")
