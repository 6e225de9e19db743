"""The settings of the backend ``torch``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from steadyrl.backends.settings import GradientSettings


class TorchSettings(GradientSettings):
    """What PyTorch can keep smaller, beside the settings of every backend with gradients (see scaling.md)."""

    free_on_resume = GradientSettings.free_on_resume | {"reference", "activation_offload"}  # rounding at most

    reference: Literal["device", "cpu"] = Field("device")
    """Where the reference's weights are kept while nothing is scored, if all weights are trained. 'cpu' copies them to
    the device for each scoring, and so saves the memory of one model there."""
    optimizer_bits: Literal[32, 8] = Field(32)
    """Bits of each of Adam's two moments per trained weight. 8 needs the extra 'quantized' and rounds them in blocks of
    256."""
    quantize: Literal["none", "nf4"] = Field("none")
    """'nf4' keeps the base model's matrices under an adapter in 4 bits (QLoRA). It needs the extra 'quantized' and
    model.lora_rank."""
    activation_offload: bool = Field(False)
    """With gradient_checkpointing, keep each layer's input in the memory of the machine from the forward to the
    backward pass. The memory of the device then hardly grows with the number of layers."""
    deterministic: bool = Field(False)
    """Compute the same numbers in every run of one seed on a CUDA device, and after a resume. It takes slower kernels.
    On a CPU every run is deterministic."""

    @model_validator(mode="after")
    def _offloads_what_is_stored(self) -> TorchSettings:
        if self.activation_offload and not self.gradient_checkpointing:
            raise ValueError("gradient_checkpointing = true beside activation_offload = true, which moves its inputs")
        return self
