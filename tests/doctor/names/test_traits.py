import numpy as np
import pytest

from steadyrl.doctor.names.identify import identify
from steadyrl.doctor.names.traits import traits
from steadyrl.doctor.series import Column, RawLog, Traits


def run_of(columns, settings=None, format="jsonl", steps=(1, 2, 3)):
    at = np.array(steps, np.int64)
    found = {name: Column(at, np.full(len(at), 0.5)) for name in columns.split()}
    return identify(RawLog("made", format, found, settings or {}))


def test_an_algorithm_says_whether_it_has_a_critic_and_groups():
    assert traits("ppo", {"kl_place": "reward"}, ()) == Traits(critic=True, grouped=False, kl_place="reward")
    assert traits("grpo", {"kl_place": "loss"}, ()) == Traits(critic=False, grouped=True, kl_place="loss")
    assert traits("reinforce", {}, ()) == Traits(critic=False, grouped=False)
    assert traits("raft", {}, ()).trains_on == "best"
    assert traits("sft", {}, ()) == Traits(critic=False, grouped=False, kl_place="none", trains_on="given")


def test_what_is_logged_tells_where_no_algorithm_is_named():
    assert traits("", {}, {"reward"}) == Traits()
    assert traits("", {}, {"loss_value"}) == Traits(critic=True)
    assert traits("", {}, {"no_signal"}) == Traits(grouped=True)


def test_traits_come_with_the_run():
    assert run_of("reward reward_std completions/mean_length kl").traits == Traits(False, True, "loss")
    verl = run_of("actor/pg_loss critic/vf_loss actor/reward_kl_penalty", format="verl_file")
    assert verl.traits == Traits(True, False, "reward")
    assert run_of("reward value_loss").traits.critic is True


TRL = "reward reward_std completions/mean_length kl"


@pytest.mark.parametrize(
    ("settings", "steps", "expected"),
    [
        ({"logging_steps": 5}, (5, 10, 15), 5),
        ({"logging_steps": 0.1}, (8, 16, 24, 32), 8),  # a share of the steps: their distance tells
        ({}, (10, 20, 30, 40, 41), 10),
        ({}, (1, 2, 3, 4), 1),
        ({}, (3, 10), 1),
        ({}, (7,), 1),
    ],
)
def test_rows_of_hugging_face_say_how_many_steps_they_average(settings, steps, expected):
    assert run_of(TRL, settings, steps=steps).averaged_over == expected


def test_a_row_of_verl_is_one_step_however_far_rows_are_apart():
    assert run_of("actor/pg_loss actor/ppo_kl", format="verl_file", steps=(10, 20, 30, 40)).averaged_over == 1
