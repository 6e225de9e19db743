"""What backend.args.fused is made of, each alone and all together, beside decoding without: tokens and time.

Each is tried in a process of its own: an assertion on the device ends whatever runs there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from agreement import CONFIG, SIZES
from models import model_folder
from part import Place, Row, environment, skipped

STAGES = ("plain", "kernels", "captures", "layers", "all")
ROWS, NEW = 64, 48
LIMIT_S = 90.0


def stages(place: Place) -> Iterator[Row]:
    """Sample the same prompts with the same seeds by each stage; how many tokens are those of the plain way."""
    if place.small:
        yield skipped("fused", "a CPU decodes without it")
        return
    expected: list[list[int]] = []
    for stage in STAGES:
        command = [sys.executable, __file__, stage, place.device]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=LIMIT_S, env=environment(), check=False
            )
            outcome = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None
            note = "" if outcome else " / ".join(done.stderr.strip().splitlines()[-6:])[-600:]
        except subprocess.TimeoutExpired:
            outcome, note = None, f"took longer than {LIMIT_S:.0f} s"
        if outcome is None:
            yield Row(f"fused, {stage}", None, ok=False, note=note)
            continue
        expected = expected or outcome["tokens"]
        pairs = [a == b for pair in zip(expected, outcome["tokens"], strict=True) for a, b in zip(*pair, strict=True)]
        yield Row(f"fused, {stage}: first call", outcome["first_s"], "s")
        yield Row(f"fused, {stage}: a token of all rows", 1e3 * outcome["token_s"], "ms")
        same = sum(pairs) / len(pairs)
        # A token that is drawn otherwise by a rounding changes all that follow it in its row.
        yield Row(f"fused, {stage}: tokens as in the plain way", same, bound=">= 0.5", ok=same >= 0.5)


def sampled(stage: str, device: str) -> dict[str, Any]:
    """Sample twice by a stage; return the tokens, and the seconds of the first call and of a token in the second."""
    from steadyrl.backends.torch import decoder, sampler
    from steadyrl.core.config import resolve
    from steadyrl.core.types import Sampling
    from steadyrl.loop.train import open_session

    path = model_folder(SIZES[device]) / "own"
    fused = f"backend.args.fused={str(stage in ('layers', 'all')).lower()}"
    overrides = [f"model.path={path}", f"backend.device={device}", "algorithm.name=grpo", fused]
    backend: Any = open_session(resolve(tomllib.loads(CONFIG), overrides)).backend

    class Staged(sampler.GraphDecoder):
        def __init__(self, plain: decoder.Decoder, lean: bool = False):
            super().__init__(plain, lean and stage in ("captures", "all"))

    sampler.GraphDecoder = Staged  # type: ignore[misc]
    if stage != "all":
        if stage != "kernels":
            decoder.kernels = lambda device: None  # type: ignore[assignment]
        if stage in ("kernels", "captures"):
            backend.parts = replace(backend.parts, fused=())
            backend._generation._parts = backend.parts
    backend.tokenizer.end_ids = ()
    prompts = [backend.tokenizer.encode_prompt(f"put item {n} into the queue") for n in range(8)] * (ROWS // 8)
    seconds = []
    for _ in range(2):
        began = time.perf_counter()
        drawn = backend.generate(prompts, Sampling(max_new_tokens=NEW), range(ROWS))
        seconds.append(time.perf_counter() - began)
    return {"tokens": [c.ids.tolist() for c in drawn], "first_s": seconds[0], "token_s": seconds[1] / NEW}


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    print(json.dumps(sampled(*sys.argv[1:])))
