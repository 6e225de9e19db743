"""Settings for a model and prompts that nobody chose any for: what was measured to train models of that size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from steadyrl.backends.huggingface.facts import ModelFacts

ALGORITHM = "grpo"
ADAPTER_FROM = 100_000_000  # parameters; a smaller model trains all its weights
RANK, ALPHA = 16, 32.0
# The learning rate up to so many parameters. Measured were 4e-4 at 1.8M (examples/search-grpo.toml) and 3e-4 for an
# adapter at 135M (examples/smollm2); a larger model takes less, and all weights take a tenth of an adapter's rate.
RATES = ((1e7, 4e-4), (1e8, 1e-4), (2e8, 3e-5), (3e9, 1e-5), (float("inf"), 5e-6))
ADAPTER_RATES = ((2e8, 3e-4), (3e9, 1e-4), (float("inf"), 5e-5))
PROMPTS, SAMPLES = 16, 8  # of a step
WARMUP = 3
JUDGING = 100  # held-out prompts, which are answered before and after training
# New tokens: a chat model reasons before its answer, and a model of plain text goes on until it is stopped.
CHAT_TOKENS, PLAIN_TOKENS, LEAST_TOKENS = 256, 64, 16


def defaults(chosen: Mapping[str, Any], facts: ModelFacts | None, problems: int, heldout: int) -> dict[str, Any]:
    """Return settings for what the user left open, which go below those that the user gave.

    Without ``facts`` of the model nothing is set that depends on its size.
    """
    run, model = chosen.get("run", {}), chosen.get("model", {})
    settings: dict[str, dict[str, Any]] = {
        "algorithm": {"name": ALGORITHM},
        "rollout": {"prompts_per_step": max(1, min(PROMPTS, problems)), "samples_per_prompt": SAMPLES},
        "update": {"warmup_steps": WARMUP, "schedule": "linear"},
    }
    if run.get("steps") in range(1, WARMUP + 1):  # a warm-up as long as the run never comes to the rate
        settings["update"]["warmup_steps"] = run["steps"] - 1
    if chosen.get("algorithm", {}).get("name", ALGORITHM) == ALGORITHM:
        settings["algorithm"]["args"] = {"kl_coef": 0.0, "scale": "batch"}
        settings["update"] |= {"epochs": 1, "minibatches": 1}
    if heldout > JUDGING:
        settings["evaluate"] = {"problems": JUDGING}
    if facts is not None:
        adapts = model.get("lora_rank", RANK if facts.parameters >= ADAPTER_FROM else 0) > 0
        if adapts:
            settings["model"] = {"lora_rank": RANK, "lora_alpha": ALPHA}
        rates = ADAPTER_RATES if adapts else RATES
        settings["update"]["learning_rate"] = next(rate for largest, rate in rates if facts.parameters <= largest)
        settings["sampling"] = {"max_new_tokens": answer_tokens(facts)}
    return settings


def answer_tokens(facts: ModelFacts) -> int:
    """Return how long answers may be: twice the longest good answer of the data, and a chat model's reasoning fits in.

    Half of the model's positions are left to the prompt.
    """
    usual = CHAT_TOKENS if facts.chats else PLAIN_TOKENS
    good_tokens = 2 * facts.longest_answer
    tokens = max(usual if facts.chats or not good_tokens else LEAST_TOKENS, good_tokens)
    return tokens if facts.context is None else min(tokens, facts.context // 2)
