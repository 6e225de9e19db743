"""The form of answers: told from the completions, against those at the start of the log."""

import json

import numpy as np

from steadyrl.doctor.checks.form import answers_alike, form_of
from steadyrl.doctor.live import Ends, LiveDoctor, Seen
from steadyrl.doctor.series import Run, Written
from tests.doctor.checks.series_for_values import said, series

WORDS = (
    "queue",
    "item",
    "block",
    "thread",
    "file",
    "path",
    "sort",
    "list",
    "map",
    "key",
    "open",
    "read",
    "time",
    "lock",
)


def some(rng, count):
    return list(rng.choice(WORDS, size=count, replace=False))


def free(rng):
    """Return an answer whose length, words and operators vary."""
    joined = [some(rng, 1)[0]]
    for word in some(rng, int(rng.integers(1, 5))):
        joined += [str(rng.choice(["AND", "OR", "NOT"])), word]
    return " ".join(joined)


def written(answers, start=0, prompts=40):
    return [Written(start + i // 40, f"prompt {i % prompts}", answer) for i, answer in enumerate(answers)]


def run_with(first, last):
    return Run("p", "steadyrl", "ppo", {}, completions=written(first) + written(last, start=500))


def found(first, last):
    return [(one.cause, one.severity) for one in said(answers_alike(run_with(first, last)))]


def fresh(seed, count=400):
    rng = np.random.default_rng(seed)
    return [free(rng) for _ in range(count)]


def test_answers_that_stay_various_are_in_order():
    for seed in range(5):
        assert found(fresh(seed), fresh(seed + 100)) == []


def test_one_form_with_other_words_is_named_and_shown():
    rng = np.random.default_rng(1)
    last = [" OR ".join(some(rng, 2)) for _ in range(400)]
    (one,) = answers_alike(run_with(fresh(1), last))
    assert (one.cause, one.severity) == ("one_template", "warning")
    assert "'w OR w'" in one.message


def test_a_form_that_was_there_before_training_is_the_tasks_own():
    rng = np.random.default_rng(2)
    first, last = ([" OR ".join(some(rng, 2)) for _ in range(400)] for _ in range(2))
    assert found(first, last) == []


def test_a_number_alone_has_no_form_that_answers_could_share():
    rng = np.random.default_rng(12)
    first = [f"{answer} and so on" for answer in fresh(12)]
    for shape in ("{}.", "${},250.75", "-{}!"):
        assert found(first, [shape.format(rng.integers(10, 999)) for _ in range(400)]) == []
    assert found(first, [f"sum {rng.integers(10, 999)} units" for _ in range(400)]) == [("one_template", "warning")]


def test_answers_from_the_start_of_a_log_alone_do_not_judge_its_end():
    empty = [answer if i % 4 == 0 else "" for i, answer in enumerate(fresh(13))]
    logged = {"reward_mean": (series("reward_mean", np.linspace(0.1, 0.9, 60)),)}
    for start, state in ((0, "unknown"), (40, "found")):
        run = Run("p", "steadyrl", "ppo", logged, completions=written(empty, start=start))
        (one,) = said(answers_alike(run))
        assert one.state == state


def test_the_same_word_twice_is_named_before_the_form():
    rng = np.random.default_rng(3)
    last = [f"{word} OR {word}" for word in rng.choice(WORDS, size=400)]
    assert found(fresh(3), last) == [("repeated_words", "warning")]


def test_one_answer_to_most_prompts_does_not_depend_on_the_prompt():
    last = [answer if i % 4 == 0 else "the answer is 7" for i, answer in enumerate(fresh(4))]
    assert found(fresh(5), last) == [("ignores_prompt", "warning")]


def test_texts_that_say_one_thing_over_and_over_compress():
    last = [f"{answer} and again " * 30 for answer in fresh(6)]
    assert found(fresh(7), last) == [("repeats_itself", "warning")]


def test_few_completions_or_none_cannot_be_judged():
    for texts in ([], fresh(0, 20)):
        (one,) = answers_alike(Run("p", "steadyrl", "ppo", {}, completions=written(texts)))
        assert one.state == "unknown"


def test_the_measures_against_a_case_counted_by_hand():
    answers = ["a OR b"] * 20 + ["c OR c"] * 10 + ["d OR e"] * 10
    form = form_of([Written(0, f"p{i % 10}", answer) for i, answer in enumerate(answers)])
    assert (form.texts, form.prompts, form.distinct) == (40, 10, 3 / 40)
    assert form.commonest == ("a OR b", 0.5)
    assert form.repeated == 10 / 40


def test_a_run_that_goes_on_is_told_from_its_rollouts(tmp_path):
    rng = np.random.default_rng(8)
    for step in range(40):
        texts = fresh(step, 40) if step < 20 else [" OR ".join(some(rng, 2)) for _ in range(40)]
        rows = [{"prompt": f"p{i}", "completion": text} for i, text in enumerate(texts)]
        (tmp_path / f"{step:06d}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    doctor = LiveDoctor({}, every=1, completions=Ends(tmp_path))
    changes = doctor.add(40, {"reward/mean": 0.5})
    assert ("answers_alike", "one_template") in {(c.finding.check, c.finding.cause) for c in changes}


def test_two_forms_of_one_length_are_one_form():
    rng = np.random.default_rng(9)
    last = [f" {operator} ".join(some(rng, 2)) for operator in rng.choice(["AND", "OR"], size=400, p=[0.55, 0.45])]
    (one,) = answers_alike(run_with(fresh(9), last))
    assert (one.cause, one.severity) == ("one_template", "warning")
    assert "'w AND w' or 'w OR w'" in one.message


def test_words_repeated_since_the_start_are_worth_knowing_only():
    rng = np.random.default_rng(10)

    def doubled(seed):
        drawn = np.random.default_rng(seed)
        return [f"{free(rng)} OR {word} OR {word}" if drawn.random() < 0.8 else free(rng) for word in
                drawn.choice(WORDS, size=400)]  # fmt: skip

    assert found(doubled(1), doubled(2)) == [("repeated_words", "info")]


def test_of_what_was_shown_the_first_and_the_last_are_kept():
    seen = Seen(limit=3)
    for step in range(10):
        seen.add([Written(step, "p", f"answer {step}")])
    assert [one.step for one in seen] == [0, 1, 2, 7, 8, 9]


def test_answers_of_one_word_again_and_again_are_told_where_they_are_too_short_to_compress():
    rng = np.random.default_rng(11)
    last = [" OR ".join([word] * 9) for word in rng.choice(WORDS, size=400)]  # 17 words, some 70 bytes
    assert found(fresh(11), last) == [("repeats_itself", "warning")]
    plain = [" ".join(some(rng, 14)) for _ in range(400)]
    assert found(fresh(11), plain) == []
