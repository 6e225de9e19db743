import pytest

from steadyrl.core.rundir import RunDir, append_line, write_json, write_lines
from steadyrl.show.report.evidence import Answer, Evaluation, Evidence
from steadyrl.show.report.rows import form, forms_view, samples_view
from steadyrl.show.report.write import write_report


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mime OR mime", "a OR a"),
        ("Zip AND ( file OR zip )", "a AND ( b OR a )"),
        ("lung*  NOT\n x", "a* NOT b"),
        ("", "(empty)"),
        ("read the file twice", "a b c d"),
    ],
)
def test_a_form_has_a_letter_for_each_different_word(text, expected):
    assert form(text) == expected


def answered(*texts):
    answers = {f"p{i}": Answer(text, 0.5, {}, None, "", False) for i, text in enumerate(texts)}
    return Evaluation(dict.fromkeys(answers, "?"), {"sampled": answers})


def evidence(before, after):
    policies = answered(*before), answered(*after)
    return Evidence("run", {}, {}, "sampled", [], [], [], {}, *policies, Evaluation(), Evaluation())


def test_shares_of_forms_stand_side_by_side_the_largest_first():
    _, _, table = forms_view(
        evidence(["a OR b", "red", "x AND y", "red AND blue"], ["w OR w", "v OR v", "w OR w", "one"])
    )
    assert [head.name for head in table.heads] == ["form", "before, sampled", "after, sampled"]
    assert [(form.text, *shares) for form, *shares in table.rows] == [
        ("a OR a", "0.000", "0.750"),
        ("a AND b", "0.500", "0.000"),
        ("a", "0.250", "0.250"),
        ("a OR b", "0.250", "0.000"),
    ]


def test_free_texts_have_no_forms():
    texts = ["word " * n + "and " * (30 - n) + "end." for n in range(1, 30)]
    assert forms_view(evidence(texts, texts)) == []


def test_the_same_problems_are_drawn_each_time_and_not_the_first_ones():
    found = evidence([f"t{i}" for i in range(50)], [f"u{i}" for i in range(50)])
    drawn = [sample.title for sample in samples_view(found, "f1")[2:]]
    assert drawn == [sample.title for sample in samples_view(found, "f1")[2:]]
    assert len(set(drawn)) == 10
    assert set(drawn) != {f"p{i}" for i in range(10)}


def test_a_run_that_is_paid_for_form_says_what_the_form_is_worth(tmp_path):
    run = RunDir(tmp_path / "run")
    append_line(run.metrics_file, {"step": 0, "attempt": 0, "reward/mean": 0.1})
    for name, found, shape in (("before", 0.2, 0.1), ("after", 0.1, 0.8)):
        parts = {"retrieval": found, "boolean_format": shape}
        answer = {"text": "a OR a", "reward": 1.0, "metric": found, "parts": parts}
        write_lines(run.evaluation_file(name), [{"problem": "p", "prompt": "?", "answers": {"sampled": answer}}])
    write_json(run.resolved_file, {"rewards": {"retrieval": 1.0, "boolean_format": 0.5}})
    write_json(run.info_file, {"status": "finished", "metric": "retrieval"})
    page = (write_report(run.path) / "report.md").read_text()
    # half of 0.8, beside 0.1
    assert "After training it was 0.400 of the mean reward 0.500; retrieval was 0.100." in page
    assert "## Forms of the answers" in page
