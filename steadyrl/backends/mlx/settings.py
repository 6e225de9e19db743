"""The settings of the MLX backend."""

from __future__ import annotations

from pydantic import Field

from steadyrl.backends.settings import GradientSettings


class MlxSettings(GradientSettings):
    """What MLX needs beside the settings that every backend has (see backends/mlx.md)."""

    free_on_resume = GradientSettings.free_on_resume | {"memory_gib"}  # the run may go on on another machine

    memory_gib: float = Field(
        0.0,
        ge=0,
        le=4096,
        description="GiB of memory that MLX may use before it frees what it keeps for reuse and waits for running "
        "work. 0 uses MLX's own limit.",
    )
