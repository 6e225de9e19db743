import gzip
import html
import json
import math
import os
import platform
import re
import time

import pytest

from steadyrl.core.rundir import RunDir, append_line, write_json, write_lines
from steadyrl.doctor.examine import diagnose
from tests import needs
from tests.show.web.ask import ask, ask_json
from tests.show.web.made import FINDING, make_run, metrics, rollout

needs.skip_without_packages("starlette", extra="web")

from steadyrl.show.web.app import create  # noqa: E402 # it needs the packages

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>\x00\x1b[31m\u202e"


@pytest.fixture
def folder(tmp_path):
    make_run(tmp_path / "ppo-one", rate=0.001)
    make_run(tmp_path / "grpo-two", algorithm="grpo", status="failed", steps=12, rate=0.01)
    return tmp_path


def test_the_table_is_filtered_and_sorted_by_its_address(folder):
    app = create(folder)
    both = ask(app, "/?sort=step").text
    assert both.index("grpo-two") < both.index("ppo-one")  # 12 steps, 20 steps
    other = ask(app, "/?sort=-step").text
    assert other.index("ppo-one") < other.index("grpo-two")
    assert "ppo-one" not in ask(app, "/?algorithm=grpo").text
    assert "ppo-one" not in ask(app, "/?q=two").text
    assert "kl_runaway" in both
    assert "No run fits" in ask(app, "/?q=nothing").text


def test_a_run_that_cannot_be_read_is_named_and_hides_no_other(folder):
    (folder / "ppo-one" / "run.json").write_text("{")
    text = ask(create(folder), "/").text
    assert "cannot read" in text
    assert "grpo-two" in text
    assert "cannot read" in ask(create(folder), "/run/ppo-one").text
    (folder / "grpo-two" / "resolved.json").write_text("[]")
    assert "damaged" in ask(create(folder), "/run/grpo-two").text


def test_a_run_shows_the_settings_that_differ_from_the_defaults(folder):
    text = ask(create(folder), "/run/grpo-two").text
    row = text[text.index("<code>update.learning_rate</code>") :]
    assert row.index("<code>0.01</code>") < row.index("</tr>")


def test_a_running_run_shows_the_forecast_of_its_score_where_its_intervals_have_held(tmp_path):
    def scored(name, steps, status):
        run = make_run(tmp_path / name, steps=0, status=status, planned=20)
        for step in range(steps):
            score = 1 - math.exp(-step / 6) + 0.01 * math.sin(step * len(name))
            append_line(run.metrics_file, {**metrics(step), "time": time.time(), "heldout/retrieval": score})

    scored("now", 10, "running")
    app = create(tmp_path)
    assert (
        "forecast of the score" not in ask(app, "/run/now").text
    )  # no run is known that its intervals could have held on
    for i in range(1, 11):
        scored("old" * i, 20, "finished")
    make_run(tmp_path / "torn", steps=0).info_file.write_text("{")  # left out
    for page in ("/run/now", "/run/now/live"):
        text = ask(app, page).text
        assert "forecast of the score" in text and "at the last step; going on is worth it" in text
    assert "forecast of the score" not in ask(app, "/run/old").text  # it has ended


def test_of_a_run_that_goes_on_only_what_is_new_is_read(tmp_path):
    def scored(run, steps):
        for step in steps:
            append_line(run.metrics_file, {**metrics(step), "time": time.time(), "heldout/retrieval": 1 - 0.9**step})

    for i in range(9):
        scored(make_run(tmp_path / f"old{i}", steps=0), range(20))
    run = make_run(tmp_path / "now", steps=0, status="running", planned=40)
    scored(run, range(12))
    app = create(tmp_path)
    first = ask(app, "/run/now/live").text
    assert "forecast of the score" in first
    size = run.metrics_file.stat().st_size
    with run.metrics_file.open("r+b") as file:
        file.write(b" " * (size - 1))  # who read the file anew would see two steps
    scored(run, range(12, 14))
    again = ask(app, "/run/now/live").text
    assert "forecast of the score" in again
    assert again != first
    assert ask_json(app, "/run/now/curves")["rows"] == 14


@pytest.mark.parametrize(
    ("content", "name", "said"),
    [
        (gzip.compress(b'{"s":1}\n' * 4_300_000, 1), "x.gz", "unpacks to more than 32 MiB"),
        (gzip.compress(bytes(40 << 20), 1), "x.gz", "unpacks to more than 32 MiB"),
        (gzip.compress(b"step,loss\n" + b"1,2\n" * 600_000, 1), "x.csv", "more than 500,000 lines"),
        (b'{"loss": [' + b"[]," * 4_100_000 + b"1]}", "x.json", "more than 4,000,000 values"),
        (b"1\r" * 600_000, "x.log", "more than 500,000 lines"),
    ],
)
def test_a_log_that_would_hold_up_the_page_is_refused_before_it_is_read(tmp_path, content, name, said):
    began = time.process_time()
    text = ask(create(tmp_path), f"/doctor?name={name}", "POST", content).text
    assert time.process_time() - began < 5  # it took a minute, and 2.5 GB
    assert said in text and "use `steadyrl doctor` on its file" in html.unescape(text)


def running(folder):
    """Make a run that goes on in this process."""
    run = make_run(folder / "now", status="running")
    process = {"id": os.getpid(), "node": platform.node()}
    write_json(run.info_file, {**run.info(), "process": process})
    return run


def test_a_running_run_shows_its_finding_with_what_to_do_and_its_numbers(tmp_path):
    running(tmp_path)
    text = ask(create(tmp_path), "/run/now").text
    for said in ("the KL to the reference runs away", "lower the learning rate", "update.learning_rate=0.0001"):
        assert said in text
    assert "since step 8" in text
    assert "<code>reward/mean</code>" in text


@pytest.mark.parametrize(("status", "steps"), [("finished", 60), ("failed", 60), ("interrupted", 12)])
def test_a_run_that_has_ended_shows_what_steadyrl_doctor_finds_and_nothing_stale(tmp_path, status, steps):
    run = make_run(tmp_path / "over", steps=steps, status=status)
    rows = [metrics(step, **{"completion/truncated": 0.95, "grad_norm": 0.5}) for step in range(steps)]
    run.metrics_file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    findings = diagnose(run.path)[0].findings
    assert "truncated" in {finding.check for finding in findings}
    for address in ("/run/over", "/run/over/live"):
        text = ask(create(tmp_path), address).text
        shown = re.findall(r'<summary><span class="word.*?<strong>(\w+)</strong>', text, re.S)
        assert sorted(shown) == sorted(finding.check for finding in findings)
        assert "lower the learning rate" not in text, "what to do about the stale one"


def test_the_table_has_the_worst_finding_of_a_finished_runs_report(tmp_path):
    run = make_run(tmp_path / "over")
    assert "the KL to the reference runs away" in html.unescape(ask(create(tmp_path), "/").text)
    doctor = {"findings": [{**FINDING, "check": "entropy", "message": "the entropy is lost"}]}
    write_json(run.report_folder / "summary.json", {"after": None, "doctor": doctor})
    text = html.unescape(ask(create(tmp_path), "/").text)
    assert "the entropy is lost" in text and "the KL to the reference runs away" not in text


def test_curves_are_those_of_the_file_and_of_the_steps_asked_for(folder):
    app = create(folder)
    found = ask_json(app, "/run/ppo-one/curves")
    assert found["steps"] == list(range(20))
    assert found["lines"]["entropy"] == [[pytest.approx(2.0 - 0.01 * step) for step in range(20)]]
    part = ask_json(app, "/run/ppo-one/curves?from=5&to=7&name=entropy")
    assert (part["steps"], list(part["lines"])) == ([5, 6, 7], ["entropy"])
    assert ask_json(app, "/run/ppo-one/curves?from=x&to=-1&name=none")["lines"] == {}
    diagnosed = diagnose(folder / "ppo-one")[0].findings  # it has ended: findings.jsonl may hold what is stale
    dated = sorted(finding.since_step for finding in diagnosed if finding.since_step is not None)
    assert [pin["step"] for pin in found["pins"]] == dated


def test_the_curves_of_a_running_run_have_the_findings_raised_so_far(tmp_path):
    running(tmp_path)
    (pin,) = ask_json(create(tmp_path), "/run/now/curves")["pins"]
    assert (pin["step"], pin["kind"]) == (8, "critical")


def test_a_finding_that_was_cleared_is_shown_as_cleared(folder):
    run = folder / "ppo-one" / "findings.jsonl"
    append_line(run, {**FINDING, "step": 40, "state": "cleared"})
    text = ask(create(folder), "/run/ppo-one/live").text
    assert "no longer holds" in text
    assert "lower the learning rate" not in text


def without_marks(text):
    return re.sub("</?mark>", "", text)


def test_rollouts_are_ordered_filtered_and_searched(folder):
    app = create(folder)
    worst = without_marks(ask(app, "/run/ppo-one/rollouts").text)
    assert worst.index("alert(1)") < worst.index("red at 10") < worst.index("green at 10")
    best = without_marks(ask(app, "/run/ppo-one/rollouts?order=best").text)
    assert best.index("red at 10") < best.index("alert(1)") < best.index("green at 10")
    assert "red at 0" in without_marks(ask(app, "/run/ppo-one/rollouts?step=0").text)
    assert "<strong>step 10</strong>" in ask(app, "/run/ppo-one/rollouts?near=7").text  # recorded are 0 and 10
    assert "<strong>step 0</strong>" in ask(app, "/run/ppo-one/rollouts?near=4").text
    assert "red" not in ask(app, "/run/ppo-one/rollouts?most=0.5").text
    assert "red" not in ask(app, "/run/ppo-one/rollouts?q=green").text
    only = without_marks(ask(app, "/run/ppo-one/rollouts?step=10&problem=apple").text)
    assert 'href="?order=worst&amp;step=10&amp;problem=pear"' in worst
    assert "green" not in only
    assert "red at 10" in only
    found = ask(app, "/run/ppo-one/rollouts/10/0")
    assert "red at 10" in found.text
    assert "this problem over the steps" in found.text
    over = ask(app, "/run/ppo-one/problem?problem=apple").text
    assert over.index("red at 0") < over.index("red at 10")
    assert ask(app, "/run/ppo-one/rollouts?step=7").status == 404
    assert ask(app, "/run/ppo-one/rollouts/10/99").status == 404


def test_an_episode_shows_the_page_before_each_turn_and_is_found_by_it(folder):
    from steadyrl.core.rundir import RunDir

    seen = ["goal page\n[1] <b>Buy</b>", "the cart", "the order"]
    episode = {"turns": ["click 1", "click 2"], "seen": seen, "outcome": {"success": 0.0}}
    write_lines(RunDir(folder / "ppo-one").rollouts_file(12), [rollout("q", 0.0, "click 1", **episode)])
    app = create(folder)
    text = ask(app, "/run/ppo-one/rollouts/12/0").text
    order = ["[1] &lt;b&gt;Buy&lt;/b&gt;", '<div class="text">click 1</div>', "the cart", "click 2", "the order"]
    places = [text.index(part, text.index("Conversation")) for part in order]
    assert places == sorted(places)
    assert "#0" in ask(app, "/run/ppo-one/rollouts?q=cart").text
    assert "#0" not in ask(app, "/run/ppo-one/rollouts?q=nowhere").text


def call(name, end="ok", result="", seconds=0.0, **arguments):
    return {"name": name, "arguments": arguments, "result": result, "end": end, "seconds": seconds}


EPISODE = {
    "prompt": "",
    "turns": ["two calls", "one more", "7.00"],
    "seen": ["What does tea cost?", "3.5\nerror: late\nthe shop closes", "error: a call could not be read"],
    "turn_rewards": [0.25, None, -1.5],
    "calls": [
        [call("price", result="3.5", seconds=0.012, item="tea"), call("slow", "timeout", "error: late", 0.4)],
        [call("", "malformed", "error: a call could not be read", text="price(")],
        [],
    ],
}


@pytest.fixture
def episodes(folder):
    """Return the folder, in whose step 12 are an episode with failing calls, one that calls well, and one without."""
    from steadyrl.core.rundir import RunDir

    well = {**EPISODE, "calls": [[call("price", result="3.5", item="tea")], [], []]}
    lines = [rollout(f"q{i}", 0.1 * i, f"a{i}", **more) for i, more in enumerate((EPISODE, well, {}))]
    write_lines(RunDir(folder / "ppo-one").rollouts_file(12), lines)
    return create(folder)


def test_an_episode_is_a_conversation_with_calls_results_rewards_and_times(episodes):
    text = ask(episodes, "/run/ppo-one/rollouts/12/0").text
    talk = text[text.index('<ol class="talk">') : text.index("</ol>")]
    lines = re.sub(r"\s*\n\s*", "\n", re.sub("<[^>]+>", "\n", talk)).strip().splitlines()
    assert [html.unescape(line).strip() for line in lines] == [
        "environment", "What does tea cost?",
        "policy", "turn 1", "reward", "0.250", "2 calls, 0.41 s", "two calls",
        "price(item='tea')", "12 ms", "3.5",
        "slow()", "took too long", "0.4 s", "error: late",
        "environment", "the shop closes",  # the results stand at their calls alone
        "policy", "turn 2", "1 call", "one more", "price(", "could not be read", "error: a call could not be read",
        "policy", "turn 3", "reward", "-1.500", "7.00",
    ]  # fmt: skip
    assert "<h2>Completion" not in text  # the turns are not shown twice


@pytest.mark.parametrize(
    ("query", "numbers"),
    [
        ("tool=price", [0, 1]),
        ("tool=slow", [0]),
        ("tool=(none)", [2]),
        ("error=timeout", [0]),
        ("tool=price&error=timeout", []),  # it was the other tool that took too long
        ("tool=price&error=no error", [0, 1]),
        ("error=any error", [0]),
        ("error=no error", [1, 2]),
        ("q=closes", [0, 1]),
        ("q=late timeout", [0]),
    ],
)
def test_rollouts_are_filtered_by_tool_and_by_error(episodes, query, numbers):
    text = ask(episodes, f"/run/ppo-one/rollouts?{query.replace(' ', '+')}").text
    assert sorted(map(int, re.findall(r">#(\d+)</a>", text))) == numbers


def test_the_list_offers_the_tools_and_errors_that_there_are(episodes):
    text = ask(episodes, "/run/ppo-one/rollouts").text
    choices = {name: re.search(f'<select name="{name}">(.*?)</select>', text)[1] for name in ("tool", "error")}
    assert re.findall('value="([^"]*)"', choices["tool"]) == ["", "price", "slow", "(none)"]
    assert re.findall('value="([^"]*)"', choices["error"]) == ["", "malformed", "timeout", "any error", "no error"]
    assert "3 turns, 3 calls" in text
    assert "took too long, could not be read" in text
    assert '<select name="tool">' not in ask(episodes, "/run/ppo-one/rollouts?step=10").text


def test_a_prompt_of_messages_is_shown_by_role(folder):
    from steadyrl.core.rundir import RunDir

    request = {"type": "function", "function": {"name": "look", "arguments": {"word": "tea"}}}
    messages = [
        {"role": "system", "content": "be short"},
        {"role": "assistant", "content": "", "tool_calls": [request]},
        {"role": "tool", "content": "a plant"},
    ]
    write_lines(RunDir(folder / "ppo-one").rollouts_file(13), [rollout("q", 0.0, "yes", messages=messages)])
    text = ask(create(folder), "/run/ppo-one/rollouts/13/0").text
    order = ["<strong>system</strong>", "be short", "<strong>assistant</strong>", "look(word=&#39;tea&#39;)", "a plant"]
    places = [text.index(part) for part in order]
    assert places == sorted(places)
    assert "More that was recorded" in text
    assert "tool_calls" not in text


def test_an_empty_completion_is_called_so(folder):
    from steadyrl.core.rundir import RunDir

    write_lines(RunDir(folder / "ppo-one").rollouts_file(13), [rollout("q", 0.0, "")])
    app = create(folder)
    for address in ("/run/ppo-one/rollouts", "/run/ppo-one/rollouts/13/0", "/run/ppo-one/problem?problem=q"):
        assert "(empty)" in ask(app, address).text


def test_tokens_are_coloured_by_what_was_measured(folder, tmp_path):
    from steadyrl.core.rundir import RunDir

    run = RunDir(folder / "ppo-one")
    record = {
        "rollout": 0, "problem": "apple", "tokens": ["red", " at", "<b>"], "policy": [True, True, False],
        "left_out": 4, "logprob": [-0.1, -4.0, None], "ratio": [1.0, 2.0, None], "entropy": [0.1, "x", None],
    }  # fmt: skip
    write_lines(run.tokens_file(10), [record])
    app = create(folder)
    text = ask(app, "/run/ppo-one/rollouts/10/0").text
    assert '<span class="t p0" title="log-prob -0.1, entropy 0.1, ratio 1">red</span>' in text
    assert '<span class="t p5" title="log-prob -4, ratio 2"> at</span>' in text
    assert '<span class="t env" title="">&lt;b&gt;</span>' in text
    assert "4 more tokens" in text
    assert (
        '<span class="t p5" title="log-prob -4, ratio 2"> at</span>'
        in ask(app, "/run/ppo-one/rollouts/10/0?colour=ratio").text
    )
    assert "not recorded" in ask(app, "/run/ppo-one/rollouts/10/1").text


def test_whatever_a_run_says_is_text(tmp_path):
    run = make_run(tmp_path / "a")
    append_line(run.metrics_file, metrics(20, **{HOSTILE: 1.0}))
    hostile = dict.fromkeys(("check", "message", "remedy", "source", "cause"), HOSTILE)
    append_line(run.findings_file, {**FINDING, **hostile, "evidence": [HOSTILE], "step": 20, "state": "raised"})
    turns = {"turns": [HOSTILE], "outcome": {HOSTILE: HOSTILE}}
    write_lines(run.rollouts_file(20), [rollout(HOSTILE, 0.1, HOSTILE, note=HOSTILE, unscored=HOSTILE, **turns)])
    tokens = {"rollout": 0, "tokens": [HOSTILE], "policy": [True], "logprob": [-1.0]}
    write_lines(run.tokens_file(20), [tokens])
    info = json.loads(run.info_file.read_text())
    run.info_file.write_text(json.dumps({**info, "error": HOSTILE, "model": HOSTILE, "task": HOSTILE}))
    app = create(tmp_path)
    for address in ("/", "/run/a", "/run/a/live", "/run/a/rollouts", "/run/a/rollouts/20/0", "/run/a/doctor"):
        answer = ask(app, address)
        assert answer.status == 200, address
        for markup in ("<script>alert", "<img src=x", "\x1b", "\x00"):
            assert markup not in answer.text, address
    assert ask(app, "/run/a/problem?problem=%3Cscript%3Ealert").text.count("<script>alert") == 0


@pytest.mark.parametrize(
    "bad",
    [
        {"step": "x"},
        {"step": 3, "state": "raised", "check": None, "severity": "critical", "since_step": "3", "evidence": 7},
        {"step": 3, "state": "raised", "check": {"a": 1}, "severity": ["critical"], "message": [1]},
        {"step": 10**400, "state": "raised", "severity": "warning"},
    ],
)
def test_findings_that_no_doctor_wrote_break_no_page(tmp_path, bad):
    run = make_run(tmp_path / "a")
    run.findings_file.write_text(json.dumps(bad) + "\n[1]\n{\n")
    app = create(tmp_path)
    assert ask(app, "/").status == 200
    assert ask(app, "/run/a").status == 200
    assert ask(app, "/run/a/curves").status == 200


def test_a_log_of_another_trainer_is_shown_and_diagnosed(tmp_path):
    rows = [{"step": i, "loss": 0.1, "reward": 0.2 + i / 100, "kl": 0.01 * i} for i in range(40)]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    app = create(tmp_path)
    assert "log.jsonl" in ask(app, "/").text
    assert ask(app, "/run/log.jsonl").status == 200
    assert ask_json(app, "/run/log.jsonl/curves")["steps"] == list(range(40))
    assert ask(app, "/run/log.jsonl/rollouts").status == 404


def test_a_pasted_log_is_diagnosed_and_not_kept(tmp_path):
    app = create(tmp_path)
    log = "".join(json.dumps({"step": i, "reward": 0.5, "kl": -0.2 * i, "loss": 0.1}) + "\n" for i in range(60))
    answer = ask(app, "/doctor?part=1", "POST", log.encode())
    assert "sick" in answer.text
    assert "negative_kl" in answer.text
    form = ask(app, "/doctor", "POST", b"log=hello", content_type="application/x-www-form-urlencoded")
    assert "is no log that steadyrl can read" in form.text
    assert "hello</textarea>" in form.text
    assert "/tmp" not in form.text.replace(str(tmp_path), "")
    assert not any(tmp_path.iterdir())


def test_a_log_that_is_too_large_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("steadyrl.show.web.app.MOST_PASTED", 1000)
    assert "use `steadyrl doctor`" in ask(create(tmp_path), "/doctor?part=1", "POST", b"x" * 1001).text


def test_the_page_of_the_report_is_the_body_of_the_report(folder):
    from steadyrl.show.report.write import write_report

    written = write_report(folder / "ppo-one") / "report.html"
    top, _, rest = written.read_text().partition('<p class="headline">')[2].partition("<figure ")  # the page has none
    body = rest.partition("</figure>")[2].partition("<h2>Training</h2>")[0]
    assert "verdict" in top and "Health" in body
    page = " ".join(ask(create(folder), "/run/ppo-one/report").text.split())
    assert all(" ".join(part.split()) in page for part in (top, body))
    assert "How to repeat it" in page
    assert "<svg" not in page


def test_a_run_without_steps_has_no_report_yet(tmp_path):
    make_run(tmp_path / "a", steps=0)
    assert "no steps yet" in ask(create(tmp_path), "/run/a/report").text


def test_a_comparison_shows_what_differs_and_which_problems_moved(folder):
    answers = {"ppo-one": [0.1, 0.9, 0.5, 0.4], "grpo-two": [0.6, 0.2, 0.5, 0.5]}
    for name, values in answers.items():
        lines = [
            {"problem": f"p{i}", "prompt": "x", "answers": {"sampled": {"text": f"{name} {i}", "metric": value}}}
            for i, value in enumerate(values)
        ]
        write_lines(folder / name / "evaluations" / "after.jsonl", lines)
    text = ask(create(folder), "/compare?run=ppo-one&run=grpo-two").text
    differing = text[text.index("Settings that differ") : text.index("Why they differ")]
    assert "<code>update.learning_rate</code>" in differing
    row = differing[differing.index("update.learning_rate") :]
    assert re.findall(r"<td data-label=[^>]*>(.*?)</td>", row[: row.index("</tr>")]) == ["0.001", "0.01"]
    assert "run.seed" not in differing
    assert "2 gained, 1 lost, 1 equal" in text
    gained, lost = text.index("Gained ("), text.index("Lost (")
    assert gained < text.index("<h3>p0 (+0.500)</h3>") < lost < text.index("<h3>p1 (-0.700)</h3>")
    said = re.sub("<[^>]*>", "", text)
    assert "grpo-two against ppo-one: undecided by sampled answers, because 3 of 4 problems differ" in said
    assert "the doctor calls ppo-one sick: kl_runaway" in text


def test_a_comparison_goes_by_the_answers_that_will_be_used_and_names_the_opposite(folder):
    for name, sampled, greedy in (("ppo-one", 0.25, 0.75), ("grpo-two", 0.5, 0.125)):
        by_decoding = {"sampled": {"text": "a", "metric": sampled}, "greedy": {"text": "b", "metric": greedy}}
        lines = [{"problem": f"p{i}", "prompt": "x", "answers": by_decoding} for i in range(9)]
        write_lines(folder / name / "evaluations" / "after.jsonl", lines)
    pairs = {"sampled": ("better", "greedy answers are worse"), "greedy": ("worse", "sampled answers are better")}
    run = RunDir(folder / "grpo-two")
    for deploy, (word, opposite) in pairs.items():
        write_json(run.resolved_file, {**run.resolved(), "evaluate": {"deploy": deploy}})
        text = ask(create(folder), "/compare?run=ppo-one&run=grpo-two").text
        assert f"<strong>{word}</strong> by {deploy} answers, because the 95 % interval [" in text
        assert f"; but {opposite}, because the 95 % interval [" in text
        assert "sampled answers: <strong>grpo-two</strong> 0.500, ppo-one 0.250" in text
        assert "greedy answers: <strong>grpo-two</strong> 0.125, ppo-one 0.750" in text


def test_runs_are_compared_on_every_set_that_both_have(folder):
    for run, value in (("ppo-one", 0.25), ("grpo-two", 0.75)):
        for name in ("", "hard", *([run] if run == "ppo-one" else [])):
            answer = {"text": "x", "metric": value, "reward": value, "parts": {}}
            lines = [{"problem": f"p{i}", "prompt": "?", "answers": {"sampled": answer}} for i in range(8)]
            write_lines(RunDir(folder / run).evaluation_file("after", name), lines)
    text = ask(create(folder), "/compare?run=ppo-one&run=grpo-two").text
    assert re.search(r"hard: sampled answers: <strong>grpo-two</strong> 0.750, ppo-one 0.250: \+0.500", text)
    assert "ppo-one: sampled answers" not in text


def test_problems_of_two_tasks_that_share_a_name_are_not_compared(folder):
    for run, prompts in (("ppo-one", "ab"), ("grpo-two", "xb")):
        lines = [
            {"problem": f"p{i}", "prompt": prompt, "answers": {"sampled": {"text": "t", "metric": 0.25 * i}}}
            for i, prompt in enumerate(prompts)
        ]
        write_lines(RunDir(folder / run).evaluation_file("after"), lines)
    assert "0 gained, 0 lost, 1 equal" in ask(create(folder), "/compare?run=ppo-one&run=grpo-two").text
    write_lines(RunDir(folder / "grpo-two").evaluation_file("after"), lines[:1])
    text = ask(create(folder), "/compare?run=ppo-one&run=grpo-two").text
    assert "cannot be compared problem by problem: they have no held-out problem in common." in text
    assert "Gained" not in text


def test_a_comparison_of_too_few_or_too_many_runs_says_so(folder):
    app = create(folder)
    assert "Choose two runs" in ask(app, "/compare").text
    assert "Choose two runs" in ask(app, "/compare?run=ppo-one").text
    assert ask(app, "/compare?run=ppo-one&run=../x").status == 404
    assert "at most 7" in ask(app, "/compare?" + "&".join(f"run={i}" for i in range(8))).text


def test_of_many_runs_each_metric_has_a_picture_of_its_own(folder):
    make_run(folder / "third")
    for name in ("ppo-one", "grpo-two", "third"):
        append_line(folder / name / "metrics.jsonl", metrics(20, **{"reward/min": 0.0, "reward/max": 1.0}))
    two = ask(create(folder), "/compare?run=ppo-one&run=grpo-two").text
    assert two.count('data-title="Range of the reward"') == 1
    three = ask(create(folder), "/compare?run=ppo-one&run=grpo-two&run=third").text
    assert 'data-title="Range of the reward"' not in three
    assert 'data-title="reward/min"' in three


def test_no_page_names_where_the_folder_lies(folder):
    app = create(folder)
    for address in ("/", "/run/ppo-one", "/run/ppo-one/doctor", "/run/ppo-one/rollouts", "/studies"):
        assert str(folder) not in ask(app, address).text, address


def test_what_is_not_there_is_said(folder):
    app = create(folder)
    assert ask(app, "/run/none").status == 404
    assert ask(app, "/nowhere").status == 404
    assert ask(app, "/static/../app.py").status == 404
    assert ask(app, "/static/..%2fapp.py").status == 404
    assert ask(app, "/run/ppo-one", "POST").status == 405


PAGES = ("", "/live", "/curves", "/rollouts", "/rollouts/0/0", "/problem?problem=apple", "/doctor")


@pytest.mark.parametrize("value", [10**400, -(10**400), "\ud800", 1e308, [10**400], {"": 10**400}], ids=range(6))
def test_no_number_and_no_text_of_a_run_is_a_fault_of_the_server(tmp_path, value):
    run = make_run(tmp_path / "a", status="running")
    append_line(run.actions_file, {"step": 3, "kind": "act", "knob": "k", "before": 0.1, "after": 0.2, "why": "w"})
    for path in (run.info_file, run.resolved_file):
        path.write_text(json.dumps({**json.loads(path.read_text()), "started": value}))
    write_json(run.report_folder / "summary.json", {"after": value, "difference": value, "interval": [value, value]})
    tokens = {"rollout": 0, "tokens": ["a"], "ratio": [value], "entropy": [1.0]}
    write_lines(run.tokens_file(0), [tokens])
    odd = rollout("apple", value, parts={"length": value}, note=value, tokens=value)
    write_lines(run.rollouts_file(0), [odd, rollout("apple", 0.5)])
    action = {"step": 4, "kind": "act", "knob": "k", "before": 0.1, "after": value, "why": str(value)[:9]}
    action["evidence"] = []
    with run.actions_file.open("a") as file:
        file.write(json.dumps(action) + "\n")
    append_line(run.metrics_file, {**metrics(20), "reward/mean": value, "time": value})
    app = create(tmp_path)
    assert ask(app, "/").status == 200
    assert [page for page in PAGES if ask(app, f"/run/a{page}").status != 200] == []


def test_a_folder_in_place_of_a_file_is_said(tmp_path):
    run = make_run(tmp_path / "a")
    run.metrics_file.unlink()
    run.metrics_file.mkdir()
    answer = ask(create(tmp_path), "/run/a")
    assert answer.status == 404
    assert "cannot be read" in answer.text


@pytest.mark.parametrize("path", ["/", "/?part=1", "/run/a", "/run/a/live"])
def test_a_page_that_is_open_gets_a_part_again_only_where_something_is_new(tmp_path, path):
    run, app = make_run(tmp_path / "a", status="running"), create(tmp_path)
    first = ask(app, path)
    version = first.headers["etag"]
    again = ask(app, path, if_none_match=version)
    assert (first.status, again.status, again.data) == (200, 304, b"")
    append_line(run.metrics_file, metrics(99))
    now = ask(app, path, if_none_match=version)
    assert now.status == 200 and now.headers["etag"] != version
    if "part" not in path and "live" not in path:  # a page knows its own version, to ask with
        assert f'data-version="{version[1:-1]}"' in first.text
