"""The callback on the spot: transformers' own Trainer with a tiny model, and rows as TRL's trainers log them."""

import json
import logging
import re
from dataclasses import dataclass

import pytest

from tests import needs

transformers = needs.package("transformers")
needs.skip_without_packages("accelerate", extra="quantized")

import torch  # noqa: E402

from steadyrl.core.errors import ConfigError  # noqa: E402
from steadyrl.integrations.trl import DoctorCallback, passes_agree, read_batch, texts, vocabulary_size  # noqa: E402

TOKENS, STEPS = 50, 40


@dataclass
class OnlineArguments(transformers.TrainingArguments):
    """Arguments as a trainer has them that samples for itself."""

    temperature: float = 1.0
    beta: float = 0.05


class LoggingTrainer(transformers.Trainer):
    """Logs what a made RL run would, beside the real loss."""

    made = staticmethod(lambda step: {})

    def log(self, logs, start_time=None):
        super().log({**logs, **self.made(self.state.global_step)}, start_time)


def model(dropout=0.0):
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=TOKENS,
            n_positions=32,
            n_embd=16,
            n_layer=1,
            n_head=2,
            bos_token_id=0,
            eos_token_id=0,
            resid_pdrop=dropout,
            embd_pdrop=dropout,
            attn_pdrop=dropout,
        )
    )


def train(folder, callback, made=lambda step: {}, policy=None, arguments=OnlineArguments, **more):
    rows = [{"input_ids": list(range(8)), "labels": list(range(8))} for _ in range(8)]
    settings = {
        "output_dir": str(folder),
        "max_steps": STEPS,
        "logging_steps": 1,
        "report_to": [],
        "per_device_train_batch_size": 4,
        "use_cpu": True,
        "save_strategy": "no",
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }
    trainer = LoggingTrainer(
        model=policy or model(), args=arguments(**settings, **more), train_dataset=rows, callbacks=[callback]
    )
    trainer.made = made
    trainer.train()
    return trainer


@pytest.fixture(autouse=True)
def quiet():
    """Let the trainer's own words be, and torch on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def constant_reward(step):
    return {"reward": 0.0, "reward_std": 0.0, "frac_reward_zero_std": 1.0, "completions/mean_length": 20.0}


def learning(step):
    share = step / STEPS
    return {
        "reward": str(0.2 + 0.4 * share + 0.01 * (-1) ** step),
        "reward_std": str(0.2),
        "frac_reward_zero_std": "0.1",
        "kl": str(0.01 * share),
        "completions/mean_length": "20.0",
    }


def test_a_reward_that_never_differs_is_found_while_training_goes_on(tmp_path, caplog):
    callback = DoctorCallback(every=10, findings_file=tmp_path / "findings.jsonl")
    with caplog.at_level(logging.INFO, "steadyrl"):
        train(tmp_path, callback, constant_reward)
    assert "reward_constant" in {finding.check for finding in callback.findings}
    lines = [json.loads(line) for line in (tmp_path / "findings.jsonl").read_text().splitlines()]
    first = next(line for line in lines if line["check"] == "reward_constant")
    assert first["state"] == "raised" and first["step"] <= 20
    told = [record for record in caplog.records if "reward_constant" in record.message]
    assert any(record.levelno >= logging.WARNING for record in told)
    assert all(re.search(r"[a-z0-9)%]\. [A-Z]", record.message) for record in told)  # a stop before the remedy


def test_what_it_says_ends_with_the_settings_to_change(tmp_path, caplog):
    def cut_off(step):
        return {
            **learning(step),
            "completions/clipped_ratio": 0.85,
            "completions/mean_length": 60.0,
            "completions/max_length": 64.0,
        }

    callback = DoctorCallback(every=10)
    with caplog.at_level(logging.INFO, "steadyrl"):
        train(tmp_path, callback, cut_off)
    (settings,) = (finding.overrides for finding in callback.findings if finding.check == "truncated")
    assert settings
    message = next(record.message for record in caplog.records if "truncated" in record.message)
    assert re.search(r"\. Set max_completion_length=\d+$", message)


def test_a_healthy_run_raises_nothing_that_harms_and_its_numbers_may_be_text(tmp_path):
    callback = DoctorCallback(every=10)
    train(tmp_path, callback, learning)
    assert [finding for finding in callback.findings if finding.severity != "info"] == []
    assert callback._doctor._series["kl"].column().values[-1] == pytest.approx(0.01)


def test_it_stops_on_a_critical_finding_only_where_asked(tmp_path):
    stopped = train(tmp_path, DoctorCallback(every=10, stop_on_critical=True), constant_reward)
    assert stopped.state.global_step < STEPS
    assert train(tmp_path, DoctorCallback(every=10), constant_reward).state.global_step == STEPS


def test_the_filter_that_hides_nan_is_switched_off(tmp_path):
    assert train(tmp_path, DoctorCallback()).args.logging_nan_inf_filter is False


def test_the_settings_of_the_trainer_reach_the_checks(tmp_path):
    callback = DoctorCallback()
    train(tmp_path, callback, learning, temperature=0.7, learning_rate=3e-5)
    settings = callback._doctor.settings
    assert (settings["temperature"], settings["learning_rate"], settings["vocab_size"]) == (0.7, 3e-5, TOKENS)


def test_dropout_is_found_before_the_first_step(tmp_path):
    callback = DoctorCallback()
    train(tmp_path, callback, learning, policy=model(dropout=0.2))
    assert (callback.findings[0].check, callback.findings[0].cause) == ("passes_differ", "dropout")


def test_dropout_is_no_fault_of_a_trainer_that_samples_nothing(tmp_path):
    callback = DoctorCallback()
    train(tmp_path, callback, policy=model(dropout=0.2), arguments=transformers.TrainingArguments)
    assert callback.findings == ()


def test_two_passes_without_dropout_agree_and_leave_no_trace():
    policy = model()
    policy.eval()
    policy.transformer.h[0].train()
    before = torch.random.get_rng_state()
    assert passes_agree(policy, TOKENS) == ()
    assert torch.equal(torch.random.get_rng_state(), before)
    assert policy.transformer.h[0].training and not policy.lm_head.training


def drawn(policy, temperature=1.0, top_k=0, rows=64, tokens=6, reference=None):
    """Return a batch as TRL's GRPO hands it to compute_loss: prompts padded left, completions right."""
    prompts = torch.tensor([[0, 3, 4], [1, 2, 5]]).repeat(rows // 2, 1)
    prompt_mask = torch.tensor([[0, 1, 1], [1, 1, 1]]).repeat(rows // 2, 1)
    ids, mask = prompts, prompt_mask
    for _ in range(tokens):
        logits = policy(input_ids=ids, attention_mask=mask).logits[:, -1] / temperature
        if top_k:
            logits = logits.masked_fill(logits < logits.topk(top_k).values[:, -1:], -torch.inf)
        ids = torch.cat([ids, logits.softmax(-1).multinomial(1)], dim=1)
        mask = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)
    lengths = torch.arange(rows)[:, None] % tokens + 1
    batch = {
        "prompt_ids": prompts,
        "prompt_mask": prompt_mask,
        "completion_ids": ids[:, 3:],
        "completion_mask": (torch.arange(tokens)[None] < lengths).long(),
    }
    return batch if reference is None else {**batch, "ref_per_token_logps": reference}


class BatchTrainer(LoggingTrainer):
    """Trains on made batches as TRL's GRPO trainer does: compute_loss gets what was sampled."""

    batch = staticmethod(dict)

    def get_train_dataloader(self):
        return torch.utils.data.DataLoader([{"x": 0}] * 8, batch_size=1)

    def _prepare_inputs(self, inputs):
        return self.batch()

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return model(input_ids=inputs["prompt_ids"], labels=inputs["prompt_ids"]).loss


def watched(folder, batch, **settings):
    callback = DoctorCallback(every=10)
    arguments = OnlineArguments(
        output_dir=str(folder), max_steps=30, logging_steps=1, report_to=[], use_cpu=True, save_strategy="no",
        disable_tqdm=True, dataloader_pin_memory=False, learning_rate=1e-9, **settings,
    )  # fmt: skip
    policy = model()
    with torch.no_grad():
        policy.lm_head.weight.mul_(25.0)  # a policy with preferences; it is the embedding too
    trainer = BatchTrainer(model=policy, args=arguments, train_dataset=[{"x": 0}] * 8)
    trainer.batch, trainer.made = torch.no_grad()(lambda: batch(policy)), learning
    callback.watch(trainer)
    trainer.train()
    return {(finding.check, finding.cause) for finding in callback.findings if finding.severity != "info"}


def test_tokens_that_were_drawn_from_another_distribution_are_found_on_the_trainers_batches(tmp_path):
    assert watched(tmp_path / "fair", drawn) == set()
    assert ("warped_sampling", "temperature_or_truncation") in watched(tmp_path / "k", lambda p: drawn(p, top_k=4))


@pytest.mark.weekly
def test_tokens_that_were_drawn_at_the_temperature_of_the_trainer_are_in_order(tmp_path):
    assert watched(tmp_path / "tempered", lambda p: drawn(p, temperature=0.7), temperature=0.7) == set()


def test_a_reference_that_is_another_model_is_found_before_the_first_update(tmp_path):
    other = torch.full((64, 6), -3.0)
    assert ("passes_differ", "reference") in watched(tmp_path, lambda p: drawn(p, reference=other))


def test_a_batch_is_read_as_by_hand():
    policy = model().eval()
    batch = drawn(policy, rows=2, tokens=3)
    batch["ref_per_token_logps"] = torch.zeros(2, 3)
    found = read_batch(policy, batch, temperature=2.0)
    values = []
    for row, count in ((0, 1), (1, 2)):  # completions of one and of two tokens
        ids = torch.cat([batch["prompt_ids"][row], batch["completion_ids"][row]])[None]
        mask = torch.cat([batch["prompt_mask"][row], batch["completion_mask"][row]])[None]
        probs = (policy(input_ids=ids, attention_mask=mask).logits[0] / 2.0).softmax(-1).detach()
        values += [(probs[2 + i, ids[0, 3 + i]].log(), torch.special.entr(probs[2 + i]).sum()) for i in range(count)]
    logps, entropies = (torch.stack(list(column)) for column in zip(*values, strict=True))
    assert found.sampled == pytest.approx(-float(logps.mean()), rel=1e-4)
    assert found.exact == pytest.approx(float(entropies.mean()), rel=1e-4)
    assert found.reference == pytest.approx(float(logps.abs().mean()), rel=1e-4)
    assert read_batch(policy, {**batch, "completion_mask": torch.zeros(2, 3).long()}, 1.0) is None
    tools = torch.tensor([[0, 1, 1], [1, 0, 1]])  # of the second completion's two tokens a tool wrote the last
    of_policy = read_batch(policy, {**batch, "tool_mask": tools}, temperature=2.0)
    assert of_policy.sampled == pytest.approx(-float(logps[1]), rel=1e-4)


def test_batches_with_pictures_are_left_alone(tmp_path):
    other = {"ref_per_token_logps": torch.full((64, 6), -3.0), "pixel_values": torch.zeros(64, 1)}
    assert watched(tmp_path, lambda policy: {**drawn(policy, top_k=4), **other}) == set()


def test_only_what_computes_a_loss_can_be_watched():
    with pytest.raises(ConfigError, match="object has no compute_loss"):
        DoctorCallback().watch(object())


def test_only_causal_models_are_measured():
    assert vocabulary_size(model()) == TOKENS
    assert vocabulary_size(torch.nn.Linear(2, 2)) is None


class Words:
    """A tokenizer whose token 0 is padding and whose others are letters."""

    def batch_decode(self, rows, skip_special_tokens):
        assert skip_special_tokens
        return ["".join(chr(96 + token) for token in row if token) for row in rows]


def test_texts_of_a_batch_are_those_that_the_mask_keeps():
    batch = {
        "prompt_ids": torch.tensor([[0, 1], [2, 3]]), "prompt_mask": torch.tensor([[0, 1], [1, 1]]),
        "completion_ids": torch.tensor([[4, 5, 6], [7, 0, 0]]), "completion_mask": torch.tensor([[1, 1, 0], [1, 0, 0]]),
    }  # fmt: skip
    read = [(one.step, one.prompt, one.completion) for one in texts(Words(), batch, 3)]
    assert read == [(3, "a", "de"), (3, "bc", "g")]
