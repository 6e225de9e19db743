"""The settings of the runs that are exported, and what their policies are held to."""

import numpy as np

from steadyrl.core import config
from steadyrl.core.types import Sampling
from steadyrl.loop import checkpoint
from steadyrl.loop.train import open_session
from tests import needs
from tests.rounding import NATS

BASE = {
    "run": {"steps": 3, "checkpoint_every": 1, "keep_checkpoints": 3, "preflight": "off"},
    "backend": {"device": "cpu", "threads": 1},
    "task": {"name": "prompts"},
    "rewards": {"toy_rewards:share_of_a": 1.0},
    "sampling": {"max_new_tokens": 6, "temperature": 0.8},
    "rollout": {"prompts_per_step": 4, "samples_per_prompt": 2},
    "algorithm": {"name": "grpo"},
    "update": {"learning_rate": 3e-3, "warmup_steps": 0, "minibatches": 1},
    "evaluate": {"problems": 4, "every": 1},
}
WORDS = ("red cat", "small dog", "old bird", "big blue cats", "one is new", "not green", "two or three", "the dog")


def answers(run, step):
    """Return the backend of a checkpoint, with prompts and what it answers to them."""
    session = open_session(config.resolve(run.resolved()))
    checkpoint.load(run, session.backend, step)
    prompts = [session.backend.tokenizer.encode_prompt(words) for words in WORDS[:3]]
    return prompts, session.backend.generate(prompts, Sampling(max_new_tokens=6), [1, 2, 3])


def assert_equal_logprobs(model, run, step, atol=NATS):
    """The log-probs that steadyrl sampled with are those of the loaded model."""
    torch = needs.package("torch")
    for prompt, drawn in zip(*answers(run, step), strict=True):
        ids = torch.tensor(np.concatenate([prompt, drawn.ids]).astype(np.int64))[None]
        with torch.no_grad():
            logp = torch.log_softmax(model(input_ids=ids).logits[0].float(), -1)
        found = logp[len(prompt) - 1 : -1].gather(1, ids[0, len(prompt) :, None])[:, 0].numpy()
        np.testing.assert_allclose(found, drawn.logprobs, atol=atol)
