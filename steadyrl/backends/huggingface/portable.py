"""What a model folder holds so that it means the same in PyTorch and in MLX: its positions spelled twice, and a probe.

transformers 5 writes the base of the rotary positions into ``rope_parameters`` alone. mlx-lm and older programs look
for ``rope_theta`` and ``rope_scaling``, and take a default where they are missing: the model loads, and is another.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from steadyrl.core.errors import CheckpointError

POLICY = "policy"  # the model folder in a checkpoint
PROBE = "probe.json"
REFERENCE = "reference"  # the folder in a checkpoint with the probe of the model that the run began from
_PROBED = 32  # tokens: enough for a wrong base of the positions to show, and read in no time
# Nats. Two correct programs are 1e-5 apart in float32; a wrong base of the positions, more than 0.1.
FP32_GAP = 1e-3
# The mean over the tokens where layers are computed in bfloat16: correct ones reach 0.1 on random tokens.
BF16_GAP = 0.3

Measure = Callable[[np.ndarray], np.ndarray]  # token ids [P] -> log-probs [P - 1] of all but the first


@contextmanager
def writing(library_error: type[Exception] = SafetensorError) -> Iterator[None]:
    """Raise a library's error in writing, such as of a full disk, as the OSError that it stands for."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, library_error) and type(error) is not Exception:  # tokenizers raises bare ones
            raise
        raise OSError(str(error)) from error


def check_readable(path: Path) -> None:
    """Read a file's table of arrays.

    Raises:
        CheckpointError: The file is missing, cut short or damaged.
    """
    try:
        with safe_open(path, "np"):
            return
    except (OSError, SafetensorError) as error:
        raise damaged(path, error) from error


def damaged(path: Path, error: Exception) -> CheckpointError:
    """Return what to say of a checkpoint's file that cannot be read."""
    return CheckpointError(
        f"'{path}' is missing or damaged ({error}); delete that checkpoint's folder to resume from an earlier one"
    )


def older_spelling(rope: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return ``rope_theta`` and ``rope_scaling`` as ``rope_parameters`` say; nothing where they say nothing.

    Args:
        rope: One set for all layers. What has one for each kind of layer has no older spelling.
    """
    if not rope or "rope_theta" not in rope:
        return {}
    scaling = {name: value for name, value in rope.items() if name != "rope_theta"}
    plain = scaling.get("rope_type", "default") == "default"
    return {"rope_theta": rope["rope_theta"], "rope_scaling": None if plain else scaling}


def spell_twice(folder: Path) -> None:
    """Add the older spelling to a folder's config.json; transformers reads it as before."""
    file = folder / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    config |= older_spelling(config.get("rope_parameters"))
    file.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def make_probe(vocabulary: int, context: int | None, measure: Measure, precision: str) -> dict[str, Any] | None:
    """Return what a model makes of a few tokens; its layers have the precision "fp32" or "bf16".

    A model that makes something else of them each time, such as one with dropout, can be held to nothing: it has none.
    """
    tokens = (np.arange(min(_PROBED, context or _PROBED)) * 7919 + 3) % vocabulary
    first, again = (measure(tokens.astype(np.int32)) for _ in range(2))
    if not np.abs(first - again).max() <= FP32_GAP:
        return None
    return {"tokens": tokens.tolist(), "logprobs": first.tolist(), "precision": precision}


def write_probe(folder: Path, probe: Mapping[str, Any] | None) -> None:
    """Write a probe into the folder of the model or adapter that it is of, or into a new one for the probe alone."""
    if probe is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / PROBE).write_text(json.dumps(probe), encoding="utf-8")


def check_probe(folder: Path, measure: Measure, precision: str) -> None:
    """Refuse a model that does not compute what the program that saved it computed; a folder without a probe passes.

    Raises:
        CheckpointError: The log-probs differ by more than rounding explains, or the probe is damaged.
    """
    gap, allowed = _gap(folder / PROBE, measure, precision)
    if not gap <= allowed:
        raise CheckpointError(
            f"'{folder}' was loaded, but its log-probs are {gap:.2g} nats from those that were saved with it in "
            f"{PROBE} (expected at most {allowed:g}): the weights or config.json were changed, or are read in another "
            f"way here; restore the folder, or delete {PROBE} if you changed the weights on purpose"
        )


def check_reference(folder: Path, model: str, measure: Measure, precision: str) -> None:
    """Refuse a reference that is not the one that the run began with, as ``check_probe`` refuses a policy."""
    gap, allowed = _gap(folder / REFERENCE / PROBE, measure, precision)
    if not gap <= allowed:
        raise CheckpointError(
            f"the model at model.path = '{model}' is no longer the one that the run began from: its log-probs are "
            f"{gap:.2g} nats from those in '{folder / REFERENCE / PROBE}' (expected at most {allowed:g}), and the KL "
            "would be to another reference; restore the model, or start a new run with model.path = "
            f"'{folder / POLICY}'"
        )


def _gap(file: Path, measure: Measure, precision: str) -> tuple[float, float]:
    """Return how far log-probs are from those in a file, and how far they may be; (0, 0) without a file."""
    if not file.is_file():
        return 0.0, 0.0
    try:
        probe = json.loads(file.read_text(encoding="utf-8"))
        tokens, expected = np.array(probe["tokens"], np.int32), np.array(probe["logprobs"], np.float64)
        exact = probe["precision"] == precision == "fp32"
        if tokens.ndim != 1 or expected.shape != (len(tokens) - 1,) or not np.isfinite(expected).all():
            raise ValueError("it does not hold one log-prob for each token but the first")
        gaps = np.abs(measure(tokens) - expected)
    except (OSError, ValueError, LookupError, TypeError, OverflowError) as error:
        raise CheckpointError(f"'{file}' is damaged ({error}); delete it to load the model unchecked") from error
    return (float(gaps.max()), FP32_GAP) if exact else (float(gaps.mean()), BF16_GAP)
