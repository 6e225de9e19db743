"""What rank 0 does in the tests of several ranks; functions of a module, which other processes can find."""

import json
import os
import signal
from dataclasses import replace

from steadyrl import config
from steadyrl.batch import make_batch
from steadyrl.rollout.collect import collect
from steadyrl.rundir import RunDir
from steadyrl.train import open_session, train
from steadyrl.types import Problem, Sampling


def trained(settings, folder, *overrides):
    """Train, or go on, in a folder; return the metrics of all steps but times, and all completions."""
    folder.mkdir(exist_ok=True)
    run = RunDir(folder)
    train(open_session(config.resolve(settings, overrides)), run)
    metrics = [
        {name: value for name, value in line.items() if not name.startswith(("time", "tokens/per", "attempt"))}
        for line in run.metrics()
    ]
    lines = [line for file in sorted(run.rollouts_file(0).parent.iterdir()) for line in file.read_text().splitlines()]
    return metrics, [json.loads(line)["completion"] for line in lines]


def lose_a_rank(settings):
    """Make an update in which rank 1 is killed."""
    update(settings, deadly)


def lack_memory(settings):
    """Make an update for which there is no memory."""
    update(settings, without_memory)


def update(settings, loss):
    """Make one update on four rollouts."""
    session = open_session(config.resolve(settings))
    backend, algorithm, sampling = session.backend, session.algorithm, Sampling(max_new_tokens=4)
    groups = collect(backend, [Problem("a", "the"), Problem("b", "one dog")], 2, sampling, (0, 0))
    groups = [replace(g, rollouts=tuple(replace(r, reward=float(i)) for i, r in enumerate(g.rollouts))) for g in groups]
    batch = make_batch(groups, backend.tokenizer.pad_id)
    batch = algorithm.prepare(replace(batch, old=backend.score(batch, sampling, algorithm.needs)), algorithm.state)
    backend.step(batch, loss, sampling, algorithm.needs, 1e-3, 1.0)


def deadly(xp, new, arrays, count):
    """Return no loss on rank 1."""
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    return new.logprobs.sum() / count, {}


def without_memory(xp, new, arrays, count):
    """Do as PyTorch does where memory runs out."""
    raise MemoryError
