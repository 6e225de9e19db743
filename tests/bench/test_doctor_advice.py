"""Whether advice that was followed made a run better, on rewards and diagnoses written by hand."""

import importlib
import re
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace

import pytest

from steadyrl.core.types import Finding
from steadyrl.doctor.examine import Diagnosis
from steadyrl.doctor.readers.spelling import flat_settings


@pytest.fixture
def advice(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "bench" / "doctor"))
    return importlib.import_module("advice")


FINDING = Finding("reward_flat", "warning", overrides=("update.learning_rate=1e-4",))
KNOWING = Finding("learning_rate_too_low", "info", overrides=("update.learning_rate=1e-3",))


def examined(advice, last, findings=(), fine=()):
    """Return ten steps whose last fifth is given, and what the doctor says of them."""
    records = [{"reward/mean": 9.0}] * 8 + [{"reward/mean": reward} for reward in last]
    passed = tuple(Finding(check, state="ok") for check in fine)
    return advice.Examined(records, Diagnosis(SimpleNamespace(path="founding"), tuple(findings), fine=passed))


@pytest.mark.parametrize(("last", "outcome"), [((2.0, 2.2), "better"), ((1.2, 1.4), "the same"), ((0.1, 0.3), "worse")])
def test_better_and_worse_are_beyond_two_standard_errors_of_the_last_fifth(advice, last, outcome):
    """Both variances are 0.02 over two steps, so that the error of the difference is the root of 0.02."""
    before, after = examined(advice, (1.0, 1.2), [FINDING]), examined(advice, last, [FINDING])
    line = advice.compared("founding", before, after)
    assert (line["before"], line["after"]) == pytest.approx((1.1, sum(last) / 2))
    assert line["error"] == pytest.approx(0.02**0.5)
    assert (line["outcome"], line["repaired"]) == (outcome, False)
    shown = f"| founding | reward_flat: update.learning_rate=1e-4 | 1.100 | {sum(last) / 2:.3f} |  | {outcome} |  |"
    assert shown in advice.table([line])


OTHER = Finding("kl_runaway", "warning")


@pytest.mark.parametrize(
    ("last", "findings", "fine", "repaired"),
    [
        ((1.2, 1.4), [], ["reward_flat"], True),
        ((0.1, 0.3), [], ["reward_flat"], False),  # the reward is lower
        ((1.2, 1.4), [], [], False),  # the check could not judge the run after
        ((1.2, 1.4), [OTHER], ["reward_flat"], False),  # another harm has come
    ],
)
def test_a_fault_is_repaired_where_its_check_passes_and_nothing_else_got_worse(advice, last, findings, fine, repaired):
    before, after = examined(advice, (1.0, 1.2), [FINDING]), examined(advice, last, findings, fine)
    line = advice.compared("founding", before, after)
    assert line["repaired"] == repaired
    either = 1 if repaired or line["outcome"] == "better" else 0
    assert f"higher reward or repaired: {either} of 1;" in advice.table([line])


def test_a_harm_that_the_run_without_the_fault_has_was_not_brought_by_the_advice(advice):
    before, after = examined(advice, (1.0, 1.2), [FINDING]), examined(advice, (1.2, 1.4), [OTHER], ["reward_flat"])
    line = advice.compared("founding", before, after, examined(advice, (1.3, 1.5), [OTHER]))
    assert (line["repaired"], line["new_harms"], line["sound"]) == (True, [], pytest.approx(1.4))
    assert "| 1.300 | 1.400 | the same | yes |" in advice.table([line])


def test_a_run_is_made_once_for_its_settings(advice, monkeypatch, tmp_path):
    plans = []

    def make(plan, folder, steps):
        plans.append(plan)
        folder.mkdir(exist_ok=True)
        advice.runs.path_of(plan, folder).touch()

    monkeypatch.setattr(advice.runs, "make", make)
    plan = next(advice.unseen(7))
    paths = [advice.made(each, tmp_path) for each in (plan, plan, advice.without_fault(plan, None))]
    assert paths[0] == paths[1] != paths[2]
    assert [made.fault for made in plans] == [plan.fault, "healthy"]


def test_the_run_without_the_fault_has_the_task_the_seed_and_the_steps_of_the_run(advice):
    for plan in (*advice.unseen(8), *advice.strengths.plans("judged", 31)):
        sound = advice.without_fault(plan, "judged" if plan.data["backend"].get("name") == "toy" else None)
        assert sound.data["run"] == {**plan.data["run"]}
        assert (sound.data["task"], sound.data["rewards"]) == (plan.data["task"], plan.data["rewards"])
        assert sound.data != plan.data


def test_advice_against_a_harm_is_followed_before_advice_that_is_worth_knowing(advice):
    assert examined(advice, (1.0, 1.2), [KNOWING, FINDING]).advice == FINDING
    assert examined(advice, (1.0, 1.2), [KNOWING]).advice == KNOWING
    assert examined(advice, (1.0, 1.2), [OTHER]).advice is None


def test_a_run_without_a_setting_to_change_is_counted_apart(advice):
    line = advice.compared("founding", examined(advice, (1.0, 1.2)), None)
    assert "after" not in line
    assert "no setting is advised: 1; repaired: 0" in advice.table([line])


def line(name, before, after, end=None, **more):
    advised = {"after": after, "end": after if end is None else end, "pieces": 1 if end is None else 2}
    advised |= {"finding": "reward_flat", "overrides": ["a.b=1"]}
    return {"run": name, "before": before, "sound": 1.0, "outcome": "the same", **(advised if after else {}), **more}


@pytest.mark.parametrize(
    ("after", "outcome"),
    [
        ((0.8, 0.9, 1.0), "better"),  # gains of 0.7, 0.8 and 0.9: 0.8 with an error of 0.058, times 4.3
        ((0.1, 0.1, 1.0), "the same"),  # of one seed
        ((0.108, 0.108, 0.108), "the same"),  # less than a hundredth of the reward without the fault
        ((0.08, 0.08, 0.08), "worse"),
        ((0.9, None, None), "no setting is advised"),
    ],
)
def test_a_fault_counts_once_by_the_interval_over_its_seeds(advice, after, outcome):
    lines = [line("rate-ppo", 0.1, reward) for reward in after]
    (together,) = advice.over_seeds(lines)
    assert together["outcome"] == outcome
    assert together["before"] == pytest.approx(0.1)
    if outcome == "better":
        assert together["reach"] == pytest.approx(4.303 * 0.1 / 3**0.5, rel=1e-3)
        assert "reward_flat: a.b=1 (3)" in advice.table([together])
        assert advice.table([together]).endswith("of 1 that cost more than a tenth of the reward 1 rise, 1 in the end")


def test_what_rises_with_the_next_pieces_of_advice_is_counted_apart(advice):
    lines = [line("rate-ppo", 0.1, 0.1, end) for end in (0.8, 0.9, 1.0)]
    (together,) = advice.over_seeds(lines)
    assert (together["outcome"], together["outcome_end"], together["pieces"]) == ("the same", "better", 2)
    shown = advice.table([together])
    assert "| 0.900, better | 2 |" in shown
    assert shown.endswith("of 1 that cost more than a tenth of the reward 0 rise, 1 in the end")


@pytest.mark.parametrize(
    ("said", "times", "pieces"),
    [
        ([[FINDING], [], []], 4, 1),  # the run after needs nothing
        ([[FINDING], [KNOWING], []], 4, 1),  # nothing harms it
        ([[FINDING], [FINDING], [FINDING]], 2, 2),
        ([[KNOWING], [FINDING], []], 4, 2),
        ([[], [], []], 4, 0),
    ],
)
def test_advice_is_followed_until_nothing_harms_or_as_often_as_was_asked(
    advice, monkeypatch, tmp_path, said, times, pieces
):
    plan = next(advice.unseen(7))
    sound = advice.without_fault(plan, None)
    runs = iter([examined(advice, (1.0 + n, 1.2 + n), findings) for n, findings in enumerate(said)])
    made = []
    monkeypatch.setattr(advice, "made", lambda plan, _: made.append(plan) or plan)
    monkeypatch.setattr(advice, "examined", lambda plan: examined(advice, (9, 9)) if plan == sound else next(runs))
    got = advice.followed(plan, sound, False, tmp_path, times)
    assert got.get("pieces", 0) == pieces
    assert len(made) == 2 + pieces  # the run before, the one without the fault, and one for each piece
    if pieces:
        assert got["end"] == pytest.approx(1.1 + pieces)


def test_the_next_piece_of_advice_is_undone_where_the_reward_rises_no_further(advice, monkeypatch, tmp_path):
    plan = next(advice.unseen(7))
    runs = iter([examined(advice, (level, level + 0.2), [FINDING]) for level in (1.0, 2.0, 3.0, 3.0, 4.0)])
    monkeypatch.setattr(advice, "made", lambda plan, _: plan)
    monkeypatch.setattr(advice, "examined", lambda _: next(runs))
    got = advice.followed(plan, advice.without_fault(plan, None), False, tmp_path, 4)
    assert (got["pieces"], got["end"]) == (2, pytest.approx(3.1))


def test_a_fault_is_repaired_where_most_of_its_runs_are(advice):
    several = [line("rate-ppo", 0.1, 0.1, repaired=repaired) for repaired in (True, True, False)]
    assert advice.over_seeds(several)[0]["repaired"]
    assert not advice.over_seeds(several[1:])[0]["repaired"]


def test_a_run_with_the_autopilot_is_made_by_the_loop_that_has_it(advice, tmp_path):
    plan = next(plan for plan in advice.strengths.plans("later", 3) if plan.name == "rate_zero-grpo")
    changes = ["run.steps=3", "update.learning_rate=0.001", "autopilot.mode=act", "sampling.max_new_tokens=4"]
    data = advice.config.dump(advice.config.resolve(plan.data, changes))
    seen = advice.examined(advice.made(advice.replace(plan, data=data), tmp_path))
    assert len(seen.records) == 3 and "autopilot/scale" in seen.records[-1]


def test_rewards_of_other_weights_are_compared_in_one_unit(advice):
    scaled = examined(advice, (100.0, 120.0)).scaled(0.01)
    assert advice.rewards(scaled.records).tolist() == [1.0, 1.2]


def test_every_fault_of_every_part_makes_settings_that_a_run_accepts_and_that_no_other_fault_makes(advice):
    strengths = advice.strengths
    for part in strengths.PARTS:
        plans = list(strengths.plans(part, 1))
        resolved = [advice.config.resolve(plan.data) for plan in plans]
        algorithms = dict.fromkeys(plan.algorithm for plan in plans)
        resolved += [advice.config.resolve(strengths.base(part, algorithm)) for algorithm in algorithms]
        assert len({plan.name for plan in plans}) == len(plans)
        assert not [config for number, config in enumerate(resolved) if config in resolved[:number]]
        rows = [kind for kind in strengths.KINDS if part in kind.changes]
        assert len(rows) == len(strengths.kinds(part))


def test_every_fresh_fault_names_the_thread_that_it_comes_from(advice):
    sources = [kind.source for kind in advice.strengths.kinds("fresh").values()]
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", source) for source in sources)


def test_vowels_beside_consonants_are_counted_up_to_thirty(advice):
    words = importlib.import_module("words")
    assert words.alternating("ba b ae") == pytest.approx(1 / 30)
    assert words.alternating("BaBa 2a") == pytest.approx(3 / 30)
    assert words.alternating("ba" * 40) == 1.0 and words.alternating("") == 0.0


def test_words_of_four_to_six_letters_are_counted_among_all_words(advice):
    words = importlib.import_module("words")
    assert words.middle("abc abcd abcdef abcdefg abc4 dcba.") == pytest.approx(2 / 6)
    assert words.middle("") == 0.0


@pytest.mark.parametrize("part", ["fourth", "fifth", "sixth", "seventh", "eighth"])
def test_what_a_person_would_put_right_are_settings_that_the_fault_changes(advice, part):
    strengths = advice.strengths
    to_mend = {kind.name: kind.to_mend for kind in strengths.KINDS if part in kind.changes}
    for plan in strengths.plans(part, strengths.seeds(part)[0]):
        sound, faulty = (flat_settings(data) for data in (strengths.base(part, plan.algorithm), plan.data))
        changed = [key for key in {*sound, *faulty} if sound.get(key) != faulty.get(key)]
        for name in to_mend[plan.fault]:
            assert any(fnmatch(key, name) or key.startswith(f"{name}.") for key in changed), (plan.name, name)


def test_advice_that_the_settings_refuse_counts_as_none(advice, monkeypatch, tmp_path):
    refused = Finding("unusual_setting", "warning", overrides=("algorithm.args.length_limit=0",))
    monkeypatch.setattr(advice, "made", lambda plan, folder: folder)
    monkeypatch.setattr(advice, "examined", lambda path: examined(advice, (1.0, 1.2), [refused]))
    plans = advice.strengths.plans("fourth", 101)
    plan = next(plan for plan in plans if plan.fault == "overlong_short")  # has a buffer before the limit
    line = advice.followed(plan, plan, stored=False, folder=tmp_path, times=1)
    assert line["outcome"] == "no setting is advised" and "overlong_buffer" in line["refused"]
