"""Small real runs with a judge that fails, dies, and comes back; and a search for the key in all that they leave."""

import sys
import tomllib

import pytest

from steadyrl.cli.main import main
from steadyrl.core import config
from steadyrl.core.errors import EngineError
from steadyrl.core.rundir import RunDir, read_lines
from steadyrl.loop import train as train_module
from steadyrl.loop.train import open_session, train
from tests import judge_server as servers
from tests.judge_server import judge_server

KEY = "sk-test-8f3b0c5d7e9a4411"
CONFIG = """
[run]
steps = 6
checkpoint_every = 100
rollouts_every = 1
folder = "runs"
preflight = "off"
[backend]
name = "toy"
[task]
name = "prompts"
args = {{ path = "prompts.jsonl" }}
[rewards.judge]
weight = 1.0
base_url = "{url}"
model = "m"
cache = "{cache}"
retries = {retries}
max_failed = 0.6
{more}
[sampling]
max_new_tokens = 4
[rollout]
prompts_per_step = 8
samples_per_prompt = 2
[update]
learning_rate = 0.1
warmup_steps = 0
kl_old_limit = 10.0
"""


def count_of_a(text):
    return min(10, 3 * text.count("a"))


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts.jsonl").write_text("".join(f'{{"prompt": "{letter * 3}"}}\n' for letter in "abcdefghijklmnop"))
    return tmp_path


@pytest.fixture
def steadyrl(here, monkeypatch, capfd):
    """Run the command line; return (exit code, stdout, stderr)."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["steadyrl", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code or 0, *capfd.readouterr()

    return run


def write_config(here, url, retries=0, cache="", more=""):
    (here / "config.toml").write_text(CONFIG.format(url=url, retries=retries, cache=cache, more=more))


def only_run(here):
    (path,) = (here / "runs").iterdir()
    return RunDir.open(path)


def failing(share, honest):
    """Fail every so many-th request, in one of the ways that servers have."""
    faults = [servers.status(500), servers.status(429), servers.hang_up, servers.half, lambda exchange: "no verdict"]

    def respond(exchange):
        if exchange.number * share % 1 < share:
            return faults[exchange.number % len(faults)](exchange)
        return honest(exchange)

    return respond


@pytest.fixture
def run_of(here):
    """Train without the command line, and so without a report; return the run directory."""

    def run(url, name="run", **settings):
        session = open_session(
            config.resolve(
                {
                    **tomllib.loads(CONFIG.format(url=url, retries=0, cache="", more="window = 1")),
                    "evaluate": {"problems": 2},
                },
                [f"{key.replace('__', '.')}={value}" for key, value in settings.items()],
            )
        )
        path = here / name
        path.mkdir(exist_ok=True)
        found = RunDir(path)
        train(session, found, attempt=int(bool(found.checkpoints())))
        return found

    return run


def test_a_judge_that_fails_three_times_in_ten_leaves_rollouts_unscored_and_the_run_goes_on(run_of):
    with judge_server(failing(0.3, servers.scalar(count_of_a))) as server:
        run = run_of(server.url, rewards__judge__window=10)
    steps = run.metrics()
    assert len(steps) == 6
    unscored = [step["reward/unscored"] for step in steps]
    assert 0.1 < sum(unscored) / 6 < 0.4
    assert all(step["judge/failed"] > 0 for step in steps)
    rollouts = [r for path in sorted((run.path / "rollouts").iterdir()) for r in read_lines(path)]
    assert {r["reward"] is None for r in rollouts} == {True, False}
    assert all((r["reward"] is None) == bool(r["unscored"]) for r in rollouts)


def test_with_further_tries_the_same_judge_costs_requests_and_no_rollout(run_of):
    with judge_server(failing(0.3, servers.scalar(count_of_a))) as server:
        steps = run_of(server.url, run__steps=2, rewards__judge__retries=4).metrics()
    assert sum(step["judge/requests"] for step in steps) > sum(step["judge/verdicts"] for step in steps)
    assert max(step["reward/unscored"] for step in steps) < 0.1


def test_a_dead_judge_stops_the_run_in_one_line_and_the_run_goes_on_when_it_is_back(here, steadyrl):
    honest = servers.scalar(count_of_a)
    with judge_server(honest) as server:
        write_config(here, server.url, more="window = 1")

        def dies(exchange):
            if exchange.number > 40:  # within the third step or the fourth
                return servers.hang_up(exchange)
            return honest(exchange)

        server.respond = dies
        code, out, error = steadyrl("train", "config.toml")
        assert code == 2
        lines = [line for line in error.splitlines() if line.startswith("error:")]
        assert len(lines) == 1
        assert "the judge 'm' at http://127.0.0.1:" in lines[0]
        assert "rewards.judge.max_failed = 0.6" in lines[0]
        assert "Traceback" not in out + error
        run = only_run(here)
        assert run.info()["status"] == "failed"
        done = len(run.metrics())
        assert 0 < done < 6
        assert run.checkpoints() == [done]

        server.respond = honest
        code, _, error = steadyrl("train", "--resume", run.path)
        assert code == 0, error
        assert [step["step"] for step in run.metrics()] == [0, 1, 2, 3, 4, 5]
        assert [step["attempt"] for step in run.metrics()] == [0] * done + [1] * (6 - done)


def test_a_run_that_its_judge_broke_off_ends_as_the_unbroken_one(run_of):
    """Nothing of the step that failed may have been trained."""
    honest = servers.scalar(count_of_a)
    with judge_server(honest) as server:
        whole = run_of(server.url, "whole")
        server.exchanges.clear()
        server.respond = lambda exchange: servers.status(500)(exchange) if exchange.number > 40 else honest(exchange)
        with pytest.raises(EngineError):
            run_of(server.url, "broken")
        server.respond = honest
        broken = run_of(server.url, "broken")
    assert {step["attempt"] for step in broken.metrics()} == {0, 1}
    names = ("reward/mean", "grad_norm", "entropy", "loss/policy")
    series = [[[step[name] for name in names] for step in run.metrics()] for run in (whole, broken)]
    assert len(series[0]) == 6
    assert series[0] == series[1]


def test_a_judge_that_dies_in_an_evaluation_takes_back_its_step_alone(run_of, monkeypatch):
    honest = servers.scalar(count_of_a)
    evaluate = train_module._evaluate_now

    def dies_at_the_second_step(session, run, state, watch):
        if state.step == 2:
            server.respond = servers.status(500)
        return evaluate(session, run, state, watch)

    monkeypatch.setattr(train_module, "_evaluate_now", dies_at_the_second_step)
    with judge_server(honest) as server:
        with pytest.raises(EngineError):
            run_of(server.url, evaluate__every=1)
        server.respond = honest
        run = RunDir("run")
        assert [step["step"] for step in run.metrics()] == [0]
        assert run.checkpoints() == [1]  # so that a resume makes the step and its evaluation again


def test_the_key_is_in_no_file_of_a_run_and_in_nothing_printed(here, steadyrl, monkeypatch):
    """The endpoint sends it back wherever an endpoint can: in refusals, in garbage, in verdicts."""
    monkeypatch.setenv("JUDGE_KEY", KEY)
    honest = servers.scalar(count_of_a)

    def respond(exchange):
        sent = exchange.headers["Authorization"]
        assert sent == f"Bearer {KEY}"
        match exchange.number % 6:
            case 0:
                return servers.send(exchange, 400, f'{{"error": {{"message": "bad key {sent}"}}}}'.encode())
            case 1:
                return servers.send(exchange, 200, f"<html>{sent}</html>".encode())
            case 2:
                return sent
            case 3:
                return honest(exchange).replace("so it is", f"I was told {sent}")
        return honest(exchange)

    with judge_server(respond) as server:
        write_config(here, server.url, cache="cache", more='key_env = "JUDGE_KEY"')
        code, out, error = steadyrl("train", "config.toml", "rewards.judge.max_failed=0.9")
        assert code == 0, error
        server.respond = lambda exchange: servers.send(exchange, 401, exchange.headers["Authorization"].encode())
        code, *printed = steadyrl("train", "config.toml", 'rewards.judge.cache=""')
        assert code == 2
    files = [path for path in here.rglob("*") if path.is_file()]
    assert len(files) > 20
    secret = KEY.removeprefix("sk-test-").encode()  # a part of it is a leak too
    assert [path.name for path in files if secret in path.read_bytes()] == []
    assert secret.decode() not in "".join([out, error, *printed])
    notes = [record["note"] for path in here.rglob("rollouts/*.jsonl") for record in read_lines(path)]
    assert any("I was told Bearer [key]" in note for note in notes)


def test_a_key_in_the_config_is_refused_before_there_is_a_run(here, steadyrl):
    write_config(here, "http://localhost:1", more=f'key_env = "{KEY}"')
    code, out, error = steadyrl("train", "config.toml")
    assert code == 2
    assert "rewards.judge.key_env: holds a key" in error
    assert KEY not in out + error
    assert not (here / "runs").exists()


def test_an_address_with_a_password_is_refused_before_there_is_a_run(here, steadyrl):
    write_config(here, f"https://user:{KEY}@judge.example/v1")
    code, out, error = steadyrl("train", "config.toml")
    assert code == 2
    assert KEY not in out + error
    assert not (here / "runs").exists()
