"""All checks together: every one is run, where it applies, and what they say is put in order."""

import importlib
import json
import pkgutil
import sys
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, SimpleNamespace

import numpy as np
import pytest

from steadyrl.core.errors import ConfigError, RunError
from steadyrl.doctor import checks as room
from steadyrl.doctor.causes import tree
from steadyrl.doctor.check import WORDS, Check
from steadyrl.doctor.examine import CHECKS, diagnose, examine
from steadyrl.doctor.names.traits import traits
from steadyrl.doctor.series import Run, Series
from tests import needs

sys.path.insert(0, str(Path(__file__).parent))
import logs


def run_of(algorithm="", **quantities):
    series = {
        name: (Series(name, "", "", name, np.arange(len(values)), np.asarray(values, float)),)
        for name, values in quantities.items()
    }
    return Run("made", "unknown", algorithm, series, traits=traits(algorithm, {}, series))


def test_every_check_of_every_module_is_run():
    modules = [
        importlib.import_module(f"{room.__name__}.{found.name}") for found in pkgutil.iter_modules(room.__path__)
    ]
    there = {value.name for module in modules for value in vars(module).values() if isinstance(value, Check)}
    assert sorted(check.name for check in CHECKS) == sorted(there)


def test_a_sick_run_is_traced_to_its_learning_rate(tmp_path):
    (diagnosis,) = diagnose(logs.write(tmp_path / "metrics.jsonl", logs.sick()))
    chain = [(placed.finding.check, placed.depth) for placed in tree(diagnosis.findings)]
    assert chain[0] == ("learning_rate_too_high", 0)
    assert ("kl_runaway", 1) in chain
    assert chain.index(("value_loss_spikes", 2)) > chain.index(("kl_runaway", 1))
    assert abs(diagnosis.findings[0].since_step - logs.SICK_FROM) <= 20
    assert not diagnosis.healthy


def test_a_healthy_run_is_healthy(tmp_path):
    (diagnosis,) = diagnose(logs.write(tmp_path / "metrics.jsonl", logs.healthy()))
    assert diagnosis.healthy, diagnosis.findings


def test_equal_runs_give_equal_diagnoses(tmp_path):
    log = logs.write(tmp_path / "metrics.jsonl", logs.sick())
    assert diagnose(log)[0].findings == diagnose(log)[0].findings


def test_what_an_algorithm_does_not_have_is_no_gap():
    gaps = {algorithm: {gap.check for gap in examine(run_of(algorithm)).unknown} for algorithm in ("", "grpo", "ppo")}
    assert "value_loss_spikes" in gaps[""] and "value_loss_spikes" in gaps["ppo"]
    assert "value_loss_spikes" not in gaps["grpo"]
    assert "advantage_baseline" in gaps["grpo"] and "advantage_baseline" not in gaps["ppo"]


def test_imitation_of_good_answers_is_no_reward_that_broke_and_no_warped_sampling():
    """Rewards all 1, an entropy that falls to a tenth, and texts that are likelier than what the policy writes."""
    steps = np.arange(160)
    fell = 0.2 + 3.0 * np.exp(-steps / 10) + 0.001 * (steps % 3)
    logged = {
        "reward": [1.0] * 160, "reward_std": [0.0] * 160, "entropy": fell.tolist(), "loss": (2 * fell).tolist(),
        "loss_nll": (2 * fell).tolist(),
    }  # fmt: skip
    sampled = Series("entropy", "nats/token", "sampled", "entropy_sampled", steps, 0.6 * fell)

    def names(algorithm):
        run = run_of(algorithm, **logged)
        exact = [replace(series, unit="nats/token", estimator="exact") for series in run.series["entropy"]]
        run = replace(run, series={**run.series, "entropy": (*exact, sampled)})
        return {finding.check for finding in examine(run).findings if finding.severity != "info"}

    assert {"reward_constant", "entropy_collapse", "warped_sampling"} <= names("reinforce")
    assert names("sft") == set()
    assert names("raft") == {"reward_constant", "entropy_collapse"}


def test_settings_given_beside_a_log_count_where_it_has_none(tmp_path):
    log = logs.write(tmp_path / "metrics.jsonl", logs.healthy(50))
    (diagnosis,) = diagnose(log, {"sampling.temperature": 0.7, "update.epochs": 3})
    assert diagnosis.run.settings["temperature"] == 0.7
    assert diagnosis.run.settings["epochs"] == 3


def test_the_span_is_that_of_all_series():
    run = run_of(reward=[1.0] * 5)
    later = replace(run.series["reward"][0], steps=np.arange(3, 8))
    assert replace(run, series={**run.series, "kl_ref": (later,)}).span == (0, 7)
    assert run_of().span == (0, 0)


def test_a_run_without_anything_is_all_gaps_and_no_crash():
    diagnosis = examine(run_of())
    assert diagnosis.findings == ()
    assert len(diagnosis.unknown) > 20


def test_what_a_log_lacks_is_said_in_words():
    names = {name for gap in examine(run_of()).unknown for need in gap.would_tell for name in need.split("|")}
    names |= {name for check in CHECKS for need in check.needs for name in need.split("|")}
    assert sorted(names - set(WORDS)) == []
    texts = [gap.message for gap in examine(run_of()).unknown] + list(examine(run_of()).missing)
    assert [text for text in texts if "|" in text or "reward_std" in text] == []
    assert any("no KL to the reference and no reward" in text for text in texts)


@pytest.mark.parametrize("values", [[], [1.0], [np.nan] * 50, [np.inf] * 50, [0.0] * 50, [1e300, -1e300] * 30])
def test_no_check_fails_on_odd_numbers(values):
    names = [need for check in CHECKS for several in check.needs for need in several.split("|")]
    for algorithm in ("ppo", "grpo"):
        diagnosis = examine(run_of(algorithm, **{name: values for name in names if "/" not in name}))
        assert all(gap.state == "unknown" for gap in diagnosis.unknown)


def test_a_path_that_is_not_there_is_an_error_that_says_what_to_give(tmp_path):
    with pytest.raises(RunError, match="there is no file or folder"):
        diagnose(tmp_path / "nothing")


def test_generation_settings_beside_a_log_of_trls_old_ppo_name_warped_sampling_before_all_else(tmp_path):
    rng, path = np.random.default_rng(3), tmp_path / "log.jsonl"
    rows = (
        {
            "objective/kl": 7.0 + 12.0 * rng.normal(),
            "objective/kl_coef": 0.4,
            "ppo/mean_scores": 0.8,
            "ppo/std_scores": 0.2,
            "tokens/responses_len_mean": 24.0,
        }
        for _ in range(400)
    )
    logs.write(path, rows)
    given = {"temperature": 0.8, "top_p": 1.0, "top_k": 40}
    (named,) = diagnose(path, {f"generation_kwargs.{name}": value for name, value in given.items()})
    (unnamed,) = diagnose(path)
    assert [finding.check for finding in named.findings[:2]] == ["warped_sampling", "negative_kl"]
    assert named.findings[0].overrides == ("generation_kwargs.temperature=1", "generation_kwargs.top_k=0")
    assert unnamed.findings[0].check == "negative_kl"


@pytest.mark.parametrize(("rising", "verdict"), [(True, "healthy"), (False, "too little to judge")])
def test_a_reward_that_rises_leaves_a_gradient_that_nobody_logs_minor(tmp_path, rising, verdict):
    chance = np.random.default_rng(7)
    rows = []
    for i in range(60):  # a rise at first, then batches of one prompt each, of which many are all right or all wrong
        right = chance.binomial(8, 0.15 + 0.5 * min(i / 6, 1) if rising else 0.45) / 8
        rows.append(
            {
                "step": 5 * i,
                "reward": float(right if chance.random() < 0.6 else chance.integers(0, 2)),
                "kl": 0.001 + 0.0005 * i,
                "zero_adv_frac": float(chance.random() < 0.3),
                "length": 250.0 + 40 * chance.random(),
            }
        )
    (tmp_path / "history.json").write_text(json.dumps(rows))
    (diagnosis,) = diagnose(tmp_path / "history.json")
    assert diagnosis.verdict == verdict


def _rows(count=60):
    return [
        {"step": i, "reward": 0.1 + i / 100, "drift": 0.002 * i * i, "entropy": 1.5 - 0.02 * i, "grad_norm": 1.0}
        for i in range(count)
    ]


def test_rows_in_memory_are_read_as_those_of_a_file(tmp_path):
    rows = _rows()
    path = tmp_path / "run.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (of_file,) = diagnose(path)
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    arrays = [{name: np.float64(value) if name != "step" else value for name, value in row.items()} for row in rows]
    for log in (rows, iter(rows), columns, arrays):
        (diagnosis,) = diagnose(log)
        assert diagnosis.run.path == "the rows"
        assert (diagnosis.verdict, diagnosis.findings) == (of_file.verdict, of_file.findings)
        assert diagnosis.run.unknown == ("drift",)


@pytest.mark.parametrize("log", [[], [1, 2], 7, None, b"reward: 1"])
def test_what_is_neither_a_path_nor_rows_is_refused(log):
    with pytest.raises(RunError, match="expected the path of a log"):
        diagnose(log)


class Frame:
    """Has what the doctor asks of a DataFrame; the method is that of polars or of Arrow."""

    columns = ("step", "reward")

    def __init__(self, method, rows):
        setattr(self, method, lambda: rows)


@pytest.mark.parametrize("method", ["to_dicts", "to_pylist"])
def test_frames_of_any_library_are_rows(method):
    rows = [{"step": 2 * i, "reward": i / 90} for i in range(40)]
    (expected,) = diagnose(rows)
    assert repr(diagnose(Frame(method, rows))) == repr([expected])
    both = diagnose({"first": Frame(method, rows), "second": Frame(method, rows[:30])})
    assert [diagnosis.run.path for diagnosis in both] == ["the rows#first", "the rows#second"]


def test_a_frame_of_pandas_with_names_in_its_index_and_of_several_parts_is_read():
    pandas = needs.package("pandas")
    frame = pandas.DataFrame(
        {
            "arm": ["a"] * 20 + ["b"] * 20,
            "step": [*range(0, 60, 3)] * 2,
            "reward": np.linspace(0, 1, 40),
            "kl": np.linspace(0.0, 0.1, 40),
        }
    )
    indexed = diagnose(frame.set_index(["arm", "step"]))
    assert [diagnosis.run.span for diagnosis in indexed] == [(0, 57), (0, 57)]
    one = frame[:20].drop(columns="arm").set_index("step")
    one.columns = pandas.MultiIndex.from_product([["train"], one.columns])
    (nested,) = diagnose(one)
    assert {series[0].source for series in nested.run.series.values()} == {"train/reward", "train/kl"}
    assert nested.run.span == (0, 57)
    with pytest.raises(RunError, match="expected the path of a log, a run, or rows"):
        diagnose(frame.reward)


def test_columns_may_be_in_any_mapping():
    columns = MappingProxyType({"step": np.arange(5, 45), "reward": np.linspace(0, 1, 40)})
    (diagnosis,) = diagnose(columns)
    assert diagnosis.run.span == (5, 44)


def test_rows_that_hold_themselves_or_names_that_are_no_text_are_refused():
    circle = {"step": 1, "reward": 0.5}
    circle["more"] = circle
    for row in (circle, {"step": 1, "reward": {("a", "b"): 0.5}}):
        with pytest.raises(RunError, match=r"which is no row: .*; expected numbers by their names"):
            diagnose([row])


def test_the_text_of_a_log_in_place_of_its_path_is_one_short_error():
    with pytest.raises(RunError, match="expected the path of a log, not its text") as error:
        diagnose("\n".join(json.dumps({"step": i, "reward": 0.25}) for i in range(400)))
    assert len(str(error.value)) < 200


def test_settings_may_be_an_object_of_them_and_others_are_refused():
    rows = [{"step": i, "reward": i / 50, "grad_norm": 1.0} for i in range(40)]
    args = {"learning_rate": 3e-5, "max_completion_length": 77}
    runs = [diagnose(rows, settings)[0].run for settings in (args, SimpleNamespace(**args), Args(args))]
    trainer = SimpleNamespace(state=SimpleNamespace(log_history=rows), args=Args(args))
    runs += [diagnose(trainer)[0].run, diagnose(trainer, {"max_completion_length": 77})[0].run]
    assert all(run.config["max_completion_length"] == 77 for run in runs)
    assert [run.config.get("learning_rate") for run in runs] == [3e-5] * 4 + [None]
    for wrong in ("learning_rate=1e-5", [1e-5], 7):
        with pytest.raises(ConfigError, match="for the settings; expected a dict"):
            diagnose(rows, wrong)
    for names in ("gain=reward", {"gain": 1}, ["gain"]):
        with pytest.raises(ConfigError, match="for names; expected a dict"):
            diagnose(rows, names=names)


class Args:
    """Settings as those of transformers: the dict is made by a method."""

    def __init__(self, settings):
        self.to_dict = lambda: settings


def test_a_diagnosis_shows_who_wrote_the_log_what_was_left_out_and_what_to_change():
    rows = [{"step": i, "reward": 0.1 + i / 900, "mystery": 2.0} for i in range(40)]
    (unplaced,) = diagnose(rows)
    first, verdict, left_out, *_ = repr(unplaced).splitlines()
    assert first == "the rows: an unknown trainer, 40 rows (0 to 39)" and verdict.strip().startswith(unplaced.verdict)
    assert left_out.strip() == "not read: mystery"
    cut = [
        {"step": i, "reward": 0.5, "reward_std": 0.2, "completions/mean_length": 90, "completions/clipped_ratio": 0.9}
        for i in range(40)
    ]
    (truncated,) = diagnose(cut, {"max_completion_length": 96})
    assert "        change: max_completion_length=" in repr(truncated) and "(it is 96)" in repr(truncated)


def test_a_name_that_the_user_explains_is_read_and_one_that_the_log_lacks_is_refused():
    (told,) = diagnose(_rows(), names={"drift": "kl_ref_k1_seq"})
    (series,) = told.run.series["kl_ref"]
    assert (series.source, series.unit, series.estimator) == ("drift", "nats/sequence", "k1")
    assert told.run.unknown == ()
    for ours, unit in (("kl_ref_k1", "nats/token"), ("kl", "")):
        assert diagnose(_rows(), names={"drift": ours})[0].run.series["kl_ref"][0].unit == unit
    with pytest.raises(ConfigError, match="no log has a metric 'drifft'; did you mean 'drift'"):
        diagnose(_rows(), names={"drifft": "kl"})
    with pytest.raises(ConfigError, match="expected a name of docs/metrics"):
        diagnose(_rows(), names={"drift": "distance_to_moon"})


def test_settings_may_be_nested():
    (diagnosis,) = diagnose(_rows(), {"optimizer": {"lr": 0.5}})
    assert diagnosis.run.config == {"optimizer.lr": 0.5}
