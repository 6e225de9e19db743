"""`steadyrl doctor`: exit codes, JSON, text for people and for files, and one line for what cannot be read."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from steadyrl.cli import text_plot
from steadyrl.cli.main import main
from steadyrl.doctor.series import Series

MADE = Path(__file__).parent.parent / "doctor" / "logs.py"
specification = importlib.util.spec_from_file_location("doctor_logs", MADE)
logs = importlib.util.module_from_spec(specification)
specification.loader.exec_module(logs)


@pytest.fixture
def doctor(monkeypatch, capsys):
    """Run `steadyrl doctor`; return (exit code, stdout, stderr)."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["steadyrl", "doctor", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return ended.value.code, out, err

    return run


@pytest.fixture
def sick(tmp_path):
    return logs.write(tmp_path / "sick.jsonl", logs.sick())


@pytest.fixture
def fine(tmp_path):
    return logs.write(tmp_path / "fine.jsonl", logs.healthy())


def test_a_healthy_run_ends_with_0_and_says_what_was_checked(doctor, fine):
    code, out, _ = doctor(fine, "--full")
    assert code == 0
    line = next(line for line in out.splitlines() if "checks could tell" in line)
    assert line.startswith("healthy") and "kl_runaway" in line and "ratio_off" not in line
    assert "old probabilities (ratio_off)" in out.partition("could not tell")[2]


def test_the_short_answer_of_a_healthy_run_names_no_check(doctor, fine):
    verdict = next(line for line in doctor(fine)[1].splitlines() if line.startswith("healthy"))
    assert "checks could tell and found no harm" in verdict and "kl_runaway" not in verdict


def test_a_sick_run_ends_with_1_and_shows_the_cause_before_what_follows_from_it(doctor, sick):
    code, out, _ = doctor(sick, "--full")
    assert code == 1
    lines = out.splitlines()
    root = next(i for i, line in enumerate(lines) if line.startswith("warning learning_rate_too_high"))
    runaway = next(i for i, line in enumerate(lines) if line.startswith("    warning kl_runaway"))
    spikes = next(i for i, line in enumerate(lines) if line.startswith("        warning value_loss_spikes"))
    assert root < runaway < spikes
    assert "caused by learning_rate_too_high" in lines[runaway]
    told = lines[root:runaway]
    assert any(line.strip().startswith("do: Divide the learning rate") for line in told)
    assert any(line.strip().startswith("source:") for line in told)
    assert any("▲ step 200" in line for line in told)


def test_the_short_answer_fits_on_a_screen_and_says_what_to_change(doctor, tmp_path):
    rows = [{**row, "learning_rate": 1e-3} for row in logs.sick()]
    code, out, _ = doctor(logs.write(tmp_path / "log.jsonl", rows))
    lines = out.splitlines()
    assert code == 1 and len(lines) < 15
    assert lines[1] == "sick"
    assert lines[2].strip().startswith("learning_rate_too_high (learning rate), since step 200")
    assert any(line.strip().startswith("seen: ") for line in lines)
    change = next(line for line in lines if line.strip().startswith("change: "))
    assert "update.learning_rate=" in change and change.endswith("(it is 0.001)")


def test_the_short_answer_says_what_is_worth_knowing_of_a_healthy_run(doctor, tmp_path):
    rows = [{**row, "completion/truncated": 0.05 + 0.0005 * i} for i, row in enumerate(logs.healthy())]
    code, out, _ = doctor(logs.write(tmp_path / "log.jsonl", rows))
    assert code == 0
    assert "worth knowing: truncated (grew): 23% of the completions are cut off" in " ".join(out.split())


def test_the_short_answer_names_a_check_once_that_finds_several_things(doctor, tmp_path):
    rows = [
        {
            "step": i, "reward": 0.5 * (i % 13 == 0), "frac_reward_zero_std": float(i % 13 > 0),
            "completions/clipped_ratio": 0.65, "rewards/brevity_func/mean": 0.5 * (i % 13 == 0),
            "rewards/right_answer_func/mean": 0.0, "rewards/xml_form_func/mean": 0.0,
        }
        for i in range(60)
    ]  # fmt: skip
    path = logs.write(tmp_path / "log.jsonl", rows)
    code, out, _ = doctor(path)
    caused = next(line for line in out.splitlines() if line.strip().startswith("caused by it"))
    assert code == 1 and caused.count("reward_part_idle") == 1
    assert doctor(path, "--full")[1].count("reward_part_idle (") == 2


def test_a_log_of_a_few_rows_is_too_little_to_judge_and_says_what_to_log(doctor, tmp_path):
    rows = [{"step": i, "reward/mean": 0.1 * i, "reward/std": 0.2, "kl_ref_k3": 0.01} for i in range(5)]
    code, out, _ = doctor(logs.write(tmp_path / "log.jsonl", rows))
    assert code == 3
    assert any(line.startswith("too little to judge (") for line in out.splitlines())
    told = next(line for line in out.splitlines() if line.startswith("  not known:"))
    assert "the gradient norm is not logged" in told and "too few rows: 5" in told


def test_the_remedy_can_be_pasted(doctor, tmp_path):
    rows = [{**row, "learning_rate": 1e-3} for row in logs.sick()]
    _, out, _ = doctor(logs.write(tmp_path / "log.jsonl", rows), "--full")
    overrides = re.search(r"^ +set: (.+)$", out, re.MULTILINE)[1].split()
    values = {key: float(value) for key, _, value in (text.partition("=") for text in overrides)}
    assert 1e-5 < values["update.learning_rate"] < 1e-3


def test_json_has_the_schema_of_the_documents(doctor, sick):
    code, out, _ = doctor(sick, "--json")
    assert code == 1
    found = json.loads(out)
    (run,) = found["runs"]
    assert run["path"] == str(sick) and run["trainer"] == "steadyrl" and run["steps"] == 600
    assert (run["first_step"], run["last_step"], run["healthy"]) == (0, 599, False)
    documented = {"check", "severity", "since_step", "cause", "evidence", "remedy", "source"}
    for finding in run["findings"]:
        assert set(finding) == documented | {"message", "overrides", "follows", "depth"}
        assert finding["severity"] in ("critical", "warning", "info")
        assert all(isinstance(line, str) for line in finding["evidence"])
    assert (run["findings"][0]["check"], run["findings"][0]["depth"]) == ("learning_rate_too_high", 0)
    assert all(set(gap) == {"check", "why", "would_tell"} for gap in run["could_not_tell"])
    assert found["unreadable"] == []


def test_several_paths_are_all_examined_and_an_unreadable_one_gives_2(doctor, sick, fine, tmp_path):
    code, out, err = doctor(tmp_path / "nothing", sick, fine, "--json")
    assert code == 2
    found = json.loads(out)
    assert [run["path"] for run in found["runs"]] == [str(sick), str(fine)]
    assert [entry["path"] for entry in found["unreadable"]] == [str(tmp_path / "nothing")]
    assert len(err.splitlines()) == 1 and "there is no file or folder" in err


def test_a_folder_gives_every_run_in_it(doctor, sick, fine, tmp_path):
    code, out, _ = doctor(tmp_path, "--json")
    assert code == 1
    assert [run["path"] for run in json.loads(out)["runs"]] == [str(fine), str(sick)]


def test_a_folder_of_runs_of_several_kinds_gives_each(doctor, fine, tmp_path):
    history = [{"step": i, "loss": 1.0} for i in range(30)]
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    logs.write(tmp_path / "b" / "metrics.jsonl", logs.sick())
    (tmp_path / "a" / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    fine.unlink()
    code, out, _ = doctor(tmp_path, "--json")
    assert code == 1
    assert [(run["path"], run["verdict"]) for run in json.loads(out)["runs"]] == [
        (str(tmp_path / "a" / "trainer_state.json"), "too little to judge"),
        (str(tmp_path / "b" / "metrics.jsonl"), "sick"),
    ]


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_torn_run_in_a_folder_is_listed_and_gives_2_and_the_others_are_shown(doctor, fine, tmp_path, options):
    torn = tmp_path / "torn" / "trainer_state.json"
    torn.parent.mkdir()
    torn.write_text('{"log_history": [{"st')
    code, out, err = doctor(tmp_path, *options)
    assert code == 2
    assert str(fine) in out and "healthy" in out
    assert len(err.splitlines()) == 1 and err.startswith(f"error: '{torn}' is torn")
    if options:
        assert [entry["path"] for entry in json.loads(out)["unreadable"]] == [str(torn)]


@pytest.mark.parametrize(
    ("name", "text"), [("people.csv", "name,age\nann,30\nbob,40\n"), ("state.json", '{"step":3,"tokens":5}')]
)
def test_a_table_without_a_known_metric_is_not_healthy(doctor, tmp_path, name, text):
    (tmp_path / name).write_text(text)
    code, out, err = doctor(tmp_path / name)
    assert (code, out) == (2, "")
    assert f"no known metric in '{tmp_path / name}': found " in err


@pytest.mark.parametrize(
    ("kind", "code", "options"),
    [pytest.param("healthy", 0, ("--json",), marks=pytest.mark.weekly), ("sick", 1, ())],
)
def test_a_reader_that_leaves_early_changes_no_exit_code(tmp_path, kind, code, options):
    log = logs.write(tmp_path / "log.jsonl", getattr(logs, kind)())
    command = "import sys; from steadyrl.cli.main import main; sys.argv = ['steadyrl', 'doctor', *sys.argv[1:]]; main()"
    with subprocess.Popen(
        [sys.executable, "-c", command, log, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        running.stdout.close()
        said = running.stderr.read()
        assert (running.wait(), said) == (code, "")


def write_binary(folder):
    (folder / "log.jsonl").write_bytes(bytes(range(256)) * 10)


def write_empty(folder):
    (folder / "log.jsonl").write_bytes(b"")


def write_prose(folder):
    (folder / "log.jsonl").write_text("nothing to see here\n" * 3)


def write_no_numbers(folder):
    (folder / "log.jsonl").write_text('{"step": 1, "note": "a"}\n{"step": 2, "note": "b"}\n')


def write_nothing(folder):
    pass


def write_folder(folder):
    (folder / "log.jsonl").mkdir()


@pytest.mark.parametrize(
    "write", [write_binary, write_empty, write_prose, write_no_numbers, write_nothing, write_folder]
)
def test_what_is_no_log_gives_one_line_and_2(doctor, tmp_path, write):
    write(tmp_path)
    code, out, err = doctor(tmp_path / "log.jsonl")
    assert code == 2
    assert out == ""
    assert len(err.splitlines()) == 1 and err.startswith("error: ") and "log.jsonl" in err


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("config.yaml", "learning_rate: 1e-4\nbatch: [", "neither JSON nor TOML"),
        ("config.json", "[1, 2]", "expected a JSON object"),
        ("config.toml", '[task]\nname = "search"\n[update]\nlearning_rat = 1.0\n', "learning_rate"),
        ("missing.json", None, "cannot read the config"),
    ],
)
def test_a_config_that_is_none_gives_one_line_and_2(doctor, fine, tmp_path, name, text, said):
    if text is not None:
        (tmp_path / name).write_text(text)
    code, out, err = doctor(fine, "--config", tmp_path / name)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1 and said in err


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"beta": "abc"}, "beta is 'abc'; expected a number"),
        ({"temperature": -1}, "temperature is -1; expected more than 0"),
        ({"sampling": {"temperature": 0}}, "sampling.temperature is 0; expected more than 0"),
        ({"top_p": 1.5}, "top_p is 1.5; expected more than 0 and at most 1"),
        ({"top_p": 0}, "top_p is 0;"),
        ({"kl_coef": -0.1}, "kl_coef is -0.1; expected 0 or more"),
        ({"learning_rate": True}, "learning_rate is True; expected a number"),
        ({"temperature": float("nan")}, "temperature is nan; expected a number"),
        ({"beta": [0.1, "x"]}, "beta is 'x'; expected a number"),
    ],
)
def test_a_setting_that_cannot_be_right_gives_one_line_and_2(doctor, fine, tmp_path, settings, said):
    config = tmp_path / "config.json"
    config.write_text(json.dumps(settings))
    code, out, err = doctor(fine, "--config", config)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1 and said in err


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": "0.7", "top_p": 1, "top_k": -1, "beta": 0.0, "learning_rate": "1e-6", "max_grad_norm": None},
        {"learning_rate": "auto", "temperature": "${oc.env:HEAT}", "beta": [0.1, 0.2], "optim": "sgd"},
        {"rollout": {"val_kwargs": {"temperature": 0}}, "judge": {"request": {"temperature": 0.0}}},
    ],
)
def test_settings_that_a_trainer_may_have_are_taken(doctor, fine, tmp_path, settings):
    config = tmp_path / "config.json"
    config.write_text(json.dumps(settings))
    assert doctor(fine, "--config", config)[0] == 0


def test_settings_of_a_config_tell_what_the_log_leaves_open(doctor, sick, tmp_path):
    config = tmp_path / "elsewhere" / "config.json"  # beside the log it would be read without being named
    config.parent.mkdir()
    config.write_text(json.dumps({"update": {"epochs": 8, "learning_rate": 1e-3}}))
    without = json.loads(doctor(sick, "--json")[1])["runs"][0]["findings"][0]
    told = json.loads(doctor(sick, "--json", "--config", config)[1])["runs"][0]["findings"][0]
    assert (without["cause"], told["cause"]) == ("learning_rate", "epochs")


def test_a_config_of_ours_is_completed_with_its_defaults(doctor, fine, tmp_path, monkeypatch):
    from steadyrl.cli.trainer_config import read_settings

    config = tmp_path / "config.toml"
    config.write_text('[task]\nname = "search"\n[algorithm]\nname = "ppo"\n[rewards]\nretrieval = 1.0\n')
    settings = read_settings(config)
    assert settings["sampling.temperature"] == 1.0
    assert settings["algorithm.args.kl_coef"] > 0


def test_another_trainers_toml_is_taken_as_it_is(tmp_path):
    from steadyrl.cli.trainer_config import read_settings

    config = tmp_path / "orch.toml"
    config.write_text("max_steps = 5\n[sampling]\ntemperature = 0.7\n")
    assert read_settings(config) == {"max_steps": 5, "sampling.temperature": 0.7}


def test_a_log_cannot_steer_the_terminal(doctor, tmp_path):
    rows = [{"step": i, "reward/\x1b[31mred": 0.5, "\x1b]0;title\x07": 1.0, "reward/mean": 0.5} for i in range(60)]
    _, out, _ = doctor(logs.write(tmp_path / "log.jsonl", rows), "--full")
    assert "\x1b" not in out and "\x07" not in out


def test_markup_in_names_is_printed_as_it_is(doctor, tmp_path):
    rows = [{"step": i, "[bold]x[/bold]": 1.0, "loss": 1.0} for i in range(5)]
    _, out, _ = doctor(logs.write(tmp_path / "log.jsonl", rows), "--full")
    assert "[bold]x[/bold]" in out


def test_it_prints_where_only_ascii_can_be_shown(sick):
    code = "import sys; from steadyrl.cli.main import main; sys.argv = ['steadyrl', 'doctor', *sys.argv[1:]]; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, sick, "--full"], capture_output=True, env={"PYTHONIOENCODING": "ascii", "PATH": ""}
    )
    assert done.returncode == 1, done.stderr
    assert "^ step 200" in done.stdout.decode("ascii")


def test_the_doctor_starts_without_torch_matplotlib_or_scipy_stats(fine):
    code = (
        "import sys; from steadyrl.cli.main import main; sys.argv = ['steadyrl', 'doctor', sys.argv[1]]\n"
        "try: main()\n"
        "finally: print('LOADED', *(p for p in ('torch', 'matplotlib', 'scipy.stats', 'jinja2') if p in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code, fine], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "LOADED"


def test_the_plot_rises_with_the_series_and_marks_its_step():
    series = Series("reward", "", "", "reward", np.arange(100), np.arange(100.0))
    lines = text_plot.draw(series, 50, unicode=True)
    left, right = lines[0].removeprefix("99 "), lines[3].removeprefix(" 0 ")
    assert left[0] == "\u2800" and left[-1] != "\u2800"
    assert right[0] != "\u2800" and right[-1] == "\u2800"
    mark = lines[4].index("▲") - 3
    assert abs(mark - len(left) / 2) <= 1


def test_the_plot_of_ascii_has_a_level_per_character():
    series = Series("reward", "", "", "reward", np.arange(5), np.array([0.0, 1.0, 2.0, 3.0, 4.0]))
    assert text_plot.draw(series, None, unicode=False)[0] == "4 _.-=#"


@pytest.mark.parametrize("values", [[1.0, 1.0], [-1e308, 1e308], [0.0, 5e-324]])
def test_the_plot_draws_any_finite_numbers(values):
    series = Series("reward", "", "", "reward", np.arange(2), np.array(values))
    assert len(text_plot.draw(series, 1, unicode=True)) == 6


def test_what_is_worth_knowing_is_not_among_what_has_nothing_to_report(tmp_path, doctor):
    """The two lists share no check, and together with what could not be told they hold each check once."""
    path = logs.write(tmp_path / "well.jsonl", [row | {"completion/truncated": 0.35} for row in logs.healthy()])
    code, out, _ = doctor(path, "--full")
    assert code == 0
    (line,) = [line for line in out.splitlines() if "found no harm" in line]
    count, names = re.search(r"(\d+) of \d+ checks .*\((.*)\)", line).groups()
    (run,) = json.loads(doctor(path, "--json")[1])["runs"]
    told = {finding["check"] for finding in run["findings"]}
    assert told and not told & set(names.split(", "))
    assert int(count) == len(set(names.split(", ")))


def test_two_folders_of_seeds_are_compared_as_sets(doctor, tmp_path):
    rng = np.random.default_rng(3)
    for name, level in (("low", 0.3), ("high", 0.7)):
        (tmp_path / name).mkdir()
        for seed in range(3):
            rewards = level + 0.01 * seed + rng.normal(size=20) * 0.02
            rows = [json.dumps({"step": i, "reward": reward, "kl": 0.1}) for i, reward in enumerate(rewards)]
            (tmp_path / name / f"seed{seed}.jsonl").write_text("\n".join(rows), encoding="utf-8")
    _, out, _ = doctor(tmp_path / "low", tmp_path / "high")
    told = out.partition("what differs, and why:")[2]
    assert "3 runs against 3: reward differs by more than the runs of one set do" in told
    _, out, _ = doctor(tmp_path / "low", tmp_path / "high", "--json")
    assert any(line.startswith("differs at the end: reward: 0.3") for line in json.loads(out)["difference"])
    _, out, _ = doctor(tmp_path / "low")
    assert "what differs" not in out


def test_a_log_beside_itself_or_a_copy_is_said_to_be_the_same(doctor, tmp_path):
    for name, folder in (("a", "one"), ("b", "one"), ("a", "copy"), ("b", "copy")):
        (tmp_path / folder).mkdir(exist_ok=True)
        logs.write(tmp_path / folder / f"{name}.jsonl", logs.sick() if name == "a" else logs.healthy())
    one, copy = tmp_path / "one", tmp_path / "copy"
    for first, second in ((one, one), (one, copy), (one / "a.jsonl", copy / "a.jsonl")):
        assert "nothing: both are the same log, or copies of it" in doctor(first, second)[1]
    assert "the same log" not in doctor(one / "a.jsonl", copy / "b.jsonl")[1]


def test_names_left_out_of_a_log_of_nobody_known_are_shown_and_can_be_explained(doctor, tmp_path):
    path = tmp_path / "own.jsonl"
    rows = ({"step": i, "avg_return": 0.2 + i / 90, "wander": 0.01 * i * i, "gnorm": 1.0 + i % 4} for i in range(80))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    _, out, _ = doctor(path)
    assert "not read: wander; --name wander=OURS says what one is" in out
    code, out, _ = doctor(path, "--name", "wander=kl_ref_k1_seq")
    assert code == 1
    assert "kl_runaway" in out
    for wrong, why in (("wander", "expected YOURS=OURS"), ("wonder=kl", "did you mean 'wander'"), ("wander=kll", "kl")):
        code, _, err = doctor(path, "--name", wrong)
        assert code == 2
        assert why in err


def test_a_report_says_how_the_first_things_went_and_nothing_twice(doctor, tmp_path):
    path = tmp_path / "rare.jsonl"
    rows = (
        {"step": i, "reward": float(i in (4, 31)) / 8, "loss": 0.7 * (i in (4, 31)), "reward_std": 0.0}
        for i in range(60)
    )
    path.write_text("".join(json.dumps({**row, "kl": 0.01 * row["step"]}) + "\n" for row in rows))
    for full in ((), ("--full",)):
        out = doctor(path, *full)[1]
        assert "course, first rows to last: reward 0.0208 -> 0, kl 0.025 -> 0.565" in out
    lines = [line.strip() for line in out.splitlines() if line.strip().startswith("- ")]
    assert len(lines) == len(set(lines))


def test_a_change_of_a_setting_that_the_log_does_not_hold_says_so(doctor, tmp_path):
    path = tmp_path / "spikes.jsonl"
    same = {"reward_std": 0.3, "frac_reward_zero_std": 0.1, "completions/clipped_ratio": 0.0, "learning_rate": 1e-5}
    kl = dict.fromkeys(range(1, 41), 0.002) | {12: 90.0, 13: 40.0, 25: 300.0}
    rows = ({"step": step, "reward": 0.4 + 0.1 * (step % 3), "kl": kl[step], **same} for step in kl)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    changes = [line.strip() for line in doctor(path)[1].splitlines() if line.strip().startswith("change: ")]
    assert changes[0].endswith("(it is 1e-05)")
    assert changes[1] == "change: num_iterations=1 (the log does not say what it is)"


def test_the_full_answer_says_what_is_lacking_once_and_the_short_one_which_table_was_read(doctor, tmp_path):
    arms = "| arm | step | loss |\n|---|---|---|\n| A | 1 | 0.5 |\n\n"
    rows = "".join(f"| {i} | {0.3 + i / 50} |\n" for i in range(1, 9))
    (tmp_path / "two.md").write_text(f"{arms}| step | reward |\n|---|---|\n{rows}")
    out = doctor(tmp_path / "two.md")[1]
    assert "note: rows of other tables, left out: 1; read is that of step, reward" in " ".join(out.split())
    full = " ".join(doctor(tmp_path / "two.md", "--full")[1].split())
    assert "the log holds no completions" in full and "completions would tell" not in full
    assert "gradient norm would tell" not in full and "by the estimator k1 would tell" not in full


def test_rows_without_a_step_are_said_to_be_numbered(doctor, tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("reward,entropy\n" + "".join(f"{0.3 + i / 50},1.5\n" for i in range(8)))
    assert "8 rows (numbered 1 to 8)" in doctor(path)[1]
    path.write_text("reward,entropy\n" + "0.0,1.5\n" * 14)
    assert "since row 1:" in doctor(path)[1]
