"""The written report: complete, the same bytes each time, and safe against whatever a model wrote."""

import json
import re
import warnings
from html.parser import HTMLParser

import numpy as np
import pytest
from markdown_it import MarkdownIt

from steadyrl.core.config import Config, dump
from steadyrl.core.errors import AccessError, RunError
from steadyrl.core.rundir import RunDir, append_line, write_json, write_lines
from steadyrl.show.page import markup
from steadyrl.show.report.evidence import read_evidence
from steadyrl.show.report.pictures import plots
from steadyrl.show.report.write import headline, write_report
from tests.processes.sitecustomize import draw_nothing

pytestmark = pytest.mark.pictures
STEPS, PROBLEMS = 60, 40
FILES = [
    "overview.png",
    "overview.svg",
    "policy.png",
    "policy.svg",
    "report.html",
    "report.md",
    "summary.json",
    "train.png",
    "train.svg",
]
HOSTILE = "<script>alert(1)</script> | a | b |\n```\n# loud\n````\n[x](https://example.org) &lt; \x00\x1b[31m"
SHOWN = HOSTILE.replace("\x00", "\ufffd").replace("\x1b", "\ufffd")
VOID = {"meta", "br", "img", "link", "input", "hr"}


class Page(HTMLParser):
    """What a browser would see: the text, the tags, and every attribute that could load something."""

    def __init__(self, html):
        super().__init__()
        self.text, self.tags, self.open, self.loads = "", [], [], []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.loads += [value for name, value in attributes if name in ("src", "href", "xlink:href", "srcset")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


@pytest.fixture
def words_only(monkeypatch):
    """Draw nothing: what is tested is what the pages say."""
    draw_nothing(plots, monkeypatch.setattr)


def step_record(step, rng):
    share = step / STEPS
    reward = 0.1 + 0.2 * share + 0.01 * rng.standard_normal()
    return {
        "step": step,
        "attempt": 0,
        "time": 1000.0 + step,
        "reward/mean": reward,
        "reward/retrieval": reward,
        "reward/format": 0.5 + 0.4 * share,
        "reward/unscored": 0.0,
        "kl_ref_k1_seq": 3 * share + 0.2 * rng.standard_normal() + 0.5,
        "kl_ref_k1_seq_se": 0.2,
        "kl_ref_exact_seq": 3 * share + 0.5,
        "entropy": 2.0 - share,
        "entropy_sampled": 2.0 - share + 0.05 * rng.standard_normal(),
        "loss/value": None,
        "loss/policy": 0.01 * rng.standard_normal(),
        "grad_norm": "NaN" if step == 30 else 1.0 + rng.random(),
        **({"heldout/retrieval": reward} if step % 20 == 0 else {}),
    }


def answers(rng, level, text, **more):
    value = max(0.0, level + 0.1 * rng.standard_normal())
    parts = {"retrieval": value, "recall": value / 2, "results": 100 * value, "parseable": 1.0}
    return {"text": text, "reward": value, "metric": value, "parts": parts, "unscored": None, "note": "", **more}


def make_run(path, text="open AND file"):
    rng = np.random.default_rng(0)
    run = RunDir(path)
    for step in range(STEPS):
        append_line(run.metrics_file, step_record(step, rng))
    for name, level in (("before", 0.2), ("after", 0.5)):
        lines = []
        for i in range(PROBLEMS):
            found = {decoding: answers(rng, level, text, note=text) for decoding in ("sampled", "greedy")}
            lines.append({"problem": f"p{i}", "prompt": f"{i}: {text}", "answers": found})
        write_lines(run.evaluation_file(name), lines)
    lines = [
        {"problem": f"p{i}", "prompt": "", "answers": {"OR | all": answers(rng, 0.3, "a")}} for i in range(PROBLEMS)
    ]
    write_lines(run.evaluation_file("baselines"), lines)
    settings = dump(Config())
    settings["update"]["learning_rate"] = 1e-4
    settings["rewards"] = {"retrieval": 1.0, "format": 0.5}
    settings["algorithm"]["args"] = {"kl_coef": 0.05}
    write_json(run.resolved_file, settings)
    info = {
        "id": "a-run",
        "task": "search",
        "metric": "retrieval",
        "algorithm": "ppo",
        "seed": 7,
        "status": "finished",
    }
    write_json(
        run.info_file,
        {**info, "command": "steadyrl train x.toml", "commit": "0123abc", "packages": {"numpy": "2"}},
    )
    return run


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A run whose prompts, answers and notes try to break the page."""
    run = make_run(tmp_path_factory.mktemp("runs") / "hostile", HOSTILE)
    write_report(run.path)
    return run


@pytest.fixture(scope="module")
def optional(tmp_path_factory):
    """A run with all that only some runs have pictures of: groups, a curriculum, and rollouts that were recorded."""
    run = make_run(tmp_path_factory.mktemp("runs") / "optional")
    rng = np.random.default_rng(1)
    for step in range(STEPS):
        groups = {"groups/best": 0.9, "reward/std_within": 0.2, "loss/policy": 0.01}
        chosen = {"curriculum/signal": 0.5 + 0.1 * rng.random(), "curriculum/entropy": 2.0 - 0.01 * step}
        ends = {"reward/min": 0.0, "reward/max": 1.0}
        append_line(run.metrics_file, {**step_record(step, rng), "attempt": 1, **groups, **chosen, **ends})
    lines = [{"problem": "p", "reward": reward} for reward in (0.0, 0.5, 1.0, None, "NaN")]
    for step in (0, 30, 59, 80):  # the last is of a step that the run never ended
        write_lines(run.rollouts_file(step), lines)
    write_report(run.path)
    return run


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """A run of which only one step is known, interrupted."""
    run = RunDir(tmp_path_factory.mktemp("runs") / "bare")
    append_line(run.metrics_file, {"step": 3, "attempt": 0})
    write_json(run.info_file, {"status": "interrupted", "error": "out of memory"})
    write_report(run.path)
    return run


def text_of(run, name):
    return (run.report_folder / name).read_text(encoding="utf-8")


# what is written


def test_every_file_is_written_and_nothing_else(hostile):
    assert sorted(path.name for path in hostile.report_folder.iterdir()) == FILES


def test_both_pages_open_with_the_verdict_and_its_numbers(hostile):
    summary = json.loads(text_of(hostile, "summary.json"))
    low, high = summary["interval"]
    sentence = (
        f"held-out retrieval {summary['before']:.3f} → {summary['after']:.3f}, "
        f"+{summary['difference']:.3f} [{low:.3f}, {high:.3f}], n = 40: better, but the doctor calls the run sick"
    )
    assert summary["conclusion"].startswith("better by sampled answers, because the 95 % interval [+")
    assert text_of(hostile, "report.md").splitlines()[:3] == ["# a-run", "", f"**{sentence}**"]
    html = Page(text_of(hostile, "report.html")).text
    assert sentence in html and summary["conclusion"] in html


def test_a_run_that_got_worse_is_no_surprise_to_the_doctor():
    summary = {"metric": "f1", "n": 9, "before": 0.5, "after": 0.1, "difference": -0.4, "interval": [-0.5, -0.3]}
    summary |= {"verdict": "worse", "sampled": {"verdict": "worse"}, "greedy": {"verdict": "undecided"}}
    sentence = headline({**summary, "doctor": {"verdict": "sick"}})
    assert sentence.endswith("n = 9: worse, and the doctor calls the run sick")


@pytest.mark.parametrize(
    ("doctor", "end"),
    [("healthy", "better, but greedy answers are worse"), ("sick", "worse, and the doctor calls the run sick")],
)
def test_answers_of_another_decoding_that_decide_something_else_are_in_the_headline(doctor, end):
    summary = {"metric": "f1", "n": 9, "before": 0.1, "after": 0.5, "difference": 0.4, "interval": [0.3, 0.5]}
    words = {"verdict": "better", "sampled": {"verdict": "better"}, "greedy": {"verdict": "worse"}}
    assert headline({**summary, **words, "doctor": {"verdict": doctor}}).endswith(end)


def test_the_ranking_is_sorted_by_the_metric_with_the_model_in_it(hostile):
    page = text_of(hostile, "report.md")
    first, second, third = (
        page.index(f"| {name} |")
        for name in ("**this model, after training**", r"OR \| all", "**this model, before training**")
    )
    assert first < second < third
    assert "| answers | n | retrieval | recall | results |" in page


@pytest.mark.usefixtures("words_only")
def test_every_row_of_the_ranking_is_a_mean_over_its_own_answers(tmp_path):
    """A part that few answers have after training hid what most answers had before."""
    run = make_run(tmp_path / "run")
    rng = np.random.default_rng(1)
    for name, values in (("before", [10.0, 20.0, 60.0]), ("after", [40.0, None, None])):
        found = [answers(rng, 0.5, "a") for _ in values]
        for answer, size in zip(found, values, strict=True):
            answer["parts"] = {} if size is None else {"recall": size}
        lines = [{"problem": f"p{i}", "prompt": "", "answers": {"sampled": a}} for i, a in enumerate(found)]
        write_lines(run.evaluation_file(name), lines)
    write_report(run.path)
    page = text_of(run, "report.md")
    sizes = dict(re.findall(r"^\| \*\*this model, (\w+) .*\| ([^|]+) \| [^|]+ \|$", page, re.MULTILINE))
    assert {name: float(value) for name, value in sizes.items()} == {"before": 30.0, "after": 40.0}


def test_settings_that_differ_and_how_to_repeat_the_run_are_listed(hostile):
    page = text_of(hostile, "report.md")
    assert "| update.learning_rate | 0.0001 | 0.0003 |" in page
    assert "| rewards.format | 0.5 | not set |" in page
    assert "| algorithm.args.kl_coef | 0.05 |" in page
    assert "run.steps" not in page
    assert "git checkout 0123abc\nsteadyrl train x.toml\nsteadyrl report" in page
    assert "| seed | 7 |\n" in page


@pytest.mark.usefixtures("words_only")
@pytest.mark.parametrize(
    ("policy", "sentence"),
    [
        ({"device": "cpu", "deterministic": True}, "seed give the same metrics, also after a resume."),
        ({"device": "cuda:0", "deterministic": True}, "seed give the same metrics, also after a resume."),
        ({"device": "cuda:0", "deterministic": False}, "On cuda:0 the run was not deterministic: another run of"),
        ({}, "seed should give the same metrics, also after a resume."),
    ],
)
def test_both_pages_say_whether_the_same_seed_gives_the_same_metrics(tmp_path, policy, sentence):
    run = make_run(tmp_path / "run")
    write_json(run.info_file, {**run.info(), "policy": policy})
    write_report(run.path)
    assert sentence in text_of(run, "report.md")
    assert sentence in Page(text_of(run, "report.html")).text


@pytest.mark.usefixtures("words_only")
@pytest.mark.parametrize(("section", "name"), [("backend", "weights"), ("sampler", "timeout_s")])
def test_settings_that_a_part_has_of_its_own_are_not_listed_as_different(tmp_path, section, name):
    """Nobody had set backend.args.weights, and it stood there with the default "not set"."""
    run = make_run(tmp_path / "run")
    settings = run.resolved()
    settings[section]["args"] = {name: 7}
    write_json(run.resolved_file, settings)
    write_report(run.path)
    different, own = text_of(run, "report.md").split("These are all settings")
    assert f"{section}.args" not in different
    assert f"| {section}.args.{name} | 7 |\n" in own


def test_a_nan_in_training_is_pointed_out(hostile):
    assert "grad_norm is not finite at step 30" in text_of(hostile, "report.md")


def test_ten_problems_drawn_at_random_are_shown(hostile):
    headings = re.findall(r"^### (p\d+)$", text_of(hostile, "report.md"), re.MULTILINE)
    assert len(headings) == len(set(headings)) == 10
    assert headings != sorted(headings, key=lambda name: int(name[1:]))
    assert "10 held-out problems drawn at random." in text_of(hostile, "report.html")


# the same bytes


def test_two_writes_give_identical_bytes(hostile):
    first = {name: (hostile.report_folder / name).read_bytes() for name in FILES}
    write_report(hostile.path)
    assert {name: (hostile.report_folder / name).read_bytes() for name in FILES} == first


# what is missing


def test_a_report_of_one_empty_step_says_what_is_not_there(bare):
    page = text_of(bare, "report.md")
    assert "**held-out metric has not been measured**" in page
    assert 'status is "interrupted"' in page
    assert "out of memory" in page
    assert "The run recorded no settings." in page
    assert "No answers were recorded." in page
    assert "The doctor's verdict: **too little to judge**" in page
    assert "| **pass** | No metric is NaN or infinite. | non_finite |" in page
    assert page.count("| **pass** |") == 1  # what is not logged cannot be fine


@pytest.mark.parametrize("size", [3e307, -1e200, 10**400])
def test_numbers_that_no_sum_or_square_holds_are_reported_as_not_measured(tmp_path, size):
    run, rng = make_run(tmp_path / "runs" / "diverged"), np.random.default_rng(4)
    run.metrics_file.unlink(missing_ok=True)
    for step in range(12):
        record = step_record(step, rng) | {"time/step": 2.0, "entropy": 1.0}
        append_line(run.metrics_file, {name: size if type(x) is float else x for name, x in record.items()})
    info = {**run.info(), "attempt": 1}
    write_json(run.info_file, {name: value for name, value in info.items() if name not in ("elapsed_s", "ended")})
    with warnings.catch_warnings(action="error"):
        write_report(run.path)
    assert "These panels have no data" in text_of(run, "report.md")


def test_panels_without_numbers_are_left_out(bare, hostile):
    train, policy = text_of(hostile, "train.svg"), text_of(hostile, "policy.svg")
    assert "<!-- KL to the reference -->" in train and "<!-- Entropy -->" in policy
    for missing in ("KL coefficient", "Value loss", "Clip fraction", "Advantage", "not measured"):
        assert f"<!-- {missing} -->" not in train + policy
    assert text_of(bare, "train.svg").count("<!-- not measured -->") == 1  # the reward's own place stays
    assert not (bare.report_folder / "policy.svg").exists()
    assert "policy.png" not in text_of(bare, "report.md")


def test_a_run_with_several_answers_to_a_problem_has_a_picture_of_its_groups(optional):
    picture = text_of(optional, "groups.svg")
    assert "<!-- Best of N and average -->" in picture and "<!-- Spread -->" in picture
    assert "Groups whose rewards are all equal" not in picture  # nobody measured that
    assert "](groups.png)" in text_of(optional, "report.md")


def test_a_run_whose_curriculum_weighs_problems_has_a_picture_of_it(optional):
    picture = text_of(optional, "curriculum.svg")
    assert "Difficulty of the chosen problems" not in picture  # the problems did not say their difficulty
    assert "Entropy of the choice" in picture
    assert "](curriculum.png)" in text_of(optional, "report.md")
    page = text_of(optional, "report.html")
    # The overview, four panels of the training, two of the policy, three of groups, two of the choice, two of rewards.
    assert page.count("<svg") == 14
    assert "Groups with signal" in page


def test_the_rewards_that_were_recorded_have_a_histogram(optional):
    assert {step: list(values) for step, values in read_evidence(optional.path).recorded.items()} == {
        step: [0.0, 0.5, 1.0] for step in (0, 30, 59)
    }
    picture = text_of(optional, "rewards.svg")
    assert "<!-- Reward range -->" in picture and "<!-- Rewards by step -->" in picture
    for name in ("report.md", "report.html"):
        page = " ".join(text_of(optional, name).split())
        assert "The histogram is of 3 of 60 steps, whose rollouts were recorded" in page
    assert "](rewards.png)" in text_of(optional, "report.md")


def test_a_run_that_recorded_no_rollouts_says_that_there_is_no_histogram(hostile):
    for name in ("report.md", "report.html"):
        page = " ".join(text_of(hostile, name).split())
        assert "There is no histogram of the rewards: the run recorded no rollouts with a reward" in page
        assert "reward/min and reward/max were not logged" in page


def test_a_long_run_reads_some_of_its_rollouts_only(tmp_path):
    run = RunDir(tmp_path / "long")
    write_json(run.info_file, {})
    for step in range(150):
        append_line(run.metrics_file, {"step": step, "attempt": 0})
        write_lines(run.rollouts_file(step), [{"reward": float(step)}])
    recorded = read_evidence(run.path).recorded
    assert len(recorded) == 60
    assert (min(recorded), max(recorded)) == (0, 149)


def test_a_panel_without_data_says_so_in_one_line(bare, hostile):
    for name in ("report.md", "report.html"):
        page = " ".join(text_of(hostile, name).split())
        assert "These panels have no data, for the run logged none of their metrics:" in page
        assert "Value loss (loss/value)" in page
        assert "Policy loss (loss/policy)" not in page
    assert "Policy loss (loss/policy)" in text_of(bare, "report.md")


def test_the_panels_name_units_of_the_catalogue(hostile):
    assert "<!-- nats/sequence -->" in text_of(hostile, "train.svg")
    assert "<!-- nats/token -->" in text_of(hostile, "policy.svg")
    assert "<!-- total = retrieval -->" in text_of(hostile, "train.svg")


def test_a_run_without_steps_or_no_run_is_refused(tmp_path):
    with pytest.raises(RunError, match="there is no run directory"):
        write_report(tmp_path / "nothing")
    write_json(tmp_path / "run.json", {})
    with pytest.raises(RunError, match="has no steps yet"):
        write_report(tmp_path)
    assert not (tmp_path / "report").exists()


def test_a_report_that_cannot_be_written_is_an_access_error(tmp_path):
    write_json(tmp_path / "run.json", {})
    append_line(tmp_path / "metrics.jsonl", {"step": 0, "attempt": 0})
    (tmp_path / "report").write_text("in the way")
    with pytest.raises(AccessError, match=r"cannot write .*summary\.json"):
        write_report(tmp_path)
    (tmp_path / "report").unlink()
    (tmp_path / "report" / "train.png.part").mkdir(parents=True)
    with pytest.raises(AccessError, match=r"cannot write .*train\.png"):
        write_report(tmp_path)


# hostile text


def test_html_is_one_well_formed_page_that_loads_nothing(hostile):
    html = text_of(hostile, "report.html")
    page = Page(html)
    assert page.open == []
    assert page.tags.count("svg") == 7
    assert "script" not in page.tags
    assert all(target.startswith("#") for target in page.loads)
    ids = re.findall(r'\bid="([^"]*)"', html)
    assert {target[1:] for target in page.loads} <= set(ids)
    assert not re.search("https?:", html.replace("[x](https://example.org)", ""))


def test_hostile_text_appears_in_html_as_it_was_written(hostile):
    page = Page(text_of(hostile, "report.html"))
    assert page.text.count(SHOWN) == 10 * 5  # of 10 problems a prompt, two answers, two notes


def test_hostile_text_stays_inside_its_markdown_block(hostile):
    tokens = MarkdownIt("commonmark").enable("table").parse(text_of(hostile, "report.md"))
    fences = [token.content for token in tokens if token.type == "fence"]
    assert fences.count(f"{SHOWN}\n") == 10 * 2
    inline = [child for token in tokens for child in token.children or []]
    assert not [token for token in [*tokens, *inline] if token.type in ("html_block", "html_inline", "link_open")]
    headings = [tokens[i + 1].content for i, token in enumerate(tokens) if token.type == "heading_open"]
    assert len(headings) == 1 + 8 + 10
    notes = [token.content for token in tokens if token.type == "inline" and token.content.startswith("Note:")]
    assert len(notes) == 20
    cells = [tokens[i + 1].content for i, token in enumerate(tokens) if token.type == "td_open"]
    assert r"OR \| all" in cells or "OR | all" in cells


def chosen(path, **best):
    """Return a run that keeps its best checkpoint, of step 40, and stopped early."""
    run = make_run(path)
    rng = np.random.default_rng(1)
    lines = [
        {"problem": f"p{i}", "prompt": "", "answers": {"sampled": answers(rng, 0.6, "a")}} for i in range(PROBLEMS)
    ]
    write_lines(run.evaluation_file("000040"), lines)
    found = {"step": 40, "score": 0.6, "low": 0.55, "high": 0.65, "problems": PROBLEMS, **best}
    write_json(run.info_file, {**run.info(), "best": found, "stopped_early": {"step": 60, "patience": 2}})
    write_report(run.path)
    return run


@pytest.mark.usefixtures("words_only")
def test_the_best_checkpoint_is_named_with_its_bias(tmp_path):
    run = chosen(tmp_path / "run")
    best = json.loads(text_of(run, "summary.json"))["best"]
    assert (best["step"], best["score"], best["interval"], best["n"]) == (40, 0.6, [0.55, 0.65], PROBLEMS)
    metrics = {name: [line["answers"]["sampled"]["metric"] for line in run.evaluations()[name]] for name in
               ("before", "000040")}  # fmt: skip
    assert best["change"]["difference"] == pytest.approx(np.mean(metrics["000040"]) - np.mean(metrics["before"]))
    for name in ("report.md", "report.html"):
        page = " ".join(text_of(run, name).split())
        assert "The best checkpoint is that of step 40: held-out retrieval 0.600" in page
        assert "its figures are biased upward" in page
        assert "The run stopped early, after 60 steps: 2 evaluations in a row" in page


def test_a_run_that_chose_no_checkpoint_says_nothing_of_one(hostile):
    assert json.loads(text_of(hostile, "summary.json"))["best"] is None
    assert "best checkpoint" not in text_of(hostile, "report.md")


@pytest.mark.usefixtures("words_only")
@pytest.mark.parametrize("best", [{"step": "x"}, {"step": 10**400}, {"score": None}, {"score": "much"}])
def test_a_best_checkpoint_that_is_no_step_with_a_score_is_left_out(tmp_path, best):
    run = chosen(tmp_path / "run", **best)
    assert json.loads(text_of(run, "summary.json"))["best"] is None


def overview_of(run):
    rows = re.findall(r"^\| ([a-z]+) \| (.*) \|$", text_of(run, "report.md"), re.MULTILINE)
    names = [name for name, _ in rows]
    return dict(rows[: 1 + names.index("memory" if "memory" in names else "cost")])


@pytest.mark.usefixtures("words_only")
def test_the_first_block_says_what_was_trained_on_what_for_how_long_and_at_what_cost(tmp_path):
    """In 7,200 s on 3 threads the run had processors for 5,400 s; the judge's tokens cost 0.25 in each of 60 steps."""
    run = make_run(tmp_path / "run")
    began = 1_795_701_110.0  # 2026-11-26 13:51:50 UTC
    policy = {"parameters": 134_515_008, "trained": 921_600, "device": "cpu", "threads": 3}
    data = {
        "train": {"problems": 300, "source": "/home/me/sums: main, train"},
        "heldout": {"problems": 40, "of": 40, "source": "held out of them"},
    }
    more = {"model": "/home/me/models/smollm2", "policy": policy, "data": data, "started": began, "ended": began + 7200}
    more |= {"processor_s": 5400.0, "memory": {"peak": 3 * 2**29, "total": 16 * 2**30, "place": "machine"}}
    write_json(run.info_file, {**run.info(), **more})
    settings = run.resolved()
    settings["model"]["lora_rank"] = 16
    write_json(run.resolved_file, settings)
    lines = [{**record, "judge/cost": 0.25, "tokens/sampled": 100.0} for record in run.metrics()]
    write_lines(run.metrics_file, lines)
    write_report(run.path)
    block = overview_of(run)
    assert list(block) == ["verdict", "model", "task", "data", "algorithm", "steps", "time", "cost", "memory"]
    assert block["memory"] == "1.50 of 16.0 GiB at most (machine)"
    assert block["model"] == "smollm2, 135 million parameters, a LoRA adapter of rank 16 trained (921,600)"
    assert block["data"] == (
        "trains on 300 problems (sums: main, train), judged by 40 held-out problems (held out of them)"
    )
    assert block["steps"] == "60 of 100; 6,000 tokens sampled"
    assert block["time"] == "2 h 0 min, began 2026-11-26 13:51 UTC"
    assert block["cost"].startswith("1.500 processor hours (cpu); 15.0 for the judge's tokens")
    page = text_of(run, "report.md")
    assert "| started | 2026-11-26 13:51 UTC |\n" in page and str(began) not in page
    assert page.index("| cost |") < page.index("](overview.png)") < page.index("## Before and after")


@pytest.mark.usefixtures("words_only")
def test_without_a_price_a_gpu_run_costs_hours_and_no_money(tmp_path):
    run = make_run(tmp_path / "run")
    policy = {"device": "cuda:0", "ranks": 4, "threads": 8}
    write_json(run.info_file, {**run.info(), "policy": policy, "started": 1000.0, "ended": 2800.0})
    write_report(run.path)
    assert overview_of(run)["cost"] == "2.000 GPU hours (cuda:0)"  # half an hour of four


@pytest.mark.usefixtures("words_only")
@pytest.mark.parametrize("ended", [-5e8, 400.0, 7e9])  # before 1970, earlier than it began, centuries later
def test_a_clock_that_was_set_while_a_run_went_on_changes_no_time(tmp_path, ended):
    run = make_run(tmp_path / "run")
    times = {"started": 1000.0, "ended": ended, "elapsed_s": 5405.0, "processor_s": 60.0}
    write_json(run.info_file, {**run.info(), **times})
    write_report(run.path)
    assert overview_of(run)["time"] == "1 h 30 min, began 1970-01-01 00:16 UTC"


@pytest.mark.usefixtures("words_only")
def test_measurements_have_a_direction_and_the_rewards_of_the_config_come_first(tmp_path):
    run = make_run(tmp_path / "run")
    rng = np.random.default_rng(0)
    for name, level in (("before", 0.2), ("after", 0.5)):
        lines = []
        for i in range(PROBLEMS):
            answer = answers(rng, level, "a")
            answer["parts"] |= {"format": 1 - answer["metric"], "length": answer["metric"], "waste": answer["metric"]}
            answer["parts"]["parity"] = float(i % 2)  # as before
            lines.append({"problem": f"p{i}", "prompt": "", "answers": {"sampled": answer}})
        write_lines(run.evaluation_file(name), lines)
    settings = run.resolved()
    settings["rewards"] = {"retrieval": 1.0, "format": 0.5, "waste": -0.5}
    write_json(run.resolved_file, settings)
    write_report(run.path)
    main, other = text_of(run, "report.md").split("other measurements, which no reward counts")
    table = re.compile(r"^\| \**(\w+?)\** \| sampled \|.* \| \**([\w ]+?)\** \|$", re.MULTILINE)
    assert table.findall(main) == [("retrieval", "better"), ("format", "worse"), ("waste", "worse")]
    assert dict(table.findall(other)) | {"length": "higher", "parity": "undecided"} == dict(table.findall(other))
    assert " other measurements, which no reward counts" in text_of(run, "report.html")


@pytest.mark.usefixtures("words_only")
def test_what_the_log_contradicts_is_not_called_fine(tmp_path):
    """The entropy is 6.0 at steps 20 to 24 and 2.0 at the start; the end is as the start, so no check finds harm."""
    run = make_run(tmp_path / "run")
    lines = run.metrics()
    for record in lines[20:25]:
        record["entropy"] = record["entropy_sampled"] = 6.0
    write_lines(run.metrics_file, lines)
    write_report(run.path)
    page, summary = text_of(run, "report.md"), json.loads(text_of(run, "summary.json"))
    (row,) = re.findall(r"^\| \*\*([\w ]+)\*\* \|.*\| entropy_explosion \| (.*) \|$", page, re.MULTILINE)
    assert row[0] == "not throughout"
    assert row[1].startswith("entropy is 6 nats/token at step 20, above 2.5 times its start (")
    assert "entropy_explosion" not in summary["doctor"]["fine"]


@pytest.mark.usefixtures("words_only")
def test_a_span_of_code_in_a_sentence_needs_no_backslashes(tmp_path):
    assert markup.markdown("run `steadyrl compare` of a_b and *c*") == r"run `steadyrl compare` of a_b and \*c\*"
    assert markup.markdown("``` and `<b>`") == r"\`\`\` and \`&lt;b&gt;\`"
