"""The sections of a config: typed settings, field by field, each with its default, its range and what it does."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    """A group of settings: frozen, strict about keys and types, documented field by field."""

    # Without ``strict`` true would be taken for the number 1, and 100.0 for a count.
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, strict=True, allow_inf_nan=False)
    # What a run may change when it is resumed without becoming another run.
    free_on_resume: ClassVar[frozenset[str]] = frozenset()


class RunSection(Section):
    """The run as a whole."""

    free_on_resume = frozenset({"steps", "epochs", "checkpoint_every", "keep_checkpoints", "rollouts_every"})

    steps: int = Field(100, ge=1, description="iterations of the loop")
    epochs: int = Field(
        0, ge=0, description="passes over the training problems, from which the steps then follow; 0 takes run.steps"
    )
    seed: int = Field(0, ge=0, description="everything random follows from it")
    folder: str = Field("runs", description="where run directories are made")
    checkpoint_every: int = Field(50, ge=1, description="steps between checkpoints")
    keep_checkpoints: int = Field(2, ge=1, description="older ones are removed")
    rollouts_every: int = Field(10, ge=1, description="steps between recorded rollouts (prompts and completions)")
    preflight: Literal["stop", "warn", "off"] = Field(
        "stop", description="what `steadyrl train` does where a check before the first step fails; 'off' makes none"
    )
    doctor_every: int = Field(20, ge=0, description="steps between examinations of the run as it goes on; 0 makes none")


class ModelSection(Section):
    """The policy."""

    path: str = Field("base", description="'base' (ships with steadyrl), a Hugging Face model folder, or a hub name")
    lora_rank: int = Field(0, ge=0, description="rank of the LoRA adapter; 0 trains all weights")
    lora_alpha: float = Field(16.0, gt=0, description="scale of the adapter: alpha / rank")
    lora_targets: str = Field("all-linear", description="modules with an adapter: a peft name, or several with commas")
    chat_template: Literal["auto", "never"] = Field(
        "auto", description="'auto' wraps prompts in the tokenizer's chat template where it has one"
    )


class BackendSection(Section):
    """Where the arithmetic is done."""

    name: str = Field("torch", description="'torch', 'toy' (numpy, exact gradients), or an import path")
    device: str = Field("auto", description="'auto' (cuda, then mps, then cpu) or a torch device")
    threads: int = Field(0, ge=0, description="CPU threads; 0 leaves it to the library")
    precision: Literal["auto", "fp32", "bf16"] = Field(
        "auto",
        description="'bf16' multiplies matrices in bfloat16 and keeps weights, head and log-probs in float32; 'auto' "
        "is bf16 on a GPU that has it, else fp32",
    )
    weights: Literal["fp32", "bf16"] = Field(
        "fp32", description="'bf16' keeps the model's weights in bfloat16; the optimizer moves float32 copies of them"
    )
    gradient_checkpointing: bool = Field(
        False, description="keep only each layer's input and compute its activations again on the way back"
    )
    micro_batch_tokens: int = Field(
        8192, ge=1, description="tokens per forward and backward pass, padding included; halved when memory runs out"
    )
    generate_rows: int = Field(
        256, ge=1, description="completions sampled together at most; halved when memory runs out"
    )


class SamplingSection(Section):
    """How completions are drawn in training."""

    max_new_tokens: int = Field(32, ge=1, description="upper bound of a completion, in tokens")
    temperature: float = Field(1.0, gt=0, le=10, description="logits are divided by it")
    top_p: float = Field(1.0, gt=0, le=1, description="nucleus; 1 keeps every token")
    top_k: int = Field(0, ge=0, description="keep the k likeliest tokens; 0 keeps all")
    logprobs: Literal["sampled", "raw"] = Field(
        "sampled",
        description="of the distribution 'sampled' from, or 'raw': older trainers' mismatch, for studies",
    )


class SamplerSection(Section):
    """What draws the completions: the backend itself, or a running vLLM server (see vllm.md)."""

    engine: Literal["own", "vllm"] = Field("own", description="'own' samples in-process; 'vllm' asks a server")
    url: str = Field("http://localhost:8000", description="where the server answers")
    model: str = Field("", description="the name that the server gives the model; empty takes the one it serves")
    folder: str = Field("runs/served", description="where new weights are written; the server must see the same path")
    requests: int = Field(64, ge=1, le=1024, description="completions asked for at the same time, at most")
    timeout_s: float = Field(600.0, gt=0, le=86400, description="seconds to wait for one answer")


class RolloutSection(Section):
    """What one step collects."""

    prompts_per_step: int = Field(64, ge=1, description="problems per step")
    samples_per_prompt: int = Field(2, ge=1, description="completions per problem")
    refill: int = Field(
        0, ge=0, le=100, description="further rounds of problems, as many as groups so far have equal rewards, at most"
    )
    max_tokens: int = Field(
        0,
        ge=0,
        description="of an episode of several turns, prompt included: it ends before it could exceed them; 0: none",
    )
    observation_tokens: int = Field(
        0,
        ge=0,
        description="of an observation in an episode, at most: its first ones, ' ...' and its last line stay; 0: none",
    )


class UpdateSection(Section):
    """How a batch trains."""

    epochs: int = Field(2, ge=1, le=100, description="passes over a step's batch")
    minibatches: int = Field(2, ge=1, description="optimizer steps per epoch; the batch is cut into so many parts")
    learning_rate: float = Field(3e-4, ge=0, le=10, description="of Adam, after warm-up")
    warmup_steps: int = Field(10, ge=0, description="steps of linear rise of the learning rate")
    schedule: Literal["constant", "linear", "cosine"] = Field("constant", description="after the warm-up, down to 0")
    weight_decay: float = Field(0.0, ge=0, description="of AdamW")
    max_grad_norm: float = Field(1.0, gt=0, description="gradients are scaled down to this global norm")
    reward_limit: float = Field(
        0.0, ge=0, description="rewards further from the step's median train as if at this distance; 0 moves none"
    )
    old_logprobs: Literal["sampler", "recompute"] = Field(
        "sampler",
        description="log-probs before the update: of the 'sampler', where they equal the trainer's on every fourth "
        "row of the step (else computed again, see the metric 'audited'); or always 'recompute' them",
    )
    kl_old_limit: float = Field(
        0.05, gt=0, description="nats per token (k3): the epochs stop early when the policy is further from the old one"
    )


class EvaluateSection(Section):
    """Held-out evaluation before and after, on the same problems with the same seeds."""

    problems: int = Field(0, ge=0, description="held-out problems to use; 0 uses all")
    every: int = Field(0, ge=0, description="steps between evaluations while training; 0 for none")


class AutopilotSection(Section):
    """What may act on a run while it goes on (see autopilot.md)."""

    mode: Literal["off", "advise", "act"] = Field("off", description="'advise' writes actions.jsonl, 'act' acts too")
    kl_low: float = Field(0.06, gt=0, description="least KL of a step (kl_step_k3) at the full learning rate")
    kl_high: float = Field(0.3, gt=0, description="greatest KL of a step: the learning rate is moved to stay between")
    kl_ref_target: float = Field(
        0.0, ge=0, description="nats per sequence, to hold the KL to the reference at by its coefficient; 0 for none"
    )
    cooldown: int = Field(40, ge=20, description="steps after which a move is judged, and undone if it did not help")


class JudgeSection(Section):
    """The AI judge, where ``rewards`` has one (see rewards/judge.md)."""

    mode: Literal["scalar", "pairwise", "group", "likelihood"] = Field(
        "scalar",
        description="'scalar' grades each rollout by the criteria; 'pairwise' compares two, in both orders; 'group' "
        "grades all rollouts of a problem in one request; 'likelihood' needs no server, only a model folder",
    )
    base_url: str = Field("", description="of a chat endpoint as OpenAI has it, such as http://localhost:8000/v1")
    model: str = Field("", description="its name there; for 'likelihood' a folder in Hugging Face layout, or 'base'")
    key_env: str = Field("", description="name of the environment variable that holds the key; empty sends none")
    criteria: dict[str, str] = Field(
        default_factory=lambda: {
            "correct": "it does what the request asks, in every case",
            "clear": "a reader understands it at once",
            "concise": "nothing in it could be left out",
        },
        description="what the judge looks for, by name; 'scalar' grades each one, the others weigh them together",
    )
    request: dict[str, Any] = Field(
        default_factory=lambda: {"temperature": 0.0, "max_tokens": 512},
        description="further fields of every request, as the endpoint knows them",
    )
    gate: str = Field(
        "", description="a reward of the task: rollouts that have less than 1 in it get 0 from the judge, unasked"
    )
    opponents: int = Field(2, ge=1, le=64, description="'pairwise': how many pairs each rollout begins, at most")
    workers: int = Field(8, ge=1, le=256, description="requests under way at the same time, at most")
    connect_s: float = Field(5.0, gt=0, le=600, description="seconds to wait for a connection")
    read_s: float = Field(60.0, gt=0, le=3600, description="seconds to wait for the next bytes of an answer")
    request_s: float = Field(90.0, gt=0, le=3600, description="seconds that one answer may take in all")
    deadline_s: float = Field(
        240.0, gt=0, le=86400, description="seconds that one verdict may take, with all tries, waits and the repair"
    )
    retries: int = Field(3, ge=0, le=20, description="further tries after 429, 5xx, or a broken connection")
    max_failed: float = Field(
        0.5, ge=0, lt=1, description="share of verdicts that may fail over the window; more of them stop the run"
    )
    window: int = Field(10, ge=1, le=100, description="scorings (one a step) that max_failed looks back on")
    cache: str = Field("runs/judge-cache", description="folder of verdicts by content, shared by runs; empty for none")
    price_in: float = Field(0.0, ge=0, description="of a million tokens read, for the metric judge/cost")
    price_out: float = Field(0.0, ge=0, description="of a million tokens written")
    baseline: str = Field(
        "", description="'likelihood': a second model folder to compare with; empty compares with no prompt"
    )
    nats: float = Field(1.0, gt=0, description="'likelihood': ratio per token at which the score is 0.73")


class TaskSection(Section):
    """Which problems; ``args`` are the task's own settings."""

    name: str = Field("search", description="'search', 'code', 'browse', 'prompts', or an import path")
    args: Any = Field(default_factory=dict, description="see the task's page")


class AlgorithmSection(Section):
    """Which algorithm; ``args`` are its own settings."""

    name: str = Field(
        "ppo", description="'ppo', 'grpo', 'rloo', 'reinforce', 'rlaif', 'raft', 'rwr', 'sft', or an import path"
    )
    args: Any = Field(default_factory=dict, description="see its page")


class CurriculumSection(Section):
    """Which problems come next; ``args`` are the curriculum's own settings."""

    name: str = Field("uniform", description="'uniform', 'learnability', 'plr', 'accel', 'bandit', or an import path")
    args: Any = Field(default_factory=dict, description="see curriculum.md")
