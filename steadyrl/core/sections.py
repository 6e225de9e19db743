"""The sections of a config: typed settings, each with its default, its range and a description."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from steadyrl.core.errors import ConfigError
from steadyrl.core.plugins import BUILT_IN
from steadyrl.core.types import DECODINGS, Decoding

_LONGEST_NAME = 255  # bytes of one name in a path, on all common file systems


def _usable_path(text: str) -> str:
    """Return a path with ``~`` replaced by the home folder."""
    if "\0" in text:
        raise ValueError("a path without the character of code 0")
    if any(len(os.fsencode(name)) > _LONGEST_NAME for name in text.split("/")):
        raise ValueError(f"a path whose names have at most {_LONGEST_NAME} bytes")
    return os.path.expanduser(text)


def _check_not_empty(text: str) -> str:
    if not text.strip():
        raise ValueError("a path that is not empty")
    return text


# Corrections for rollouts of another policy: those that hold the importance ratio, and those that only drop.
RATIO_CORRECTIONS = ("token", "sequence", "icepop", "dppo")
MASK_CORRECTIONS = ("geometric",)

# A setting that holds a file or folder, or a word that stands for one.
PathText = Annotated[str, AfterValidator(_usable_path)]
# One that has to be there: an empty path would be the current folder.
PathName = Annotated[PathText, AfterValidator(_check_not_empty)]
# A setting that holds a folder which the run writes. It does not move where a reward changes the current folder.
FolderText = Annotated[str, AfterValidator(_usable_path), AfterValidator(lambda text: text and os.path.abspath(text))]
FolderName = Annotated[FolderText, AfterValidator(_check_not_empty)]


class Section(BaseModel):
    """A group of settings. It is frozen, it refuses unknown keys and wrong types, and it documents every field."""

    # Without ``strict`` true would be taken for the number 1, and 100.0 for a count.
    # A description stands below its field: pydantic's own way to read it takes a tenth of the start of a command.
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, strict=True, allow_inf_nan=False)
    # What a run may change when it is resumed without becoming another run.
    free_on_resume: ClassVar[frozenset[str]] = frozenset()
    # True where a text that is put into the wrong place may be a key: no error shows it.
    confidential: ClassVar[bool] = False

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse a change of what was checked as a whole, with the way to another value."""
        raise ConfigError(
            f"{name}: got {value!r:.80}, and settings do not change; give it where they are made, as in "
            "steadyrl.load_config(path, ['run.steps=20'])"
        )

    @model_validator(mode="before")
    @classmethod
    def _without_empty_values(cls, data: Any) -> Any:
        """Read an empty text as None where None is the default, for which TOML and the command line have no word."""
        if not isinstance(data, Mapping):
            return data
        unset = {name for name, field in cls.model_fields.items() if field.default is None and data.get(name) == ""}
        return {name: None if name in unset else value for name, value in data.items()}

    def import_paths(self) -> list[tuple[str, str]]:
        """Return kind and import path of all code of the user's own that these settings name."""
        return []


class RunSection(Section):
    """Settings of the run as a whole."""

    free_on_resume = frozenset(
        {"steps", "epochs", "target", "checkpoint_every", "keep_checkpoints", "rollouts_every", "token_details_every"}
        | {"trackers"}
    )

    steps: int = Field(100, ge=1, description="Number of training steps.")
    epochs: int = Field(0, ge=0)
    """Number of passes over the training problems. If it is above 0, it replaces run.steps."""
    target: float | None = Field(None)
    """Mean reward (reward/mean) to reach. Display and report say how far the run is from it. The run ends once the
    smoothed reward has held it for a tenth of run.steps. By default there is none."""
    seed: int = Field(0, ge=0, lt=2**63, description="Seed of everything random in the run.")
    folder: FolderName = Field("runs", description="Folder in which run directories are created.")
    checkpoint_every: int = Field(50, ge=1, description="Number of steps between checkpoints.")
    keep_checkpoints: int = Field(2, ge=1, description="Number of checkpoints to keep. Older ones are deleted.")
    rollouts_every: int = Field(10, ge=1)
    """Number of steps between recordings of the rollouts (prompts and completions). Those of the last step are always
    recorded."""
    token_details_every: int = Field(50, ge=0)
    """Number of steps between recordings of single tokens (log-prob, entropy, ratio, advantage, KL) of 16 rollouts, for
    `steadyrl web`. 0 disables them."""
    trackers: list[str] = Field(default_factory=list)
    """Trackers that the run is sent to while it goes on: 'wandb', 'tensorboard', 'trackio', 'mlflow', or import paths.
    See trackers.md."""
    preflight: Literal["stop", "warn", "off"] = Field("stop")
    """What `steadyrl train` does if a preflight check fails: 'stop' ends the command, 'warn' trains anyway. 'off' skips
    the preflight."""
    doctor_every: int = Field(20, ge=0)
    """Number of steps between the doctor's examinations of the running training. 0 disables them."""


class MessageSection(Section):
    """A message before every prompt."""

    role: Literal["system", "user", "assistant"] = Field(description="Who says it.")
    content: str = Field(description="What is said.")


class ModelSection(Section):
    """The model that is trained."""

    free_on_resume = frozenset({"path"})  # the folder may move; that it holds the same model is measured

    path: PathName = Field("base")
    """'base' (the model that ships with steadyrl), a Hugging Face model folder, or a model name on the hub."""
    lora_rank: int = Field(0, ge=0, le=65_536, description="Rank of the LoRA adapter. 0 trains all weights.")
    lora_alpha: float = Field(16.0, gt=0, description="LoRA alpha. The adapter is scaled by alpha / rank.")
    lora_targets: str = Field("all-linear")
    """Modules that get an adapter: a name that peft knows, or several names separated by commas."""
    chat_template: Literal["auto", "never"] = Field("auto")
    """'auto' applies the tokenizer's chat template if it has one. 'never' leaves prompts as they are."""
    template_args: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Arguments of the chat template, such as enable_thinking = false."""
    messages_before: list[MessageSection] = Field(default_factory=list)
    """Messages before every prompt: a system message, then examples as messages of user and assistant in turns."""
    skip_special_tokens: bool = Field(True)
    """Leave special tokens out of the text of completions, which rewards, judges, episodes and stop strings read. Set
    it to false where the model's marks of calls or reasoning are special tokens. End tokens are always left out."""
    trust_remote_code: bool = Field(False)
    """Run Python code that the model folder brings along. Set it only for code that you have read."""

    @field_validator("messages_before")
    @classmethod
    def _check_turns(cls, value: list[MessageSection]) -> list[MessageSection]:
        roles = [message.role for message in value]
        turns = roles[1:] if roles[:1] == ["system"] else roles
        if turns != ["user", "assistant"] * (len(turns) // 2):
            raise ValueError(
                f"expected a system message at most, then examples of a user's and an assistant's message each; the "
                f"roles are {', '.join(roles)}"
            )
        return value


class BackendSection(Section):
    """Where and how the model is computed."""

    # A checkpoint is the same in every framework that can read it; one that cannot says so. Each has its own settings.
    free_on_resume = frozenset({"name", "device", "threads", "args"})

    name: str = Field("torch")
    """'torch', 'fsdp' (torch on several GPUs), 'mlx', 'toy' (NumPy), or an import path."""
    device: str = Field("auto")
    """A torch device, or 'auto' for the first available of cuda, mps and cpu. MLX has 'auto', 'cpu' and 'gpu'."""
    threads: int = Field(0, ge=0, le=1024, description="Number of CPU threads. 0 uses the library's default.")
    precision: Literal["auto", "fp32", "bf16"] = Field("auto")
    """'bf16' multiplies matrices in bfloat16 and keeps weights, head and log-probs in float32. 'auto' is bf16 on GPUs
    that support it, and fp32 elsewhere."""
    args: Any = Field(default_factory=dict)
    """The backend's own settings, if it has some. See the backend's page."""


class SamplingSection(Section):
    """How completions are sampled in training."""

    max_new_tokens: int = Field(32, ge=1, le=1_000_000)
    """Maximum tokens per completion (per turn in multi-turn episodes)."""
    temperature: float = Field(1.0, gt=0, le=10, description="Sampling temperature. The logits are divided by it.")
    top_p: float = Field(1.0, gt=0, le=1, description="Nucleus sampling. 1 keeps every token.")
    top_k: int = Field(0, ge=0, description="Sample among the k most likely tokens only. 0 keeps all.")
    stop: list[Annotated[str, Field(min_length=1)]] = Field(default_factory=list)
    """Strings that end a completion, beside the model's end tokens. Rewards see the text before them."""
    logprobs: Literal["sampled", "raw"] = Field("sampled")
    """Which log-probs train. 'sampled' takes those of the distribution that was sampled from. 'raw' ignores
    temperature, top_p and top_k, which reproduces the sampling mismatch of older trainers for studies."""


class SamplerSection(Section):
    """The program that samples the completions."""

    engine: str = Field("own")
    """'own' samples in the training process; 'vllm' asks a vLLM server; or an import path."""
    args: Any = Field(default_factory=dict, description="The engine's own settings. See the engine's page.")


class RolloutSection(Section):
    """What the rollouts of one step consist of."""

    prompts_per_step: int = Field(64, ge=1, le=1_000_000, description="Number of problems per step.")
    samples_per_prompt: int = Field(2, ge=1, le=100_000, description="Number of completions per problem.")
    ahead: int = Field(0, ge=0, le=64)
    """How many steps before it trains a rollout is drawn, with the policy as it is then. 0 draws every rollout with the
    newest policy. With an outside sampler, 1 samples and trains at the same time (see off-policy.md)."""
    refill: int = Field(0, ge=0, le=100)
    """How many times to resample problems to replace groups whose rewards are all equal."""
    max_tokens: int = Field(0, ge=0)
    """Maximum tokens per multi-turn episode, prompt included. The episode ends when the next turn might not fit. 0
    means no limit."""
    observation_tokens: int = Field(0, ge=0)
    """Maximum tokens per observation in an episode. A longer observation keeps its beginning, followed by ' ...', and
    its last line. 0 means no limit."""
    turns: Literal["together", "ready"] = Field("together")
    """Which turns of episodes are sampled in one batch. 'together' waits for the slowest environment. 'ready' samples
    the turns whose environments have answered, which keeps the sampler at work while slow tools run. Batches then
    depend on time, and so does the rounding of log-probs."""

    @property
    def rollouts(self) -> int:
        """Return how many rollouts a step draws."""
        return self.prompts_per_step * self.samples_per_prompt


def _check_correction(text: str) -> str:
    names = text.split(",")
    valid = set(names) <= {*RATIO_CORRECTIONS, *MASK_CORRECTIONS} and len(set(names)) == len(names)
    if text in ("auto", "off") or (valid and len(set(names) & set(RATIO_CORRECTIONS)) <= 1):
        return text
    raise ValueError(
        f"'auto', 'off', or at most one of {', '.join(map(repr, RATIO_CORRECTIONS))} (each holds the importance "
        f"ratio, which must count once), with or without {', '.join(map(repr, MASK_CORRECTIONS))}, as in "
        "'token,geometric'"
    )


class UpdateSection(Section):
    """How the policy is updated on the batch of a step."""

    free_on_resume = frozenset({"schedule_steps"})

    epochs: int = Field(2, ge=1, le=100, description="Number of passes over a step's batch.")
    minibatches: int = Field(2, ge=1)
    """Number of minibatches that the batch is split into. Each one is an optimizer step."""
    learning_rate: float = Field(3e-4, ge=0, le=10, description="Adam's learning rate after the warm-up.")
    warmup_steps: int = Field(10, ge=0)
    """Number of steps in which the learning rate rises linearly to its full value."""
    schedule: Literal["constant", "linear", "cosine"] = Field("constant")
    """Learning-rate schedule after the warm-up. 'linear' and 'cosine' fall to 0 at the last step."""
    # A run that is lengthened under a falling schedule would go on with a higher rate than it ended with.
    schedule_steps: int = Field(0, ge=0)
    """Number of steps over which the schedule falls. Afterwards its last rate stays. 0 means run.steps. A run that is
    resumed with more steps keeps its rate with the number of steps that it had."""
    weight_decay: float = Field(0.0, ge=0, description="Weight decay of AdamW.")
    max_grad_norm: float = Field(1.0, gt=0)
    """Maximum global gradient norm. Larger gradients are scaled down to it."""
    reward_limit: float = Field(0.0, ge=0)
    """Clip rewards to within this distance of the step's median. 0 disables clipping."""
    correction: Annotated[str, AfterValidator(_check_correction)] = Field("auto")
    """How the loss corrects for rollouts that another policy drew (see off-policy.md): one of 'token', 'sequence',
    'icepop' and 'dppo', or 'geometric', alone or behind one of them and a comma. 'off' never corrects. 'auto' corrects
    by 'token' once sampler and trainer differ by more than 0.001 nats per token."""
    kl_old_limit: float = Field(0.05, gt=0)
    """Maximum KL to the policy before the step, in nats per token (k3). Above it the step's remaining updates are
    skipped."""

    def rate(self, step: int, steps: int) -> float:
        """Return the learning rate of a step: a linear warm-up, then the schedule down to 0 at its end.

        Args:
            step: Counted from 0.
            steps: Of the run, where ``schedule_steps`` is 0.
        """
        warm = min(1.0, (step + 1) / self.warmup_steps) if self.warmup_steps else 1.0
        end = self.schedule_steps or steps
        done = max(0.0, min(step, end - 1) - self.warmup_steps) / max(1, end - self.warmup_steps)
        falling = {"constant": 1.0, "linear": 1.0 - done, "cosine": 0.5 * (1.0 + math.cos(math.pi * done))}
        return self.learning_rate * warm * falling[self.schedule]


def _check_patience(patience: int, info: ValidationInfo) -> int:
    if patience and info.data.get("every") == 0:
        raise ValueError("0 while evaluate.every is 0, for no evaluation could be better; set evaluate.every too")
    return patience


def _check_set_names(sets: dict[str, str]) -> dict[str, str]:
    for name, source in sets.items():
        if not re.fullmatch(r"[A-Za-z0-9][\w-]*", name) or name in DECODINGS:
            raise ValueError(
                f"names of letters, digits, '_' and '-' (not {' or '.join(DECODINGS)}); one is '{name:.80}'"
            )
        if not source:
            raise ValueError(f"a file, a folder or a split for each name; '{name:.80}' has none")
    return sets


class EvaluateSection(Section):
    """Held-out evaluation before and after training, on the same problems with the same seeds."""

    free_on_resume = frozenset({"patience"})

    problems: int = Field(0, ge=0, description="Number of held-out problems to use, of each set. 0 uses all of them.")
    sets: Annotated[dict[str, PathText], AfterValidator(_check_set_names)] = Field(default_factory=dict)
    """Further sets of held-out problems by name, each as task.args.heldout takes it: a file, a folder, or the name of a
    split. Their scores are recorded as heldout/NAME/... and do not choose a checkpoint."""
    samples: int = Field(1, ge=1, le=10_000)
    """Number of sampled answers to each held-out problem. Scores are means over them (avg@k); above 1 pass@k is
    estimated too, for k = 1, 2, 4, ... and this number."""
    solved: float | None = Field(None)
    """The value of the task's metric from which on an answer counts as solved, for pass@k. Empty is the maximum: 1, or
    the sum of the positive weights where the weighted total is compared."""
    temperature: float | None = Field(None, gt=0, le=10)
    """Sampling temperature of evaluations. Empty is sampling.temperature."""
    top_p: float | None = Field(None, gt=0, le=1)
    """Nucleus sampling of evaluations. Empty is sampling.top_p."""
    every: int = Field(0, ge=0)
    """Number of steps between evaluations during training. 0 disables them. The checkpoint with the best held-out score
    is kept."""
    patience: Annotated[int, AfterValidator(_check_patience)] = Field(0, ge=0)
    """Number of evaluations in a row without a better held-out score after which the run stops early. 0 never stops
    early."""
    deploy: Decoding = Field("sampled")
    """How the trained policy will be used: 'sampled' as in training, or 'greedy'. The verdict on the run, its best
    checkpoint and `steadyrl compare` go by these answers. The others are shown beside them."""


def _check_band(ends: list[float]) -> list[float]:
    if len(ends) != 2 or not 0 < ends[0] < ends[1] < math.inf:
        raise ValueError("two numbers above 0, the lower end and the upper one")
    return ends


class AutopilotSection(Section):
    """The autopilot, which can adjust a run while it trains (see autopilot.md)."""

    mode: Literal["off", "advise", "act"] = Field("off")
    """'advise' only writes to actions.jsonl what it would do. 'act' also does it. 'off' disables the autopilot."""
    kl_band: Annotated[list[float], AfterValidator(_check_band)] = Field(default_factory=lambda: [0.06, 0.3])
    """Lower and upper end of the target band for the KL of a step (kl_step_k3), at the full learning rate, for a policy
    that begins with 0.9 nats per token and a run of at most 40 steps. The run itself moves it, and the learning rate is
    adjusted to stay within it."""
    kl_ref_target: float = Field(0.0, ge=0)
    """Target KL to the reference, in nats per sequence. The autopilot adjusts the KL coefficient to hold it. 0 disables
    this."""
    cooldown: int = Field(40, ge=20)
    """Number of steps after which an adjustment is judged. It is undone if it did not help."""


class RewardSettings(Section):
    """The settings that every reward has; a reward with more of its own derives them from these."""

    # True where asking takes time or money that the soundness of a task is not worth.
    costly: ClassVar[bool] = False

    weight: float = Field(1.0, description="Weight of the reward in the sum of all rewards.")
    answer_after: str = Field("")
    """Mark that ends the reasoning of an answer, such as '</think>'. The reward sees what stands behind the last one
    and the space after it. Empty shows it the whole text."""


class FunctionSettings(RewardSettings):
    """The settings of a reward that is a function of the user's or the task's own."""

    free_on_resume = frozenset({"timeout_s", "retries"})  # a server may have become slow

    # A limit costs a thread for each call, in which math-verify's own limits do not work: none by default.
    timeout_s: float = Field(0.0, ge=0, le=86_400)
    """Maximum seconds per call: for one rollout, or for a whole step where the function takes all completions. 0 means
    no limit. With a limit the function runs in a thread, where signal.alarm does not work."""
    # An exception is more often a mistake than an outage, and a call may cost money: none by default.
    retries: int = Field(0, ge=0, le=20)
    """How many times to repeat a call that raised or took too long, after 1, 2, 4, ... seconds. After the last one its
    rollouts stay unscored (None) and count in reward/unscored."""


def _names(kind: str) -> str:
    return ", ".join(f"'{name}'" for name in BUILT_IN[kind])


class TaskSection(Section):
    """The task. ``args`` are the task's own settings."""

    name: str = Field("search", description=f"{_names('task')}, or an import path.")
    args: Any = Field(default_factory=dict, description="Settings of the task. See its section below.")


class AlgorithmSection(Section):
    """The algorithm. ``args`` are the algorithm's own settings."""

    name: str = Field("ppo", description=f"{_names('algorithm')}, or an import path.")
    args: Any = Field(default_factory=dict, description="Settings of the algorithm. See its section below.")


class CurriculumSection(Section):
    """How training problems are chosen. ``args`` are the curriculum's own settings."""

    name: str = Field("uniform", description=f"{_names('curriculum')}, or an import path.")
    args: Any = Field(default_factory=dict, description="Settings of the curriculum. See its section below.")
