"""Training on two ranks: the numbers of one process, checkpoints for any number of ranks, errors that name a rank."""

import json
import os
import signal
import threading

import numpy as np
import pytest

from steadyrl.core import config
from steadyrl.core.errors import CheckpointError, ModelError, RankError
from steadyrl.loop.train import open_session
from tests import needs
from tests.backends.fsdp import work
from tests.backends.fsdp.forked import on_ranks
from tests.rounding import NATS, OF_BFLOAT16, rounding

torch = needs.package("torch")
needs.skip_without_packages("transformers", "peft", extra="torch")

from safetensors.torch import load_file  # noqa: E402
from torch.distributed import HashStore  # noqa: E402

from steadyrl.backends.fsdp import ranks, state  # noqa: E402
from steadyrl.backends.fsdp.torchrun import Place  # noqa: E402

WORDS = ("the", "a red cat sees two small birds", "one dog", "three old", "the big blue bird hears a", "not")


@pytest.fixture
def settings(tiny_models, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in WORDS))
    return {
        "run": {"steps": 3, "checkpoint_every": 1, "doctor_every": 0, "token_details_every": 0, "rollouts_every": 1},
        "model": {"path": str(tiny_models["llama"])},
        "backend": {"name": "fsdp", "device": "cpu", "threads": 1},
        "algorithm": {"name": "ppo"},
        "task": {"name": "prompts", "args": {"path": str(prompts)}},
        "rewards": {"length": 1.0},
        "sampling": {"max_new_tokens": 6},
        "rollout": {"prompts_per_step": 3, "samples_per_prompt": 3},
        "update": {"learning_rate": 1e-3, "warmup_steps": 0, "kl_old_limit": 10.0, "epochs": 1},
        "evaluate": {"problems": 1},
    }


def test_two_ranks_make_the_numbers_of_one_process_and_one_rank_goes_on_from_their_checkpoint(settings, tmp_path):
    metrics, texts = work.trained(settings, tmp_path / "alone", "backend.name=torch")
    shared = tmp_path / "shared"
    found, codes = on_ranks(2, work.trained, settings, shared, "run.steps=2")
    assert codes == [0, 0], found
    found, codes = on_ranks(1, work.trained, settings, shared)
    assert codes == [0], found
    assert found[1] == texts
    assert len(found[0]) == len(metrics) == 3
    for one, other in zip(metrics, found[0], strict=True):
        assert other == pytest.approx(one, rel=rounding(1.0), abs=NATS)
        assert other["loss/total"] == pytest.approx(one["loss/total"], abs=rounding(1.0))
        assert one["grad_norm"] > 0.1
        assert -1 <= one["grad_cosine"] <= 1
    policy = shared / "checkpoints" / "000002" / "policy"
    assert {file.name for file in policy.iterdir()} >= {"config.json", "model.safetensors", "tokenizer.json"}


def test_ranks_whose_products_are_tf32_start_and_train_with_a_reference_in_bfloat16(settings, tmp_path):
    overrides = ("backend.precision=bf16", "run.steps=2")
    found, codes = on_ranks(2, work.trained, settings, tmp_path / "run", *overrides, within=work.InTF32)
    assert codes == [0, 0], found
    assert len(found[0]) == 2
    assert all(np.isfinite(line["loss/total"]) and line["grad_norm"] > 0 for line in found[0])


def test_a_rank_that_dies_ends_the_run_with_an_error_that_names_it_and_what_was_done(settings):
    found, codes = on_ranks(2, work.lose_a_rank, settings)
    assert isinstance(found, RankError)
    assert str(found).startswith("rank 1 died or does not answer in 'step'; go on from the last checkpoint")
    assert codes == [0, -9]


@pytest.mark.parametrize("wait", [work.meet_nobody, work.meet_one_that_torchrun_misses])
def test_a_rank_that_does_not_come_ends_the_run_with_an_error_that_names_it(wait):
    found, _ = on_ranks(1, wait)
    assert isinstance(found, RankError)
    assert str(found) == "rank 1 died or did not come in 'meet'; start the run again"


def test_a_signal_asks_who_is_lost_where_rank_0_is_alone_and_else_ends_the_run_as_ever():
    found, _ = on_ranks(2, work.be_ended, False)
    assert isinstance(found, RankError)
    assert str(found).startswith("rank 1 died or does not answer while rank 0 worked alone; go on from the last")
    found, codes = on_ranks(2, work.be_ended, True)
    assert (found, codes) == ("interrupted", [0, 0])


def test_a_second_signal_while_rank_0_asks_who_is_lost_changes_no_error(monkeypatch):
    """torchrun's own comes while rank 0 asks because of the connection that the dead rank broke."""
    monkeypatch.setattr(ranks, "_ANSWER_S", 0.6)
    alone = ranks.Ranks(Place(0, 2))
    alone._store = HashStore()
    before = signal.signal(signal.SIGINT, alone._handler_after_meeting(signal.default_int_handler))
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        with pytest.raises(RankError, match="rank 1 died or does not answer in 'save'"), alone.phase("save"):
            raise RuntimeError("Connection closed by peer")
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_lost_rank_is_named_although_a_library_caught_the_error_that_says_so(monkeypatch):
    """transformers turns whatever its imports raise into an ImportError of its own."""
    monkeypatch.setattr(ranks, "_ANSWER_S", 0.1)
    alone = ranks.Ranks(Place(0, 2))
    alone._store = HashStore()
    with pytest.raises(RankError, match="rank 1 died or does not answer in 'build'"), alone.phase("build"):
        try:
            alone._handler_after_meeting(signal.default_int_handler)(signal.SIGTERM, None)
        except Exception as error:
            raise ImportError("could not import module 'LlamaForCausalLM'") from error


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # peft reads it
@pytest.mark.parametrize(
    ("rank", "weights", "near"),
    [
        pytest.param(0, "fp32", NATS, marks=pytest.mark.weekly),
        (4, "fp32", NATS),
        pytest.param(4, "bf16", rounding(16.0, 8, OF_BFLOAT16), marks=pytest.mark.weekly),
    ],
)
def test_what_two_ranks_save_has_their_log_probs_in_transformers(settings, tmp_path, rank, weights, near):
    settings["model"]["lora_rank"] = rank
    settings["backend"]["args"] = {"weights": weights}
    found, codes = on_ranks(2, work.export, settings, tmp_path)
    assert codes == [0, 0], found
    tokens, mask, expected = found
    transformers, peft = needs.package("transformers"), needs.package("peft")
    place = settings["model"]["path"] if rank else tmp_path / "policy"
    model = transformers.AutoModelForCausalLM.from_pretrained(place)
    if rank:
        model = peft.PeftModel.from_pretrained(model, tmp_path / "policy")
        saved = load_file(tmp_path / "policy" / "adapter_model.safetensors")
        kept_in = torch.float32 if weights == "fp32" else torch.bfloat16  # as the ranks gather it to sample
        assert {tensor.dtype for tensor in saved.values()} == {kept_in}
    with torch.no_grad():
        logp = model(input_ids=torch.from_numpy(tokens).long()).logits.log_softmax(-1).numpy()
    for row, at in np.argwhere(mask):
        assert logp[row, at - 1, tokens[row, at]] == pytest.approx(expected[row, at], abs=near)


def test_scoring_keeps_no_graph_for_an_update_that_reads_by_itself(settings):
    graph, codes = on_ranks(1, work.graph_of_scoring, settings)
    assert (graph, codes) == (False, [0])


def test_an_update_without_memory_says_what_to_set(settings):
    found, _ = on_ranks(1, work.lack_memory, settings)
    assert isinstance(found, ModelError)
    assert "an update with backend.args.micro_batch_tokens = 8192; resume with half as many" in str(found)


def test_a_checkpoint_of_another_backend_is_refused(tmp_path):
    (tmp_path / "policy").mkdir()
    with pytest.raises(CheckpointError, match=r"another backend than fsdp wrote '.*'; resume with that one, or start"):
        state.load(tmp_path, backend=None, group=None)


def test_one_process_refuses_a_checkpoint_of_ranks(settings, tmp_path):
    session = open_session(config.resolve(settings, ["backend.name=torch"]))
    session.backend.save(tmp_path)
    (tmp_path / "optimizer.safetensors").unlink()
    (tmp_path / "shares").mkdir()
    with pytest.raises(CheckpointError, match=r"the backend fsdp wrote '.*'; resume with backend\.name=fsdp, or start"):
        session.backend.load(tmp_path)
