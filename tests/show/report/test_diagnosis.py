"""The written diagnosis holds every finding, in both pages, and nothing of a log becomes markup."""

import importlib.util
import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import numpy as np
import pytest

from steadyrl.core.errors import AccessError
from steadyrl.core.types import Finding
from steadyrl.doctor.examine import CHECKS, Diagnosis, diagnose, examine
from steadyrl.doctor.series import Run, Series
from steadyrl.show.page import markup
from steadyrl.show.report.diagnosis import headline, overrides, write_diagnosis

pytestmark = pytest.mark.pictures

MADE = Path(__file__).parents[2] / "doctor" / "logs.py"
specification = importlib.util.spec_from_file_location("doctor_logs", MADE)
logs = importlib.util.module_from_spec(specification)
specification.loader.exec_module(logs)

HOSTILE = '<script>alert("x")</script>|`**[a](javascript:b)\x1b[31m'


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Return (diagnosis, markdown, html, folder) of a sick run."""
    folder = tmp_path_factory.mktemp("diagnosis")
    (diagnosis,) = diagnose(logs.write(folder / "log.jsonl", logs.sick()))
    page = write_diagnosis([diagnosis], folder / "report")
    return diagnosis, (folder / "report" / "diagnosis.md").read_text(), page.read_text(), folder / "report"


def test_further_root_causes_are_counted_in_the_headline(written):
    (first, *_), harm = written[0].findings, {"severity": "critical", "message": "m", "state": "found"}
    others = [Finding(check=name, **harm) for name in ("kl_zero", "repetition")]
    counted = [headline(replace(written[0], findings=(first, *others[:count]))) for count in (0, 1, 2)]
    ends = [text.removeprefix(f"{first.check}: {first.message}") for text in counted]
    assert ends == ["", " (1 further root cause)", " (2 further root causes)"]


def escaped(text):
    return markup.markdown(text)


def text_of(html):
    return " ".join(unescape(re.sub(r"<[^>]+>", "", html)).split())


def test_both_pages_hold_every_finding_with_its_evidence_and_remedy(written):
    diagnosis, markdown, html, _ = written
    plain = text_of(html)
    assert len(diagnosis.findings) == 5
    for finding in diagnosis.findings:
        texts = (finding.check, finding.message, *finding.evidence, finding.remedy, finding.source)
        assert [text for text in texts if text not in plain or escaped(text) not in markdown] == []


def test_consequences_stand_indented_under_their_cause(written):
    _, markdown, _, _ = written
    lines = re.findall(r"^( *)- \*\*warning\*\* (\w+)", markdown, re.MULTILINE)
    depth = {check: len(left) for left, check in lines}
    assert (depth["learning_rate_too_high"], depth["kl_runaway"], depth["value_loss_spikes"]) == (0, 2, 4)


def test_the_checklist_has_a_word_for_every_check(written):
    _, markdown, _, _ = written
    rows = re.findall(r"^\| \*\*(pass|fail|unknown)\*\* \| .+? \| (\w+) \|", markdown, re.MULTILINE)
    words = {check: word for word, check in rows}
    run = written[0].run
    assert sorted(words) == sorted(check.name for check in CHECKS if check.applies(run))
    assert words["learning_rate_too_high"] == words["kl_runaway"] == "fail"
    assert words["ratio_off"] == "unknown"
    assert words["non_finite"] == "pass"


def test_the_pages_have_every_part_of_an_analysis(written):
    _, markdown, _, _ = written
    parts = ["Findings", "Expected outcome", "Measurements", "Monitoring checklist"]
    places = [markdown.index(f"### {part}\n") for part in parts]
    assert places == sorted(places)
    topics = re.findall(r"^\| \*\*(.+?): ", markdown, re.MULTILINE)
    assert {"KL", "Value", "Policy", "Entropy", "Reward", "Length and text", "Speed"} <= set(topics)


def test_pictures_mark_the_onset_and_are_there(written):
    _, markdown, html, folder = written
    files = re.findall(r"\]\((run1-\d\.svg)\)", markdown)
    assert len(files) >= 3 and all((folder / file).stat().st_size > 1000 for file in files)
    assert html.count("<svg") == len(files)
    assert not re.search("https?:", re.sub(r"<svg.*?</svg>", "", html, flags=re.DOTALL))
    assert "<link" not in html and "src=" not in html


def test_equal_diagnoses_give_equal_bytes(written, tmp_path):
    diagnosis, markdown, html, folder = written
    write_diagnosis([diagnosis], tmp_path)
    assert (tmp_path / "diagnosis.md").read_text() == markdown
    assert (tmp_path / "diagnosis.html").read_text() == html
    assert (tmp_path / "run1-1.svg").read_bytes() == (folder / "run1-1.svg").read_bytes()


def hostile():
    series = Series("reward", HOSTILE, HOSTILE, HOSTILE, np.arange(60), np.linspace(0.0, 1.0, 60))
    run = Run(HOSTILE, HOSTILE, HOSTILE, {"reward": (series,)}, notes=(HOSTILE,), unknown=(HOSTILE,))
    harm = Finding("reward_flat", "critical", 3, HOSTILE, HOSTILE, (HOSTILE,), HOSTILE, (f"a.b={HOSTILE}",), HOSTILE)
    return Diagnosis(run, (harm,), examine(run).unknown)


def test_nothing_of_a_log_becomes_markup(tmp_path):
    write_diagnosis([hostile()], tmp_path)
    html = (tmp_path / "diagnosis.html").read_text()
    assert "<script" not in html and "\x1b" not in html
    assert 'alert("x")' not in re.sub(r"<svg.*?</svg>", "", html, flags=re.DOTALL)
    markdown = (tmp_path / "diagnosis.md").read_text()
    outside = re.sub(r"```text.*?```+", "", markdown, flags=re.DOTALL)
    assert "<script" not in outside and "](javascript" not in outside and "\x1b" not in markdown


def test_a_healthy_run_says_so_and_asks_for_nothing(tmp_path):
    (diagnosis,) = diagnose(logs.write(tmp_path / "log.jsonl", logs.healthy()))
    write_diagnosis([replace(diagnosis, findings=())], tmp_path)
    markdown = (tmp_path / "diagnosis.md").read_text()
    assert "Healthy: no harmful finding" in markdown
    assert "there is nothing to do" in markdown
    assert "### Overrides" not in markdown and "**fail**" not in markdown


def test_several_runs_have_a_section_and_pictures_each(tmp_path):
    (one,) = diagnose(logs.write(tmp_path / "log.jsonl", logs.sick()))
    other = replace(one, run=replace(one.run, path="other run"))
    write_diagnosis([one, other], tmp_path)
    markdown = (tmp_path / "diagnosis.md").read_text()
    assert "## other run **sick**\n" in markdown
    assert (tmp_path / "run2-1.svg").is_file()


def test_of_two_remedies_for_one_setting_the_more_pressing_counts():
    def asks(*settings):
        return Finding("kl_runaway", "warning", None, "x", "m", (), "r", settings)

    several = [asks("update.learning_rate=1e-5", "update.epochs=1"), asks("update.learning_rate=3e-5", "a.b=2")]
    assert overrides(several) == (
        ["update.learning_rate=1e-5", "update.epochs=1", "a.b=2"],
        ["update.learning_rate=3e-5"],
    )


def test_a_folder_that_cannot_be_made_is_an_error_that_names_it(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(AccessError, match="cannot write"):
        write_diagnosis([hostile()], tmp_path / "file")
