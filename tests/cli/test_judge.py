"""`steadyrl judge` with scripted judges whose worth is known."""

import json
import sys
from collections import Counter

import pytest

from steadyrl.cli.main import main
from steadyrl.loop.rewards.judge.calibration import INJECTION
from tests import judge_server as servers
from tests import needs
from tests.judge_server import judge_server

CONFIG = """
[task]
name = "code"
args = {{ problems = "problems.jsonl" }}
[rewards]
tests = 0.8
[rewards.judge]
weight = 0.2
base_url = "{url}"
model = "m"
mode = "{mode}"
price_in = 2.0
"""


@pytest.fixture
def judge(tmp_path, monkeypatch, capsys):
    """Run the command on a few problems; return (exit code, stdout, stderr)."""
    needs.skip_without("jail")
    monkeypatch.chdir(tmp_path)
    lines = [
        {
            "id": f"add {i}", "prompt": f"def f(x):\n    # add {i}\n", "entry_point": "f",
            "starter_code": "def f(x):\n",
            "tests": [[[1], 1 + i], [[2], 2 + i]], "canonical_solution": f"    return x + {i}\n",
            "wrong_solution": f"    return x - {i}\n",
        }
        for i in range(1, 49)
    ]  # fmt: skip
    (tmp_path / "problems.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    def run(server, mode, *arguments, problems=6):
        (tmp_path / "config.toml").write_text(CONFIG.format(url=server.url, mode=mode))
        monkeypatch.setattr(sys, "argv", ["steadyrl", "judge", "config.toml", "--problems", str(problems), *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code or 0, *capsys.readouterr()

    return run


def likes_plus(text):
    return 9 if "+" in text else 2


def test_a_judge_that_knows_the_answers_agrees_with_the_tests(judge, tmp_path):
    with judge_server(servers.scalar(likes_plus)) as server:
        code, out, error = judge(server, "scalar", "--json", "--report", "report", problems=24)
    assert code == 0, error
    found = json.loads(out)
    assert found["problems"] == 24
    assert [found["concordance"][key] for key in ("value", "low", "high")] == [1.0, 1.0, 1.0]
    assert (found["same"], found["unscored"]) == (1.0, 0)
    assert found["spread"] == pytest.approx(0, abs=1e-12)
    assert found["orders_agree"] is None
    assert found["injection"]["value"] == 0.0
    gold, *others = found["kinds"]
    assert (gold["name"], gold["tests"], gold["judge"]) == ("gold answer", 1.0, pytest.approx(0.9))
    assert all(kind["tests"] == 0.0 and kind["judge"] == pytest.approx(0.2) for kind in others)
    # 4 kinds x 24 problems x 3 rounds, and 24 wrong ones as they are and with the sentence; 100 tokens each
    assert found["costs"]["judge/verdicts"] == 4 * 24 * 3 + 2 * 24
    assert found["costs"]["judge/cost"] == pytest.approx((4 * 24 * 3 + 2 * 24) * 100 * 2e-6)
    assert json.loads((tmp_path / "report" / "judge.json").read_text()) == found
    assert "| gold answer | 24 | 1.000 | 0.900 |" in (tmp_path / "report" / "judge.md").read_text()


def test_a_report_that_cannot_be_written_loses_no_results(judge, tmp_path):
    (tmp_path / "folder" / "judge.json").mkdir(parents=True)
    with judge_server(servers.scalar(likes_plus)) as server:
        code, out, err = judge(server, "scalar", "--repeats", "1", "--report", "folder")
    assert (code, "agrees with tests on pairs" in out) == (2, True)
    assert err.splitlines()[-1].startswith("error: cannot write 'folder/judge.json'")


def test_a_judge_that_can_be_talked_round_is_found_out(judge):
    sentence = INJECTION.strip()
    with judge_server(servers.scalar(lambda text: 10 if sentence in text else likes_plus(text))) as server:
        code, out, _ = judge(server, "scalar", "--json", "--repeats", "1")
    assert code == 0
    found = json.loads(out)
    assert found["injection"]["value"] == pytest.approx(0.8)
    assert (found["same"], found["spread"]) == (None, None)


def test_a_judge_that_only_looks_at_the_place_is_found_out(judge):
    with judge_server(servers.pairwise(lambda first, second: 0)) as server:
        code, out, _ = judge(server, "pairwise", "--json", "--repeats", "1")
    assert code == 0
    found = json.loads(out)
    assert found["concordance"]["value"] == 0.5
    assert found["orders_agree"]["value"] == 0.0
    assert found["first_place"]["value"] == 1.0


def test_a_fair_judge_of_pairs_has_no_place(judge):
    def better(first, second):
        return None if likes_plus(first) == likes_plus(second) else int(likes_plus(second) > likes_plus(first))

    with judge_server(servers.pairwise(better)) as server:
        _, out, _ = judge(server, "pairwise", "--json", "--repeats", "1")
    found = json.loads(out)
    assert found["concordance"]["value"] == 1.0
    assert (found["orders_agree"]["value"], found["first_place"]["value"]) == (1.0, 0.5)


@pytest.mark.weekly
def test_a_moody_judge_is_found_out(judge):
    asked = Counter()

    def moody(text):
        asked[text] += 1
        return (len(text) + 5 * asked[text]) % 11

    with judge_server(servers.scalar(moody)) as server:
        _, out, _ = judge(server, "scalar", "--json", "--repeats", "2")
    found = json.loads(out)
    assert found["same"] < 0.2
    assert found["spread"] > 0.1


def test_the_text_names_every_measurement(judge):
    with judge_server(servers.group(lambda text: 10 * likes_plus(text))) as server:
        code, out, _ = judge(server, "group", "--repeats", "2")
    assert code == 0
    assert "judge: m, mode group; 24 known answers to 6 problems, 0 without a verdict" in out
    assert "- agrees with tests on pairs of answers to one problem: 1.000 [1.000, 1.000] (chance 0.5)" in out
    assert "- asked 2 times: 100% of the answers get the same value, mean deviation 0.000" in out
    assert "tokens_in" in out


def test_a_dead_judge_ends_in_one_line(judge):
    with judge_server(servers.scalar(likes_plus)) as server:
        pass
    code, out, error = judge(server, "scalar", "rewards.judge.retries=0")
    assert (code, out) == (2, "")
    assert error.splitlines()[-1].startswith("error: the judge 'm' at http://127.0.0.1:")
    assert "Traceback" not in error


def test_a_gate_that_the_task_does_not_have_is_refused_before_anything_is_asked(judge):
    with judge_server(servers.scalar(likes_plus)) as server:
        code, out, error = judge(server, "scalar", "rewards.judge.gate=parseable")
    assert (code, out, server.exchanges) == (2, "", [])
    assert error.startswith(
        "error: rewards.judge.gate: 'parseable' is no reward of the task; expected one of brevity, "
    )
    assert error.count("\n") == 1


def test_a_task_without_tests_of_its_own_is_refused(judge, tmp_path):
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    with judge_server(servers.scalar(likes_plus)) as server:
        code, _, error = judge(server, "scalar", "task.name=prompts", 'task.args={path="prompts.jsonl"}')
    assert code == 2
    assert "has no metric of its own" in error


def test_a_task_of_several_turns_is_refused_and_not_asked_for_gold_answers(judge):
    with judge_server(servers.scalar(likes_plus)) as server:
        code, out, error = judge(server, "scalar", "task={name='browse'}", "rewards.success=1.0")
    assert (code, out, server.exchanges) == (2, "", [])
    assert error.splitlines()[-1].startswith("error: the task 'browse' is answered in episodes of several turns")
    assert "gold" not in error
