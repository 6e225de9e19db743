import numpy as np
import pytest

from steadyrl.backends.huggingface.portable import PROBE, check_probe, make_probe, write_probe
from steadyrl.core.errors import CheckpointError


def steady(tokens):
    return -np.log1p(tokens[1:].astype(np.float64))


def test_a_model_that_computes_something_else_than_when_it_was_saved_is_refused(tmp_path):
    write_probe(tmp_path, make_probe(50, None, steady, "fp32"))
    check_probe(tmp_path, steady, "fp32")
    with pytest.raises(CheckpointError, match=r"log-probs are 0\.5 nats"):
        check_probe(tmp_path, lambda tokens: steady(tokens) + 0.5, "fp32")


def test_a_model_that_answers_differently_each_time_is_held_to_nothing(tmp_path):
    noise = np.random.default_rng(0)
    unsteady = make_probe(50, None, lambda tokens: steady(tokens) + noise.normal(size=len(tokens) - 1), "fp32")
    write_probe(tmp_path, unsteady)
    assert not (tmp_path / PROBE).exists()
    check_probe(tmp_path, steady, "fp32")
