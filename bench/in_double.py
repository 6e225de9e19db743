"""steadyrl in float64, for the benchmarks that ask what rounding does: python bench/in_double.py train CONFIG ...

Whatever asks for 32 bits gets 64: weights, logits, losses, gradients, Adam's moments and what ranks exchange. It is no
setting of the product, which has no use for it. Names are replaced before anything of steadyrl reads them, so that
tables by type have float64 in them too.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # as `python -m steadyrl` finds it


def widen() -> None:
    """Let float32 mean float64 in this process, once a model's files are read."""
    import transformers

    single, load = torch.float32, transformers.AutoModelForCausalLM.from_pretrained

    def in_double(*args: Any, dtype: torch.dtype, **more: Any) -> tuple[Any, Any]:
        mean(single)
        model, found = load(*args, dtype=single, **more)
        mean(torch.float64)
        return model.double(), found

    def mean(dtype: torch.dtype) -> None:
        torch.float32 = dtype
        torch.set_default_dtype(dtype)

    transformers.AutoModelForCausalLM.from_pretrained = in_double
    torch.Tensor.float = torch.Tensor.double
    torch.backends.mkldnn.is_available = lambda: False  # the decoder's own layout is of float32
    np.float32 = np.float64
    mean(torch.float64)


if __name__ == "__main__":
    widen()
    from steadyrl.cli.main import main

    main()
