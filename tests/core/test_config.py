import json
import re
import tomllib
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from steadyrl.algorithms.grpo import Settings as GrpoSettings
from steadyrl.backends.vllm.settings import VllmSettings
from steadyrl.core import config
from steadyrl.core.errors import ConfigError
from steadyrl.core.plugins import load, of_peers
from steadyrl.loop.tasks.prompts import PromptsTask

LEAST = {"rewards": {"retrieval": 1.0}}  # what has no default
SMALL = LEAST | {"task": {"name": "search", "args": {"corpus": "generated"}}}


def refusal(data, *overrides):
    with pytest.raises(ConfigError) as caught:
        config.resolve(LEAST | data, overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message


def written(tmp_path, text):
    path = tmp_path / "config.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_all_but_the_rewards_has_a_default():
    found = config.resolve(LEAST)
    assert (found.run.steps, found.backend.name, found.rewards) == (100, "torch", {"retrieval": 1.0})
    assert found.task.args.corpus == "stdlib"
    assert found.algorithm.args.lam == 0.95


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"run": {"titel": 1, "zzz": 2}}, "run.titel, run.zzz: unknown setting; known are: checkpoint_every, "),
        ({"update": {"epochs": "x", "minibatches": "x"}}, "update.epochs, update.minibatches: got 'x'; expected a"),
        ({"updat": {}}, "updat: unknown setting; did you mean 'update'?"),
        ({"update": {"epoch": 1}}, "update.epoch: unknown setting; did you mean 'epochs'?"),
        ({"algorithm": {"args": {"lamb": 1}}}, "algorithm.args.lamb: unknown setting; did you mean 'lam'?"),
        ({"task": {"args": {"corpse": "x"}}}, "task.args.corpse: unknown setting; did you mean 'corpus'?"),
        ({"algorithm": {"nam": "ppo"}}, "algorithm.nam: unknown setting; did you mean 'name'?"),
        ({"lora_rank": 8}, "lora_rank: unknown setting; did you mean 'model.lora_rank'?"),
        ({"run": {"name": "first"}}, "run.name: unknown setting; known are: checkpoint_every, "),  # not algorithm.name
        ({"update": {"seed": 8}}, "update.seed: unknown setting; did you mean 'run.seed'?"),
        (
            {"algorithm": {"clip_low": 0.1}},
            "algorithm.clip_low: unknown setting; did you mean 'algorithm.args.clip_low'?",
        ),
        ({"update": {"sampling": {}}}, "update.sampling: unknown setting; did you mean 'sampling'?"),
        ({"task": {"path": "x"}}, "task.path: unknown setting; did you mean 'task.args.path' or 'model.path'?"),
        ({"algorithm": {"args": {"learning_rate": 1}}}, "did you mean 'update.learning_rate'?"),
        ({"learning_rate": 1e-4}, "learning_rate: unknown setting; did you mean 'update.learning_rate'?"),
        ({"update": {"kl_coef": 0.2}}, "update.kl_coef: unknown setting; it is algorithm.args.kl_coef here"),
        ({"task": {"args": {"sampling": 1}}}, "task.args.sampling: unknown setting; did you mean 'sampling'?"),
        ({"num_generations": 8}, "num_generations: unknown setting; it is rollout.samples_per_prompt here"),
        ({"algorithm": {"args": {"beta": 0.1}}}, "algorithm.args.beta: unknown setting; it is algorithm.args.kl_coef"),
        ({"sampling": {"max_completion_length": 8}}, "unknown setting; it is sampling.max_new_tokens here"),
        ({"sampling": {"zzz": 1}}, "known are: logprobs, max_new_tokens, stop, temperature, top_k, top_p"),
    ],
)
def test_an_unknown_key_is_answered_with_one_that_exists(data, message):
    assert message in refusal(data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"run": {"steps": "many"}}, "run.steps: got 'many'; expected a whole number"),
        ({"run": {"steps": "5"}}, "run.steps: got '5'; expected a whole number"),
        ({"run": {"steps": True}}, "run.steps: got True; expected a whole number"),
        ({"run": {"steps": 2.5}}, "run.steps: got 2.5; expected a whole number"),
        ({"run": 5}, "run: got 5; expected a section of settings, such as run.steps"),
        ({"backend": "mlx"}, "backend: got 'mlx'; expected a section of settings, such as backend.name"),
        ({"run": {"trackers": "wandb"}}, """run.trackers: got 'wandb'; expected a list, such as ["a", "b"]"""),
        (
            {"model": {"messages_before": {"role": "user"}}},
            "expected a list of tables, each below its name in double br",
        ),
        ({"run": {"folder": 2024}}, "run.folder: got 2024; expected text in quotes"),
        ({"update": {"learning_rate": "fast"}}, "update.learning_rate: got 'fast'; expected a number"),
        ({"update": {"schedule": "step"}}, "update.schedule: got 'step'; expected 'constant', 'linear' or 'cosine'"),
        ({"rewards": {"length": "much"}}, "rewards.length: got 'much'; expected a finite number"),
        ({"rewards": ["length"]}, "rewards: got ['length']; expected a table of settings"),
        ({"task": {"args": 5}}, "task.args: got 5; expected a table of settings"),
        ({"algorithm": {"args": {"whiten_advantages": 1}}}, "whiten_advantages: got 1; expected true or false"),
    ],
)
def test_a_wrong_type_is_named_with_what_was_got_and_expected(data, message):
    assert message in refusal(data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"run": {"steps": 0}}, "run.steps: got 0; expected a number greater than or equal to 1"),
        ({"sampling": {"temperature": 0}}, "sampling.temperature: got 0; expected a number greater than 0"),
        ({"sampling": {"top_p": 1.5}}, "sampling.top_p: got 1.5; expected a number less than or equal to 1"),
        ({"update": {"learning_rate": float("nan")}}, "update.learning_rate: got nan; expected a finite number"),
        ({"rewards": {"length": float("inf")}}, "rewards.length: got inf; expected a finite number"),
        (
            {"algorithm": {"args": {"gamma": 2}}},
            "algorithm.args.gamma: got 2; expected a number less than or equal to 1",
        ),
        ({"task": {"args": {"prompt": "ask"}}}, "task.args.prompt: got 'ask'; expected a text with {request} in it"),
    ],
)
def test_a_value_out_of_range_is_named_with_the_range(data, message):
    assert message in refusal(data)


def test_all_problems_come_in_one_message():
    message = refusal({"run": {"steps": 0, "sed": 1}, "update": {"epochs": "x"}})
    assert message.count("; ") >= 2
    for place in ("run.steps: got 0", "run.sed: unknown setting", "update.epochs: got 'x'"):
        assert place in message


def test_problems_of_the_task_the_algorithm_and_the_whole_come_in_one_message():
    message = refusal(
        {
            "task": {"args": {"corps": "x"}},
            "algorithm": {"args": {"lam": 7}},
            "rewards": {"length": 0.0},
            "rollout": {"prompts_per_step": 1, "samples_per_prompt": 1},
        }
    )
    for part in ("task.args.corps", "algorithm.args.lam", "every weight is 0", "update.minibatches is 2"):
        assert part in message


def test_a_required_setting_that_is_missing_is_named():
    assert "task.args.path: is missing" in refusal({"task": {"name": "prompts"}})


def test_rewards_need_a_weight():
    assert "rewards: every weight is 0" in refusal({"rewards": {"length": 0.0}})
    assert "none is given" in refusal({"rewards": {}})


def test_more_minibatches_than_rollouts_are_refused_with_both_numbers():
    message = refusal(SMALL, "rollout.prompts_per_step=2", "rollout.samples_per_prompt=3", "update.minibatches=7")
    assert "update.minibatches is 7 but a step has only 6 rollouts" in message
    fits = config.resolve(SMALL, ["rollout.prompts_per_step=2", "rollout.samples_per_prompt=3", "update.minibatches=6"])
    assert fits.update.minibatches == 6


def test_unknown_names_of_parts_are_answered():
    assert "no algorithm is called 'pppo'; did you mean 'ppo'?" in refusal({"algorithm": {"name": "pppo"}})
    assert "no task is called 'serch'; did you mean 'search'?" in refusal({"task": {"name": "serch"}})


@pytest.mark.parametrize("name", ["builtins:len", "steadyrl.core.errors:SteadyError"])
def test_a_task_without_settings_is_refused(name):
    assert f"'{name}' is no task: it " in refusal({"task": {"name": name}})


def test_overrides_replace_values_and_make_sections():
    found = config.resolve(
        LEAST | {"run": {"steps": 5, "seed": 3}},
        ["run.steps=7", "update.learning_rate=1e-4", "algorithm.args.lam = 0.9", "task.args.corpus=generated"],
    )
    assert (found.run.steps, found.run.seed, found.update.learning_rate) == (7, 3, 1e-4)
    assert (found.algorithm.args.lam, found.task.args.corpus) == (0.9, "generated")


def test_the_last_override_of_a_key_holds():
    assert config.resolve(LEAST, ["run.steps=7", "run.steps=8"]).run.steps == 8


def test_steps_that_epochs_make_void_are_refused():
    counted = {"run": {"epochs": 7, "steps": 70}}
    message = refusal(counted, "run.steps = 3")
    assert message == (
        "run.steps = 3 has no effect while run.epochs = 7 says how long the run is; set run.epochs=0 too"
    )
    assert "run.steps = 3 has no effect while run.epochs = 2" in refusal({}, "run.epochs=2", "run.steps=3")
    assert config.resolve(LEAST | counted).run.steps == 70  # as saved configs have it
    found = config.resolve(LEAST | counted, ["run.steps=3", "run.epochs=0"])
    assert (found.run.steps, found.run.epochs) == (3, 0)


@pytest.mark.parametrize("mode", ["off", "advise", "act"])
def test_a_band_that_is_upside_down_is_refused_whatever_the_autopilot_does(mode):
    message = refusal({}, f"autopilot.mode={mode}", "autopilot.kl_band=[0.5, 0.1]")
    assert "autopilot.kl_band: got [0.5, 0.1]; expected two numbers above 0" in message


def test_overrides_leave_the_given_data_alone():
    data = LEAST | {"run": {"steps": 5}}
    config.resolve(data, ["run.steps=7", "rewards.length=2"])
    assert data == {"run": {"steps": 5}, "rewards": {"retrieval": 1.0}}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-0.5B"),
        ("'12'", "12"),
        ('"a = b"', "a = b"),
        ("a=b", "a=b"),
    ],
)
def test_an_override_that_is_no_toml_is_text(text, value):
    assert config.resolve(LEAST, [f"model.path={text}"]).model.path == value


def test_a_reward_by_import_path_keeps_its_dots():
    found = config.resolve(LEAST, ["rewards.my.mod:fn=0.5", "rewards.length=-1"])
    assert found.rewards == {"retrieval": 1.0, "my.mod:fn": 0.5, "length": -1.0}


def test_lists_and_tables_are_read_as_toml():
    found = config.resolve(LEAST, ["rewards={length = 2}", "task.args={corpus = 'generated', corpus_seed = 4}"])
    assert found.rewards == {"length": 2.0}
    assert found.task.args.corpus_seed == 4
    assert "run.steps: got [1, 2]; expected a whole number" in refusal({}, "run.steps=[1, 2]")


@pytest.mark.parametrize("override", ["run.steps", "=3", "run.=3", ".steps=3", "run..steps=3"])
def test_what_is_no_override_is_refused(override):
    assert f"'{override}' is no override; expected section.key=value" in refusal({}, override)


def test_an_override_cannot_go_below_a_value():
    assert "'run.steps.x': run.steps is a value, not a section" in refusal({"run": {"steps": 5}}, "run.steps.x=1")


def test_settings_from_python_may_be_paths_and_numbers_of_numpy():
    found = config.resolve(
        {"run": {"steps": np.int64(3), "folder": Path("a b")}, "rewards": {"retrieval": np.float32(1)}}
    )
    assert (found.run.steps, found.run.folder, found.rewards) == (3, str(Path("a b").absolute()), {"retrieval": 1.0})
    assert type(found.run.steps) is int
    found = config.resolve({"sampling": {"stop": ("\n", "end")}, "rewards": {"retrieval": 1}})
    assert found.sampling.stop == ["\n", "end"]


@pytest.mark.parametrize("key", ["rewards.'my.mod:fn'", 'rewards."my.mod:fn"', "rewards.my.mod:fn"])
def test_the_name_of_a_reward_in_an_override_may_have_quotes_as_in_a_file(key):
    assert config.merge({}, [f"{key}=0.5"]) == {"rewards": {"my.mod:fn": 0.5}}
    assert config.merge({}, [f"{key}.weight=0.5"]) == {"rewards": {"my.mod:fn": {"weight": 0.5}}}


def test_a_file_is_read_and_overridden(tmp_path):
    path = written(tmp_path, '[run]\nsteps = 5\n[rewards]\n"my.mod:fn" = 0.25\n')
    found = config.load(path, ["run.seed=9"])
    assert (found.run.steps, found.run.seed, found.rewards) == (5, 9, {"my.mod:fn": 0.25})


def test_invalid_toml_is_refused_with_its_line(tmp_path):
    for line in ("seed = = 1", "seed = 3h", "seed = 1 // one", "trackers: csv", "preflight = warn"):
        path = written(tmp_path, f"[run]\nsteps = 5\n  {line}\n")
        with pytest.raises(
            ConfigError, match=rf"config\.toml is not valid TOML: .*line 3.*: got {line}; expected name ="
        ):
            config.load(path)
    with pytest.raises(ConfigError, match=r"not valid TOML: .*document\); expected name = value"):
        config.load(written(tmp_path, '[run]\nfolder = """x'))


def test_an_import_path_without_quotes_and_a_file_of_data_are_called_so(tmp_path):
    path = written(tmp_path, "[rewards]\nmy_rewards:score = 1.0\n")
    with pytest.raises(ConfigError, match=r'an import path stands in quotes: "my_rewards:score" = 1\.0$'):
        config.load(path)
    (tmp_path / "data.jsonl").write_text('{"prompt": "2+2"}\n')
    with pytest.raises(ConfigError, match="expected a TOML file, as `steadyrl new --data FILE` writes one"):
        config.load(tmp_path / "data.jsonl")


def test_a_device_without_an_end_is_no_config():
    with pytest.raises(ConfigError, match=r"'/dev/zero' has more than .* characters; expected a TOML file"):
        config.load("/dev/zero")


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path):
    path = written(tmp_path, '\ufeff[run]\nsteps = 5\n[rewards]\n"my.mod:fn" = 0.25\n')
    assert config.load(path).run.steps == 5


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"there is no config file '.*absent\.toml'; expected a TOML file"):
        config.load(tmp_path / "absent.toml")
    with pytest.raises(ConfigError, match=r"is a folder; expected a TOML file$"):
        config.load(tmp_path)
    with pytest.raises(ConfigError, match=r"no config file 'run.seed=4'; .*: name it first, and settings behind it"):
        config.load("run.seed=4", ["config.toml"])


def test_a_run_directory_in_the_place_of_a_config_is_resumed(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"is a folder; .*it is a run directory, and `steadyrl train --resume /"):
        config.load(tmp_path)


def test_a_file_that_is_no_utf8_is_refused(tmp_path):
    path = tmp_path / "config.toml"
    path.write_bytes(b"[run]\nfolder = '\xff'\n")
    with pytest.raises(ConfigError, match="cannot read the config file"):
        config.load(path)


def test_a_dumped_config_resolves_to_itself():
    first = config.resolve(SMALL, ["run.steps=7", "rewards.my.mod:fn=0.5", "algorithm.args.kl_control=adaptive"])
    plain = json.loads(json.dumps(config.dump(first)))
    assert config.resolve(plain) == first
    assert plain["algorithm"]["args"]["kl_control"] == "adaptive"
    assert plain["algorithm"]["args"]["clip_low"] == 0.2  # defaults are written too


def test_a_config_cannot_be_changed():
    with pytest.raises(
        ValueError,
        match=r"steps: got .*, and settings do not change; give it where they are made, as in steadyrl.load_config",
    ):
        config.resolve(LEAST).run.steps = 5


JUDGE = {"model": "m", "base_url": "http://localhost:1"}


def test_a_reward_is_a_weight_or_a_table_with_settings_of_its_own():
    found = config.resolve({"rewards": {"length": 2, "judge": {**JUDGE, "weight": 0.5}}})
    assert config.reward_weights(found) == {"length": 2.0, "judge": 0.5}
    assert found.rewards["judge"].model == "m"
    assert config.resolve(config.dump(found)) == found
    for entry, message in (
        ({"length": {"wieght": 1.0}}, "rewards.length.wieght: unknown setting; did you mean 'weight'?"),
        ({"length": "much"}, "rewards.length: got 'much'; expected a finite number"),
        ({"length": True}, "rewards.length: got True; expected a finite number"),
        ({"length": float("nan")}, "rewards.length: got nan; expected a finite number"),
        ({"judge": {**JUDGE, "opponent": 2}}, "rewards.judge.opponent: unknown setting; did you mean 'opponents'?"),
        ({"judge": {"weight": 1.0}}, "rewards.judge.model is empty"),
    ):
        with pytest.raises(ConfigError, match=re.escape(message)):
            config.resolve({"rewards": entry})


def test_every_reward_may_have_the_settings_that_all_have():
    rewards = {"length": {"weight": 2.0, "answer_after": "</think>"}, "retrieval": {"answer_after": "</think>"}}
    found = config.resolve({"rewards": rewards})
    assert config.reward_weights(found) == {"length": 2.0, "retrieval": 1.0}
    assert found.rewards["retrieval"].answer_after == "</think>"
    assert config.resolve(config.dump(found)) == found


def test_overrides_reach_a_rewards_weight_and_its_settings():
    data = {"rewards": {"length": 1.0, "judge": {**JUDGE, "weight": 0.5}}}
    assert config.reward_weights(config.resolve(data, ["rewards.judge=2"]))["judge"] == 2.0
    assert config.resolve(data, ["rewards.judge=2"]).rewards["judge"].model == "m"
    assert config.resolve(data, ["rewards.judge.mode=group"]).rewards["judge"].mode == "group"
    from_weight = config.resolve({"rewards": {"judge": 0.3}}, [f"rewards.judge.{k}={v}" for k, v in JUDGE.items()])
    assert (from_weight.rewards["judge"].weight, from_weight.rewards["judge"].model) == (0.3, "m")
    path = config.resolve({"rewards": {"length": 1.0}}, ["rewards.a_pkg.mod:fn=0.25"])
    assert path.rewards["a_pkg.mod:fn"] == 0.25


def test_the_own_sampler_has_no_settings_and_an_unknown_one_is_named():
    with pytest.raises(ConfigError, match=r"sampler\.args has no effect with sampler.engine = 'own'"):
        config.resolve({"rewards": {"length": 1.0}, "sampler": {"args": {"url": "http://x"}}})
    with pytest.raises(ConfigError, match=r"no sampler is called 'vlm'; did you mean 'vllm'"):
        config.resolve({"rewards": {"length": 1.0}, "sampler": {"engine": "vlm"}})


def test_what_a_run_may_change_on_resuming_comes_from_its_sections_and_plug_ins():
    assert "run.steps" in config.free_on_resume(config.resolve({"rewards": {"length": 1.0}}))
    free = config.free_on_resume(config.resolve({"rewards": {"judge": JUDGE}, "sampler": {"engine": "vllm"}}))
    assert {"rewards.judge.base_url", "sampler.args.url", "run.epochs"} <= set(free)
    assert "rewards.judge.model" not in free and "update.learning_rate" not in free


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("sampling.max_new_tokens=1" + "0" * 30, "expected a number less than or equal to 1000000"),
        ("backend.threads=9223372036854775808", "backend.threads: got 9223372036854775808"),
        (
            "algorithm.args.clip_high=1e300",
            "algorithm.args.clip_high: got 1e+300; expected a number less than",
        ),
        ("run.steps=1" + "0" * 300, "run.steps: got 1000"),
        ("update.weight_decay=1e200", "update.weight_decay: got 1e+200; expected a number up to 1e+09"),
        ("algorithm.args.value_coef=1e99", "algorithm.args.value_coef: got 1e+99; expected a number up to 1e+09"),
        ("rewards.length=1e99", "rewards.length: got 1e+99; expected a finite number"),
        ("rollout.prompts_per_step=100000000000", "rollout.prompts_per_step: got 100000000000"),
    ],
)
def test_numbers_that_no_run_can_hold_are_refused_in_one_line(override, message):
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        config.resolve({"rewards": {"length": 1.0}}, [override])
    assert len(str(caught.value)) < 600
    assert config.resolve({"rewards": {"length": 1.0}}, ["run.seed=9223372036854775807"]).run.seed == 2**63 - 1


def test_every_setting_that_words_of_other_trainers_lead_to_exists():
    grpo, prompts, vllm = GrpoSettings.model_fields, PromptsTask.Settings.model_fields, VllmSettings.model_fields
    torch = load("backend", "torch").Settings.model_fields
    own = {"algorithm.args": grpo, "task.args": prompts, "sampler.args": vllm, "backend.args": torch}
    for name in {name for text in of_peers("settings").values() for name in re.findall(r"[a-z]+(?:\.[a-z_]+)+", text)}:
        if name.endswith((".md", ".py")):
            continue
        section, _, field = name.rpartition(".")
        fields = own.get(section) or getattr(config.Config.model_fields.get(section), "annotation", None).model_fields
        assert field in fields, name


def reward(completions):
    return [1.0 for _ in completions]


@pytest.mark.parametrize(
    ("data", "place", "thing"),
    [
        ({"rewards": {reward: 1.0}}, "rewards", "test_config:reward"),
        ({"task": {"name": PromptsTask}}, "task.name", "steadyrl.loop.tasks.prompts:PromptsTask"),
        ({"algorithm": {"name": reward}}, "algorithm.name", "test_config:reward"),
    ],
)
def test_a_function_or_class_in_the_place_of_its_import_path_is_answered_with_it(data, place, thing):
    message = refusal(data)
    assert message.startswith(f"{place}: got <") and message.endswith(f"{thing}'") and message.count("expected") == 1


@pytest.mark.parametrize("value", [[{"type": "function"}], {"a": 1}, None])
def test_a_value_that_none_of_several_types_takes_is_one_error(value):
    message = refusal({"model": {"template_args": {"tools": value}}})
    expected = "true or false, a whole number, a number or text in quotes"
    assert message == f"model.template_args.tools: got {value!r}; expected {expected}"


@pytest.mark.parametrize(
    ("text", "is_key"), [("Bearer of-news", True), ("basic English", False), ("token 1234ab", True)]
)
def test_the_value_of_a_header_is_a_key_and_two_plain_words_are_none(text, is_key):
    settings = {"rewards": {"length": 1.0}, "model": {"template_args": {"style": text}}}
    with pytest.raises(ConfigError, match="holds a key") if is_key else nullcontext():
        assert config.resolve(settings).model.template_args == {"style": text}


@pytest.mark.parametrize(
    ("override", "followed"),
    [
        ("model.chat_template=auto", True),
        ("model.chat_template=never", False),
        ("update.learning_rate=3e-4", True),
        ("update.learning_rate=0.0001", False),
        ("algorithm.args.lam=0.95", True),
        ("rewards.retrieval=1.0", True),
        ("rewards.other=1.0", False),
        ("algorithm.args.absent=1", False),
    ],
)
def test_an_override_that_changes_nothing_is_in_force(override, followed):
    assert config.in_force(config.resolve(LEAST), override) == followed


@pytest.mark.parametrize(
    "overrides",
    [
        "run.steps=2 update.learning_rate=1e-4 model.path=a folder",
        "  run.steps=2\nupdate.learning_rate=1e-4\nmodel.path='a folder'  ",
        ["run.steps=2", "update.learning_rate=1e-4", "model.path=a folder"],
        {"run": {"steps": 2}, "update.learning_rate": 1e-4, "model": {"path": Path("a folder")}},
        {"run.steps": np.int64(2), "update": {"learning_rate": np.float64(1e-4)}, "model.path": "a folder"},
    ],
)
def test_overrides_are_a_text_a_list_or_a_dict(overrides):
    resolved = config.resolve(LEAST, overrides)
    assert (resolved.run.steps, resolved.update.learning_rate, resolved.model.path) == (2, 1e-4, "a folder")


@pytest.mark.parametrize("overrides", ["evaluate.top_p=", ["evaluate.top_p="], {"evaluate": {"top_p": None}}])
def test_an_empty_value_unsets_what_has_no_default(overrides):
    before = {**LEAST, "evaluate": {"top_p": 0.5, "solved": ""}}
    evaluate = config.resolve(before, overrides).evaluate
    assert (evaluate.top_p, evaluate.solved) == (None, None)
    assert config.resolve(LEAST, {"algorithm": {"name": "rlaif", "args.reward_threshold": None}})
    assert "evaluate.every: got ''; expected a whole number" in refusal({}, "evaluate.every=")


@pytest.mark.parametrize("value", ["4\nrun.seed = 1", "4\n[update]\nepochs = 1"])
def test_an_override_is_one_setting_and_drops_none_behind_it(value):
    assert f"run.steps: got {value!r}; expected a whole number" in refusal({}, f"run.steps={value}")


def test_a_dict_of_overrides_reaches_what_is_inside_tables():
    overrides = {"rewards": {"my.rewards:brevity": {"weight": 0.5, "answer_after": 'a "b"'}}, "sampling.stop": ["\n"]}
    assert config.merge({}, overrides) == {
        "rewards": {"my.rewards:brevity": {"weight": 0.5, "answer_after": 'a "b"'}},
        "sampling": {"stop": ["\n"]},
    }


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["run.steps=2", 3], "overrides: got \\['run.steps=2', 3\\]; expected texts such as 'run.steps=20', or a dict"),
        (7, "overrides: got 7; expected texts"),
        ({"run": {"steps": object}}, "run.steps: got <class 'object'>; expected a text, a number"),
        ({"run.steps": None}, "run.steps: got ''; expected a whole number"),
    ],
)
def test_overrides_of_no_form_are_refused(overrides, message):
    with pytest.raises(ConfigError, match=message):
        config.resolve(LEAST, overrides)


def test_settings_as_a_file_are_read_as_they_were():
    settings = {
        "run": {"steps": 3, "trackers": ["a", 'say "b"'], "empty": {}},
        "model": {"path": "C:\\x\ny\x7fé", "template_args": {"think": False, "n": 1.5e-7}},
        "rewards": {"my.module:f": {"weight": -0.5}, "length": 1.0},
        "examples": [{"role": "user", "content": "a"}],
    }
    written = tomllib.loads(config.to_toml(settings | {"none": None}))
    assert written == {**settings, "run": {"steps": 3, "trackers": ["a", 'say "b"']}}


def test_a_config_file_takes_overrides_of_every_form(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text(config.to_toml(config.dump(config.resolve(LEAST))))
    assert config.load(path) == config.resolve(LEAST)
    assert config.load(path, {"run": {"steps": 7}}).run.steps == config.load(path, "run.steps=7").run.steps == 7
