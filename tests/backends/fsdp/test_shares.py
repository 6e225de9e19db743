"""Which rank works on which rows, and what is refused before anything is started."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steadyrl.algorithms import ppo
from steadyrl.backends.fsdp import plugin
from steadyrl.backends.fsdp.rows import balanced, contiguous, passes, shortest
from steadyrl.backends.fsdp.torchrun import Place, place, require_ranks
from steadyrl.core import config
from steadyrl.core.errors import ConfigError
from steadyrl.core.types import Batch

SETTINGS = {"rewards": {"length": 1.0}, "backend": {"name": "fsdp"}}


def batch_of(lengths, empty=()):
    """A batch whose rows have one completion token, but for the empty ones."""
    lengths = np.array(lengths, np.int32)
    mask = np.zeros((len(lengths), lengths.max()), bool)
    mask[np.arange(len(lengths)), lengths - 1] = True
    mask[list(empty)] = False
    zeros = np.zeros(mask.shape, np.float32)
    return Batch(zeros.astype(np.int32), lengths, mask, zeros, np.zeros(len(lengths)), np.zeros(len(lengths), np.int32))


@pytest.fixture
def started(monkeypatch):
    """Return a function that puts this process in the place of one that torchrun started."""

    def start(rank, ranks):
        for name, value in {
            "TORCHELASTIC_RUN_ID": "x", "RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": ranks
        }.items():  # fmt: skip
            monkeypatch.setenv(name, str(value))

    return start


def test_a_command_other_than_train_is_refused_on_the_other_ranks(started):
    started(1, 2)
    settings = config.resolve(SETTINGS)
    with pytest.raises(ConfigError, match="of all commands `steadyrl train` alone works on several ranks"):
        plugin.create(settings, ppo.build(ppo.Settings()))


def test_neighbours_stay_together_and_keep_their_order():
    assert [part.tolist() for part in contiguous(5, 2)] == [[0, 1, 2], [3, 4]]
    assert [part.tolist() for part in contiguous(1, 3)] == [[0], [], []]


def test_rows_are_dealt_so_that_ranks_read_about_as_many_tokens():
    parts = balanced(np.array([1, 2, 3, 4, 5, 6, 7, 8]), 2)
    assert [part.tolist() for part in parts] == [[0, 3, 4, 7], [1, 2, 5, 6]]  # 18 tokens each


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.integers(1, 6), st.integers(1, 100))
def test_every_row_is_read_once_and_every_rank_makes_as_many_passes(lengths, ranks, tokens):
    empty = [row for row in range(1, len(lengths)) if row % 4 == 0]
    made = passes(batch_of(lengths, empty), ranks, tokens)
    assert len(made) == ranks
    assert len({len(parts) for parts in made}) == 1
    rows = sorted(row for parts in made for part in parts if part is not None for row in part.tolist())
    assert rows == [row for row in range(len(lengths)) if row not in empty]


def test_a_rank_without_rows_reads_the_shortest_that_has_a_completion():
    assert shortest(batch_of([3, 1, 2], empty=[1])).tolist() == [2]
    assert passes(batch_of([3, 1, 2], empty=[1]), 3, 100)[2] == [None]


def test_a_process_that_torchrun_did_not_start_is_alone(monkeypatch, started):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert place() == Place(0, 1, 0, 1)
    started(1, 4)
    assert place() == Place(1, 4, 1, 4)


@pytest.mark.parametrize("name", ["torch", "mlx", "toy"])
def test_a_backend_for_one_process_is_refused_on_several_ranks(name, started):
    settings = config.resolve({**SETTINGS, "backend": {"name": name}})
    require_ranks(settings)
    started(0, 2)
    with pytest.raises(ConfigError, match=rf"2 processes, and backend.name = '{name}' trains in one; add backend.name"):
        require_ranks(settings)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("rollout.prompts_per_step=2", "an update has 2 rollouts for 4 ranks"),
        ("backend.device=mps", "got 'mps'; expected 'auto', 'cuda' or 'cpu'"),
        ("backend.device=cuda:1", "'cuda:1' is one GPU, and every rank has its own"),
    ],
)
def test_what_ranks_cannot_do_is_refused(override, said, started):
    started(0, 4)
    config.resolve(SETTINGS)
    with pytest.raises(ConfigError, match=said):
        config.resolve(SETTINGS, [override])


def test_a_server_as_the_sampler_is_refused_in_one_line(started):
    started(0, 4)
    with pytest.raises(ConfigError) as refused:
        config.resolve(SETTINGS, ["sampler.engine=vllm"])
    assert str(refused.value).count("sampler.engine") == 2, "what was got, and what to set"
    assert "got 'fsdp'; set sampler.engine = 'own'" in str(refused.value)
