"""The generators and scorers of reasoning-gym, by the package itself."""

import sys
import time
import warnings
from contextlib import suppress
from types import SimpleNamespace

import pytest

from steadyrl.core import config
from steadyrl.core.errors import SteadyError
from steadyrl.integrations.environments import reasoning_gym as adapter
from steadyrl.integrations.environments.reasoning_gym import evaluates, is_expression
from steadyrl.loop.tasks.check import check_task
from tests.integrations.environments.played import task_of, ten_steps
from tests.needs import skip_without_packages

skip_without_packages("reasoning_gym", extra="reasoning-gym")
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)  # the package's
with warnings.catch_warnings():  # of a package of its, where nothing has compiled it yet
    warnings.simplefilter("ignore", SyntaxWarning)
    import reasoning_gym

# Those whose score_answer evaluates what the policy wrote.
EVALUATED = {
    "binary_matrix", "countdown", "intermediate_integration", "n_queens", "polynomial_multiplication", "puzzle24",
    "simple_integration", "spiral_matrix", "string_insertion",
}  # fmt: skip


def gym(*datasets, **args):
    return {
        "name": "reasoning_gym",
        "args": {"datasets": list(datasets), "train_count": 40, "heldout_count": 10, **args},
    }


def scored(task, problem, text):
    return task.rewards()["score"](problem, SimpleNamespace(text=text))


def test_problems_are_the_package_s_own_and_are_scored_by_it():
    task = task_of(gym("chain_sum", "leg_counting", dataset_args={"chain_sum": {"max_terms": 3}}), {"score": 1.0})
    sums = reasoning_gym.create_dataset("chain_sum", seed=0, size=40, max_terms=3)
    problems = task.problems("train")
    assert [p.prompt for p in problems[0:6:2]] == [sums[i]["question"] for i in range(3)]
    assert [p.columns["dataset"] for p in problems[:4]] == ["chain_sum", "leg_counting"] * 2
    for problem, entry in zip(problems[0:6:2], sums, strict=False):
        answer = entry["answer"]
        assert task.gold(problem) == answer
        for text in (answer, f" {answer}\n", f"well <answer>{answer}</answer>", f"it is {answer}", "", "no"):
            read = text.split("<answer>")[-1].removesuffix("</answer>").strip() or None
            assert scored(task, problem, text) == sums.score_answer(read, entry)
    assert scored(task, task.ask("1 + 1?"), "2") is None


def test_a_system_prompt_asks_for_tags_and_without_them_there_is_no_answer():
    task = task_of(gym("chain_sum", system="direct"), {"score": 1.0})
    problem = task.problems("train")[0]
    assert problem.messages[0]["content"] == reasoning_gym.utils.SYSTEM_PROMPTS["direct"]
    assert problem.messages[1] == {"role": "user", "content": problem.prompt}
    assert scored(task, problem, task.gold(problem)) == 1.0
    assert scored(task, problem, problem.columns["answer"]) == 0.0
    assert task.show("17") == ["no answer in <answer> tags"]


def test_no_question_is_on_both_sides_or_twice_and_seeds_do_not_overlap():
    coins = task_of(
        gym("chain_sum", dataset_args={"chain_sum": {"max_digits": 1, "max_terms": 2}}, train_count=400), {"score": 1.0}
    )
    train, heldout = ([p.prompt for p in coins.problems(split)] for split in ("train", "heldout"))
    assert len(set(train + heldout)) == len(train + heldout) and len(train) < 400  # there are few such sums
    first, second = (task_of(gym("chain_sum", seed=seed), {"score": 1.0}).problems("train") for seed in (0, 1))
    assert not {p.prompt for p in first} & {p.prompt for p in second}


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (gym("chain_sums"), "no data set 'chain_sums'; did you mean 'chain_sum"),
        (gym("chain_sum", dataset_args={"chain_sum": {"terms": 3}}), "unexpected keyword argument 'terms'"),
        (gym("chain_sum", dataset_args={"chain_sum": {"min_terms": 0}}), "min_terms"),
        (gym("composite"), "cannot be made"),
        (gym(), "datasets"),
    ],
)
def test_what_cannot_be_made_is_refused(args, why):
    with pytest.raises(SteadyError) as refused:
        task_of(args, {"score": 1.0})
    assert why in str(refused.value)


def every_set():
    made = {}
    for name in reasoning_gym.factory.DATASETS:
        if name != "composite":
            made[name] = reasoning_gym.create_dataset(name, seed=7, size=2)
    return made


def test_no_scorer_obeys_what_the_policy_wrote():
    attack = "__import__('sys').modules.__setitem__('obeyed', 1)"
    sets = every_set()
    assert {name for name, dataset in sets.items() if evaluates(dataset)} == EVALUATED
    for name, dataset in sets.items():
        assert 0 <= dataset.score_answer(None, dataset[0]) <= 0.05
        if name not in EVALUATED:
            with suppress(ValueError), warnings.catch_warnings(action="ignore"):
                dataset.score_answer(attack, dataset[0])
    assert "obeyed" not in sys.modules
    reasoning_gym.create_dataset("countdown", seed=7).score_answer(attack, sets["countdown"][0])
    assert sys.modules.pop("obeyed") == 1  # the package alone does
    task = task_of(gym(*sorted(EVALUATED)), {"score": 1.0})
    for problem in task.problems("train")[:9]:
        for text in (attack, "9**9**9**9", "'a'*999999999999", "S('9')", "x.n(999999999)", "((9**99)**99)**99**1"):
            assert scored(task, problem, text) <= 0.01
    assert "obeyed" not in sys.modules


def test_an_answer_that_a_scorer_cannot_read_is_none():
    task = task_of(gym("prime_factorization"), {"score": 1.0})
    problem = task.problems("train")[0]
    with pytest.raises(ValueError, match="invalid literal"):
        reasoning_gym.create_dataset("prime_factorization", seed=0).score_answer("two", {"answer": "2 × 3"})
    assert scored(task, problem, "two") == 0.0
    assert scored(task, problem, problem.columns["answer"]) == 1.0


def test_good_answers_of_those_scorers_count():
    for name in EVALUATED:
        answers = [entry["answer"] for entry in reasoning_gym.create_dataset(name, seed=7, size=6)]
        assert [answer for answer in answers if not is_expression(answer)] == []


def test_an_answer_that_takes_long_to_evaluate_is_none(monkeypatch):
    monkeypatch.setattr(adapter, "_EVALUATION_SECONDS", 0.2)
    task = task_of(gym("intermediate_integration", train_count=2, heldout_count=0), {"score": 1.0})
    assert task.problems("heldout") == ()
    start = time.monotonic()
    assert scored(task, task.problems("train")[0], "(x+y+z)**99") == 0.0
    assert time.monotonic() - start < 3


def test_the_check_of_a_task_passes():
    settings = config.resolve({"task": gym("chain_sum", "leg_counting"), "rewards": {"score": 1.0}})
    found = {check.check: check.message for check in check_task(settings) if check.state == "found"}
    assert found == {}


def test_it_trains_ten_steps(tmp_path):
    lines = ten_steps(tmp_path, gym("chain_sum", "coin_flip"), {"score": 1.0})
    assert all(0 <= line["reward/mean"] <= 1 for line in lines)
