"""A study file: what it may say, and what is refused before anything runs."""

import json

import pytest

from steadyrl.core.config import load
from steadyrl.core.errors import ConfigError
from steadyrl.lab.study.plan import jobs, read_study, unnamed_rewards

HEAD = """
title = "Rates"
question = "Which rate?"
seeds = [0, 1]
[config]
task = {{name = "prompts", args = {{path = "{prompts}"}}}}
backend = {{name = "toy"}}
rewards = {{length = 1.0}}
[quick]
settings = ["run.steps=3"]
"""


@pytest.fixture
def study(tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": letter}) + "\n" for letter in "abcdef"))

    def read(body, quick=False, seeds=None):
        path = tmp_path / "study.toml"
        path.write_text(HEAD.format(prompts=prompts) + body)
        return read_study(path, quick, seeds)

    return read


ONE = '[[experiments]]\nname = "one"\ntitle = "t"\n'


def test_an_experiment_changes_its_base_in_the_named_key_alone(study):
    read = study(
        ONE
        + '[[experiments]]\nname = "two"\ntitle = "t"\nfrom = "one"\nchange = "update.epochs=5"\n'
        + '[[experiments]]\nname = "three"\ntitle = "t"\nfrom = "two"\nchange = "run.steps=7"\n'
    )
    assert read.arm("two").changed == {"update.epochs": (2, 5)}
    three = read.arm("three")
    assert three.changed == {"run.steps": (100, 7)}
    assert (three.config.update.epochs, three.config.run.steps) == (5, 7)
    assert [(job.arm, job.config.run.seed) for job in jobs(read)] == [
        *(("one", 0), ("two", 0), ("three", 0)),
        *(("one", 1), ("two", 1), ("three", 1)),
    ]


def test_every_setting_but_seed_and_folder_tells_runs_apart(study):
    read = study(ONE + '[[experiments]]\nname = "two"\ntitle = "t"\nfrom = "one"\nchange = "update.epochs=5"\n')
    keys = [job.key for job in jobs(read)]
    digests = [key.rpartition("-")[2] for key in keys]
    assert keys[0].startswith("one-s0-") and keys[3].startswith("two-s1-")
    assert digests[0] == digests[2] != digests[1] == digests[3]


def test_a_setting_at_its_default_tells_no_runs_apart(study):
    """A version with a new setting finds the runs that were made before there was one."""
    (job, _), (with_default, _) = jobs(study(ONE)), jobs(study(ONE + 'bundle = ["update.epochs=2", "run.steps=100"]\n'))
    assert job.key == with_default.key
    args = 'bundle = ["algorithm.args.gamma=1.0", "task.args.heldout_share=0.2"]\n'
    assert jobs(study(ONE + args))[0].key == job.key


def test_the_quick_version_has_its_own_seeds_settings_and_changes(study):
    body = (
        ONE
        + '[[experiments]]\nname = "two"\ntitle = "t"\nfrom = "one"\nchange = "run.steps=9"\nquick = ["run.steps=4"]\n'
    )
    quick, whole = study(body, quick=True), study(body)
    assert (quick.seeds, whole.seeds) == ((0,), (0, 1))
    assert [arm.config.run.steps for arm in quick.arms] == [3, 4]
    assert [arm.config.run.steps for arm in whole.arms] == [100, 9]


def test_a_study_may_be_run_with_some_of_its_seeds(study):
    assert (study(ONE, quick=True, seeds=2).seeds, study(ONE, seeds=1).seeds) == ((0, 1), (0,))
    with pytest.raises(ConfigError, match=r"names 2 seeds, got --seeds 3; add to 'seeds'"):
        study(ONE, seeds=3)


@pytest.mark.parametrize(
    ("body", "part"),
    [
        ('change = "task.args={}"\n', "task.args.path: is missing"),
        ('change = "update={epochs=3, minibatches=1}"\n', "stands for several settings"),
        ('change = "rewards={boolean_format=1.0}"\n', "stands for several settings"),
        ('change = "update.epochs=2"\n', "has that value already"),
        ('change = "run.seed=5"\n', "name the seeds in 'seeds'"),
        ('bundle = ["update.epochs=3", "update.minibatches=2"]\n', "update.minibatches has that value already"),
        ('change = "update.epochs=3"\nbundle = ["run.steps=2"]\n', "expected one of them"),
        ("", "expected a change"),
        ('change = "update.epohcs=3"\n', "did you mean 'epochs'"),
        ('change = "update.epochs=3"\nexpect = [{says = "s", be = "same"}]\n', "needs a margin"),
        ('change = "update.epochs=3"\nexpect = [{says = "s", be = "at least"}]\n', "give 'value'"),
        ('change = "update.epochs=3"\nexpect = [{says = "s", than = "two"}]\n', "no earlier experiment"),
        ('change = "update.epochs=3"\nexpect = [{says = "s", value = 1.0}]\n', "remove 'value'"),
    ],
)
def test_what_could_not_be_answered_is_refused(study, body, part):
    with pytest.raises(ConfigError, match="experiment 2 'two'") as caught:
        study(ONE + f'[[experiments]]\nname = "two"\ntitle = "t"\nfrom = "one"\n{body}')
    assert part in str(caught.value)


@pytest.mark.parametrize(
    ("body", "part"),
    [
        ('expect = [{says = "s", metric = "entroppy"}]\n', "experiment 'two': no run writes a metric 'entroppy'"),
        ('expect = [{says = "s", metric = "groups/best - rewards"}]\n', "no run writes a metric 'rewards'"),
        ('expect = [{says = "s", metric = "after/metric", take = "max"}]\n', "expected 'last', or 'gain'"),
        ('[[stop]]\nmetric = "after/metric"\nbelow = 1\nwhy = "w"\n', "stop: no run writes a metric 'after/metric'"),
        ('[[stop]]\nmetric = "entropy"\nwhy = "w"\n', "expected 'below' or 'above', a number"),
    ],
)
def test_what_no_run_could_answer_is_refused_before_the_first(study, body, part):
    with pytest.raises(ConfigError) as caught:
        study(ONE + f'[[experiments]]\nname = "two"\ntitle = "t"\nfrom = "one"\nchange = "run.steps=2"\n{body}')
    assert part in str(caught.value)


def test_a_study_without_seeds_is_refused(study):
    with pytest.raises(ConfigError, match=r"seeds are \[\]; expected one or more different numbers"):
        study("seeds = []\n" + ONE, quick=True)


def test_an_algorithm_of_ones_own_may_write_other_metrics(study):
    own = ONE + 'bundle = ["backend.name=steadyrl.backends.toy:ToyBackend"]\n'
    read = study(own + '[[stop]]\nmetric = "mine/only"\nbelow = 1\nwhy = "w"\n')
    assert read.file.stop[0].metric == "mine/only"


@pytest.mark.parametrize(
    ("body", "part"),
    [
        ('[[experiments]]\nname = "two"\ntitle = "t"\nfrom = "one"\nchange = "run.steps=2"\n', "there are: none yet"),
        (ONE + ONE, "the name is taken"),
        ('[[experiments]]\nname = "../x"\ntitle = "t"\n', "lower-case letters"),
        ('[[experiments]]\ntitle = "t"\n', "is missing"),
    ],
)
def test_names_are_unique_and_lead_back(study, body, part):
    with pytest.raises(ConfigError) as caught:
        study(body)
    assert part in str(caught.value)


def test_a_reward_that_is_asked_about_and_has_no_such_name_is_told_before_the_runs(study):
    """It may be a part that a reward function logs, so it is not refused."""
    expect = 'expect = [{{says = "s", metric = "{}"}}]\n'
    two = '[[experiments]]\nname = "two"\ntitle = "t"\nfrom = "one"\nchange = "update.epochs=5"\n'
    for asked in ("reward/lenght", "groups/best - reward/lenght", "after/lenght"):
        (told,) = unnamed_rewards(study(ONE + two + expect.format(asked)))
        name = asked.removeprefix("groups/best - ")
        assert told.startswith(f"experiment 'two' asks about {name}, and no reward is called so; there are: length.")
    for known in ("reward/length", "reward/std_within", "after/metric", "groups/best - reward/mean"):
        assert unnamed_rewards(study(ONE + two + expect.format(known))) == []
    sets = '[config.evaluate]\nsamples = 4\nsets = {hard = "hard.jsonl"}\n'
    for known in ("after/hard/length", "after/pass@4", "before/hard/pass@2"):
        assert len(unnamed_rewards(study(ONE + two + expect.format(known)))) == 1
        assert unnamed_rewards(study(sets + ONE + two + expect.format(known))) == []


def test_a_config_is_no_study_and_a_study_no_config(tmp_path):
    config, study = tmp_path / "own.toml", tmp_path / "rates.toml"
    config.write_text('[backend]\nname = "toy"\n[run]\nsteps = 3\n')
    study.write_text(HEAD.format(prompts="p.jsonl") + ONE)
    with pytest.raises(ConfigError, match=r"own.toml' is a config and no study; `steadyrl train .*own.toml`"):
        read_study(config)
    with pytest.raises(ConfigError, match=r"rates.toml' is a study and no config; `steadyrl study run .*rates.toml`"):
        load(study)
