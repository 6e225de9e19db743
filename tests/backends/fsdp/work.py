"""What rank 0 does in the tests of several ranks; functions of a module, which other processes can find."""

import json
import os
import signal
import threading
import time
from dataclasses import replace

from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from steadyrl.backends.fsdp import ranks
from steadyrl.core import config
from steadyrl.core.metrics import repeatable
from steadyrl.core.protocols import Update
from steadyrl.core.rundir import RunDir
from steadyrl.core.types import Problem, Sampling
from steadyrl.loop.rollout.collect import collect
from steadyrl.loop.train import open_session, train
from steadyrl.maths.batch import make_batch
from tests.backends.torch.elsewhere import Standin


def trained(settings, folder, *overrides):
    """Train, or go on, in a folder; return the metrics of all steps but times, and all completions."""
    folder.mkdir(exist_ok=True)
    run = RunDir(folder)
    train(open_session(config.resolve(settings, overrides)), run)
    metrics = [repeatable(line) for line in run.metrics()]
    lines = [line for file in sorted(run.rollouts_file(0).parent.iterdir()) for line in file.read_text().splitlines()]
    return metrics, [json.loads(line)["completion"] for line in lines]


def meet_nobody():
    """Wait for a rank that was never started."""
    os.environ["WORLD_SIZE"] = "2"
    ranks._START_S = 0.5
    ranks.joined().meet()


def meet_one_that_torchrun_misses():
    """Be ended, as by torchrun, while rank 1 has not come."""
    os.environ["WORLD_SIZE"] = "2"
    ranks._ANSWER_S = 0.5
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGTERM)).start()
    ranks.joined().meet()


def be_ended(others_live):
    """Be ended, as by torchrun, between two phases; rank 1 has left before, or is still there."""
    ranks._ANSWER_S = 1.0
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's jobs in the background ignore it
    together = ranks.joined()
    together.meet()
    if not others_live:
        together.broadcast(None)
        time.sleep(0.5)
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        return "interrupted"


def graph_of_scoring(settings):
    """Score rollouts of a run with one update a step; return whether a graph is kept, which no update would use."""
    session = open_session(config.resolve(settings, ["update.epochs=1", "update.minibatches=1"]))
    groups = collect(session.backend, [Problem("a", "the")], 2, Sampling(max_new_tokens=4), (0, 0))
    groups = [replace(g, rollouts=tuple(replace(r, reward=0.0) for r in g.rollouts)) for g in groups]
    batch = make_batch(groups, session.backend.tokenizer.pad_id)
    session.backend.score(batch, Sampling(max_new_tokens=4), session.algorithm.needs)
    return session.backend._worker.backend._scored is not None


def lose_a_rank(settings):
    """Make an update in which rank 1 is killed."""
    ranks._ANSWER_S = 1.0
    update(settings, deadly)


def lack_memory(settings):
    """Make an update for which there is no memory."""
    update(settings, without_memory)


def export(settings, folder):
    """Make an update and a checkpoint; return tokens of four rollouts, where completions lie, and their log-probs."""
    return update(settings, after=lambda backend: backend.save(folder))


def update(settings, loss=None, after=None):
    """Make one update on four rollouts; return tokens, mask and the log-probs that they have ``after`` it."""
    session = open_session(config.resolve(settings))
    backend, algorithm, sampling = session.backend, session.algorithm, Sampling(max_new_tokens=4)
    groups = collect(backend, [Problem("a", "the"), Problem("b", "one dog")], 2, sampling, (0, 0))
    groups = [replace(g, rollouts=tuple(replace(r, reward=float(i)) for i, r in enumerate(g.rollouts))) for g in groups]
    batch = make_batch(groups, backend.tokenizer.pad_id)
    batch = algorithm.prepare(replace(batch, old=backend.score(batch, sampling, algorithm.needs)), algorithm.state)
    backend.step(batch, Update(loss or algorithm.loss, sampling, algorithm.needs, 1e-2, 1.0))
    if after is not None:
        after(backend)
        fresh = replace(batch, sampling_logprobs=batch.sampling_logprobs - 1.0)  # unlike the policy's: all are scored
        return batch.tokens, batch.completion_mask, backend.score(fresh, sampling, algorithm.needs).logprobs


def deadly(xp, new, arrays, count):
    """Return no loss on rank 1."""
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    return new.logprobs.sum() / count, {}


def without_memory(xp, new, arrays, count):
    """Do as PyTorch does where memory runs out."""
    raise MemoryError


class InTF32(TorchDispatchMode):
    """Round products of float32 as TF32 does, where the switches of the process allow it, as on a GPU."""

    def __init__(self):
        super().__init__()
        self._device = Standin(tf32=True, autocast=False, any_order=False)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if DTensor in types:  # it comes again with the share of this rank
            return NotImplemented
        return self._device.compute(func, args, kwargs or {})
