"""Subjects: what a name stands for, and whether the policy that is loaded is the one that was trained."""

import shutil

import numpy as np
import pytest

from steadyrl.core.errors import CheckpointError, ModelError, RunError
from steadyrl.core.types import Sampling
from steadyrl.lab.compare.subject import find_subject, open_policy
from steadyrl.loop import record
from steadyrl.loop.train import open_session, train

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")

GREEDY = Sampling(max_new_tokens=6, top_k=1)
HOT = Sampling(max_new_tokens=6)


def answers(backend):
    prompts = [backend.tokenizer.encode_prompt(text) for text in ("a cat", "two dogs", "is it new")]
    return [c.ids.tolist() for sampling in (GREEDY, HOT) for c in backend.generate(prompts, sampling, [1, 2, 3])]


def test_base_is_the_model_that_the_config_starts_from(settings):
    subject = find_subject("base", settings("model.path=./mine", "model.lora_rank=4"))
    assert (subject.config.model.path, subject.config.model.lora_rank, subject.loads) == ("./mine", 0, False)


def test_a_run_is_its_newest_finished_checkpoint(settings, trained):
    run = trained("run.steps=5", "run.keep_checkpoints=3")
    (run.checkpoint_folder(5) / "DONE").unlink()
    assert find_subject(str(run.path), settings()).kind == "run, step 4"
    assert find_subject(f"{run.path}@2", settings()).folder == run.checkpoint_folder(2)
    by_step = open_policy(find_subject(f"{run.path}@2", settings())).parameters["logits"]
    by_folder = open_policy(find_subject(str(run.checkpoint_folder(2)), settings())).parameters["logits"]
    newest = open_policy(find_subject(str(run.path), settings())).parameters["logits"]
    np.testing.assert_array_equal(by_step, by_folder)
    assert np.abs(newest - by_step).max() > 0.01


def test_the_folder_of_a_studys_run_is_the_run(settings, trained, tmp_path):
    run = trained()
    folder = tmp_path / "study" / "rank-s0"
    shutil.copytree(run.path, folder / "20261128-run")
    subject = find_subject(str(folder), settings())
    assert (subject.name, subject.kind) == (str(folder), "run, step 4")
    assert subject.folder == folder / "20261128-run" / "checkpoints" / "000004"
    assert find_subject(f"{folder}@2", settings()).kind == "run, step 2"


def test_a_path_with_an_at_sign_is_a_path_first(settings, trained):
    run = trained()
    other = run.path.with_name("run@2")
    shutil.copytree(run.path, other)
    assert find_subject(str(other), settings()).kind == "run, step 4"
    assert find_subject(f"{other}@2", settings()).kind == "run, step 2"


def test_wrong_names_are_refused_with_what_there_is(settings, trained, tmp_path):
    run = trained()
    with pytest.raises(RunError, match="there is nothing at 'runs/absent'; expected 'base', a run directory"):
        find_subject("runs/absent", settings())
    with pytest.raises(RunError, match="has no checkpoint after step 3; it has 2, 4"):
        find_subject(f"{run.path}@3", settings())
    with pytest.raises(RunError, match="'absent' is not there"):
        find_subject("absent@3", settings())
    with pytest.raises(RunError, match="is a file; expected"):
        find_subject(str(run.metrics_file), settings())
    with pytest.raises(RunError, match="holds neither a run, nor a checkpoint, nor a model"):
        find_subject(str(tmp_path), settings())
    with pytest.raises(RunError, match="is not a run directory"):
        find_subject(f"{tmp_path}@3", settings())


def test_an_unfinished_checkpoint_is_refused(settings, trained):
    run = trained()
    for step in (2, 4):
        (run.checkpoint_folder(step) / "DONE").unlink()
    with pytest.raises(CheckpointError, match="is not finished: it has no file DONE"):
        find_subject(str(run.checkpoint_folder(2)), settings())
    with pytest.raises(RunError, match="has no finished checkpoint"):
        find_subject(str(run.path), settings())


def test_a_checkpoint_without_its_run_needs_a_whole_model(settings, trained, tmp_path):
    alone = shutil.copytree(trained().checkpoint_folder(4), tmp_path / "alone" / "deep" / "000004")
    with pytest.raises(CheckpointError, match="holds no whole model and lies in no run directory"):
        find_subject(str(alone), settings())


@pytest.fixture
def torch_run(settings, tiny_models):
    """Return a function that trains a tiny model for two steps; it gives its session and its run."""

    def make(*overrides):
        chosen = settings("backend.name=torch", "backend.device=cpu", f"model.path={tiny_models['llama']}", *overrides)
        session = open_session(
            chosen.model_copy(update={"evaluate": chosen.evaluate.model_copy(update={"problems": 2})})
        )
        run = record.begin(session.config, "")
        record.close(run, train(session, run), session.config)
        return session, run

    return make


@pytest.mark.parametrize(
    "overrides", [pytest.param((), marks=pytest.mark.weekly), ("model.lora_rank=2",)], ids=["whole", "lora"]
)
def test_the_policy_that_is_loaded_answers_as_the_one_that_was_trained(settings, torch_run, overrides):
    session, run = torch_run(*overrides)
    subject = find_subject(str(run.path), settings())
    policy = open_policy(subject)
    assert answers(policy) == answers(session.backend)
    base = open_policy(find_subject("base", session.config))
    assert answers(policy) != answers(base)
    assert policy.reference is None
    assert subject.loads == ("model.lora_rank=2" in overrides)


def test_a_model_folder_and_a_checkpoint_that_moved_are_loaded_without_their_run(settings, torch_run, tmp_path):
    session, run = torch_run("run.steps=2")
    moved = shutil.copytree(run.checkpoint_folder(2), tmp_path / "alone" / "deep" / "000002")
    expected = answers(session.backend)
    config = settings("backend.name=torch", "backend.device=cpu")
    assert answers(open_policy(find_subject(str(moved / "policy"), config))) == expected
    assert answers(open_policy(find_subject(str(moved), config))) == expected


def test_an_adapter_alone_is_refused_with_the_way_out(settings, torch_run):
    _, run = torch_run("run.steps=2", "model.lora_rank=2")
    with pytest.raises(ModelError, match="is an adapter without its model; give the checkpoint folder"):
        find_subject(str(run.checkpoint_folder(2) / "policy"), settings())


def test_rewritten_weights_are_another_subject(settings, trained):
    run = trained()
    before = find_subject(str(run.path), settings()).identity()
    assert find_subject(str(run.path), settings()).identity() == before
    (run.checkpoint_folder(4) / "toy.npz").touch()
    assert find_subject(str(run.path), settings()).identity() != before
