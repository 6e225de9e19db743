"""The settings of the backend ``fsdp``."""

from __future__ import annotations

from pydantic import Field

from steadyrl.backends.torch.settings import TorchSettings


class FsdpSettings(TorchSettings):
    """What training on several ranks needs beside the settings of the backend ``torch``."""

    free_on_resume = TorchSettings.free_on_resume | {"cpu_offload", "timeout_s"}  # they change no number

    cpu_offload: bool = Field(False)
    """Keep each rank's share of weights, gradients and optimizer state in the memory of the machine. A layer's weights
    are copied to the GPU when it is computed."""
    timeout_s: float = Field(1800.0, gt=0, le=86_400)
    """Seconds that a rank waits for the others in one phase, such as an update or a checkpoint, before the run ends
    with an error."""
