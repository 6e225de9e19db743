"""Episodes of several turns: whose tokens count, what the environment may break, what an expert shows."""

import os
import signal
import threading
import time
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from steadyrl.backends.toy import CharTokenizer, ToyBackend
from steadyrl.core.counting.count import heard_by
from steadyrl.core.errors import ConfigError, DataError, EpisodeError
from steadyrl.core.metrics import reward_metrics
from steadyrl.core.protocols import Turn
from steadyrl.core.sections import RolloutSection
from steadyrl.core.types import Problem, Sampling, Score
from steadyrl.loop.rewards.combine import Term, score_groups
from steadyrl.loop.rollout import multi_turn
from steadyrl.loop.rollout.collect import collect, demonstrate
from steadyrl.loop.rollout.episode import Environment, cut_observation, environment_of, require_tokens
from steadyrl.loop.rollout.records import rollout_records
from steadyrl.maths.batch import make_batch

PROBLEM = Problem("p", "go")
RULES = {"role": "system", "content": "rules"}
SAMPLING = Sampling(max_new_tokens=4)


@dataclass
class Corridor:
    """Takes ``doors`` turns to walk through; what it was told is remembered."""

    seed: int
    doors: int = 2
    breaks_at: str = ""
    told: list = field(default_factory=list)
    closed: int = 0

    def open(self):
        if self.breaks_at == "open":
            raise EpisodeError("the page did not load")
        return "door 1"

    def step(self, text):
        if self.breaks_at == "step":
            raise EpisodeError("the page crashed")
        if self.breaks_at == "bug":
            raise KeyError("ref")
        self.told.append(text)
        done = len(self.told) == self.doors
        return Turn("" if done else f"door {len(self.told) + 1}", done)

    def expert(self):
        return "open" if self.doors else None

    def close(self):
        self.closed += 1
        return {"doors": len(self.told)}


class Building:
    """A task of corridors."""

    name, metric = "building", "doors"

    def __init__(self, max_turns=5, workers=1, **corridor):
        self.max_turns, self.workers, self.corridor, self.made = max_turns, workers, corridor, []

    def episode(self, problem, seed):
        broken = {"breaks_at": ""} if problem.id == "whole" else {}
        self.made.append(Corridor(seed, **{**self.corridor, **broken}))
        return self.made[-1]


def play(task, problems=(PROBLEM,), samples=1, max_tokens=0, sampling=SAMPLING, together=True):
    environment = Environment(task, sampling.max_new_tokens, max_tokens, together=together)
    return collect(ToyBackend(), problems, samples, sampling, (0, 0), 7, environment)


def test_only_the_policys_tokens_stand_under_the_mask_and_no_id_is_encoded_again():
    tokenizer, task = CharTokenizer(), Building()
    ((rollout,),) = [group.rollouts for group in play(task)]
    assert rollout.prompt_ids.tolist() == tokenizer.encode_prompt("go\ndoor 1").tolist()
    chosen = rollout.completion_ids[rollout.completion_mask]
    environment = rollout.completion_ids[~rollout.completion_mask]
    end = [] if tokenizer.end_id in rollout.completion_ids[:4] else [tokenizer.end_id]
    assert environment.tolist() == end + tokenizer.encode_prompt("\ndoor 2\n").tolist()
    assert "".join(tokenizer.decode(chosen).split()) == "".join("".join(rollout.turns).split())
    assert task.made[0].told == list(rollout.turns)
    assert (rollout.sampling_logprobs[rollout.completion_mask] < 0).all()
    assert (rollout.sampling_logprobs[~rollout.completion_mask] == 0).all()
    assert rollout.outcome == {"doors": 2}
    assert rollout.policy_version == 7


@pytest.mark.parametrize(
    ("messages", "read"),
    [
        ((RULES, {"role": "user", "content": "go"}), [RULES, {"role": "user", "content": "go\ndoor 1"}]),
        (
            ({"role": "user", "content": "go"}, {"role": "assistant", "content": "where"}),
            [
                {"role": "user", "content": "go"},
                {"role": "assistant", "content": "where"},
                {"role": "user", "content": "door 1"},
            ],
        ),
    ],
)
def test_an_episode_begins_with_the_problems_messages_and_what_is_seen_at_their_end(messages, read):
    problem = Problem("p", "go", messages=messages)
    ((rollout,),) = [group.rollouts for group in play(Building(), problems=[problem])]
    assert rollout.prompt_ids.tolist() == CharTokenizer().encode_prompt(read).tolist()
    assert rollout.seen[0] == "door 1"


def test_an_episode_that_cannot_be_made_ends_in_one_error_that_names_the_problem():
    class NoRoom(Building):
        def episode(self, problem, seed):
            raise KeyError("room")

    with pytest.raises(
        DataError, match=rf"raised KeyError: 'room' \(test_multi_turn.py, line \d+\) for the problem '{PROBLEM.id}'"
    ):
        play(NoRoom())


def test_an_episode_without_a_method_is_refused_before_its_first_turn():
    class Silent(Building):
        def episode(self, problem, seed):
            return type("Room", (), {"open": lambda self: "", "stepp": lambda self, text: None})()

    with pytest.raises(ConfigError, match=r"the task's episode has a method 'stepp', .* did you mean 'step'"):
        play(Silent())


def test_the_sampler_and_the_trainer_agree_on_every_turn_and_with_truncation_too():
    backend = ToyBackend()
    for sampling in (SAMPLING, replace(SAMPLING, top_k=5)):
        groups = play(Building(doors=3), samples=4, sampling=sampling)
        scored = [replace(g, rollouts=tuple(replace(r, reward=0.0) for r in g.rollouts)) for g in groups]
        batch = make_batch(scored, backend.tokenizer.pad_id)
        found = backend.score(batch, sampling, frozenset())
        gap = np.abs(found.logprobs - batch.sampling_logprobs)[batch.completion_mask]
        assert gap.max() < 1e-5
        assert (found.logprobs[~batch.completion_mask] == 0).all()


def test_equal_keys_give_equal_episodes_whatever_else_is_played_and_however_many_at_once():
    alone = play(Building())[0].rollouts[0]
    beside = play(Building(workers=4), samples=6)[0].rollouts
    assert beside[0].completion_ids.tolist() == alone.completion_ids.tolist()
    assert len({r.completion_ids.tobytes() for r in beside}) > 1


def test_attempts_at_one_problem_meet_one_world_and_other_problems_others():
    task = Building()
    play(task, [PROBLEM, Problem("q", "go")], samples=2)
    a, b, c, d = (corridor.seed for corridor in task.made)
    assert a == b != c == d


@pytest.mark.parametrize(
    ("breaks_at", "why"),
    [("open", "did not load"), ("step", "page crashed"), ("bug", "KeyError")],
)
@pytest.mark.filterwarnings("error")
def test_a_world_that_breaks_costs_its_own_rollout_only(breaks_at, why):
    task = Building(breaks_at=breaks_at)
    groups = play(task, [PROBLEM, Problem("whole", "go")])
    reward = Term("doors", 1.0, lambda pairs: [Score(float(r.outcome["doors"])) for _, r in pairs])
    broken, whole = (group.rollouts[0] for group in score_groups(groups, [reward]))
    assert broken.reward is None
    assert why in broken.unscored
    assert (whole.reward, whole.unscored) == (2.0, None)
    assert [corridor.closed for corridor in task.made] == [1, 1]


@pytest.mark.parametrize(
    ("method", "returned", "why"),
    [
        ("open", None, "open returned None (NoneType); expected an observation, a text or messages"),
        ("open", 5, "open returned 5 (int); expected an observation, a text or messages"),
        ("step", None, "step returned None (NoneType); expected steadyrl.core.protocols.Turn"),
        (
            "step",
            ("seen", 1.0, True),
            "step returned ('seen', 1.0, True) (tuple); expected steadyrl.core.protocols.Turn",
        ),
        ("step", Turn(5, False), "step returned 5 (int); expected an observation, a text or messages"),
        ("step", Turn("seen", "no"), "step returned 'no' (str); expected True or False in Turn"),
        ("close", None, "close returned None (NoneType); expected a dict, which may be empty"),
        ("close", [1], "close returned [1] (list); expected a dict, which may be empty"),
        (
            "close",
            {"score": 1j},
            "close returned {'score': 1j} (dict); expected a dict of values that JSON has (Object of type complex "
            "is not JSON serializable)",
        ),
    ],
)
def test_an_episode_that_returns_something_else_costs_its_own_rollout_only(method, returned, why):
    class Wrong(Building):
        def episode(self, problem, seed):
            corridor = super().episode(problem, seed)
            if problem.id != "whole":
                setattr(corridor, method, lambda *text: returned)
            return corridor

    whole, wrong = (group.rollouts[0] for group in play(Wrong(), [Problem("whole", "go"), PROBLEM]))
    assert whole.unscored is None
    assert whole.outcome == {"doors": 2}
    assert wrong.unscored == f"the episode of 'p' raised TypeError: {why}"


def test_an_environment_that_ends_python_costs_its_own_rollout_only():
    class Leaves(Corridor):
        def step(self, text):
            raise SystemExit(1)

    class House(Building):
        def episode(self, problem, seed):
            return Leaves(seed) if problem.id == "p" else super().episode(problem, seed)

    whole, left = (group.rollouts[0] for group in play(House(), [Problem("whole", "go"), PROBLEM]))
    assert whole.unscored is None
    assert left.unscored.startswith("the episode of 'p' raised SystemExit: 1 (test_multi_turn.py, line ")


def test_a_user_who_interrupts_leaves_no_episode_open():
    class Interrupted(Building):
        def episode(self, problem, seed):
            corridor = super().episode(problem, seed)

            def step(text):
                raise KeyboardInterrupt

            corridor.step = step
            return corridor

    task = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        play(task, samples=3)
    assert [corridor.closed for corridor in task.made] == [1, 1, 1]


def test_turns_and_tokens_are_bounded():
    cut = play(Building(max_turns=2, doors=9))[0].rollouts[0]
    assert (len(cut.turns), cut.stop_reason) == (2, "length")
    for limit in (12, 30, 31, 40):
        rollout = play(Building(doors=9, max_turns=9), max_tokens=limit)[0].rollouts[0]
        assert len(rollout.prompt_ids) + len(rollout.completion_ids) <= limit
        assert rollout.stop_reason == "length"
        assert rollout.turns or limit == 12  # the prompt has 9 tokens, a turn 4
    assert len(play(Building(doors=9, max_turns=9))[0].rollouts[0].turns) == 9


def test_what_the_policy_read_before_each_turn_is_kept_for_readers():
    (group,) = play(Building(doors=3, max_turns=9))
    rollout = group.rollouts[0]
    assert (rollout.seen, len(rollout.turns)) == (("door 1", "door 2", "door 3"), 3)
    (record,) = rollout_records([group])
    assert record["seen"] == list(rollout.seen)
    cut = play(Building(max_turns=2, doors=9))[0].rollouts[0]
    assert (len(cut.turns), len(cut.seen)) == (2, 3)  # nobody answered the last one
    (record,) = rollout_records([replace(group, rollouts=(replace(rollout, seen=("x" * 9000,)),))])
    assert record["seen"] == ["x" * 4000]


def test_how_many_episodes_are_over_is_counted():
    heard = []
    with heard_by(lambda *count: heard.append(count)):
        play(Building(doors=2, max_turns=9), samples=3)
    assert [count for count in heard if count[0] == "episodes"][-1] == ("episodes", 3, 3)


def test_a_prompt_that_leaves_no_room_for_a_turn_ends_there():
    rollout = play(Building(), max_tokens=12)[0].rollouts[0]
    assert (rollout.turns, rollout.stop_reason, len(rollout.completion_ids)) == ((), "length", 0)


def test_episodes_are_stepped_side_by_side_when_a_task_says_so():
    meeting = threading.Barrier(3, timeout=10)

    class Meeting(Building):
        def episode(self, problem, seed):
            corridor = super().episode(problem, seed)
            whole = corridor.step

            def step(text):
                meeting.wait()  # passes only while three are stepped at once
                return whole(text)

            corridor.step = step
            return corridor

    play(Meeting(workers=3), samples=3)


def test_an_expert_shows_the_way_and_nobody_drew_its_tokens():
    backend, task = ToyBackend(), Building()
    (group,) = demonstrate(backend, [PROBLEM], task, (0, 0), Environment(task, 4))
    (rollout,) = group.rollouts
    tokenizer = backend.tokenizer
    said = [*tokenizer.encode_prompt("open").tolist(), tokenizer.end_id]
    between = tokenizer.encode_prompt("\ndoor 2\n").tolist()
    assert rollout.completion_ids.tolist() == [*said, *between, *said]
    assert rollout.completion_mask.tolist() == [True] * 5 + [False] * len(between) + [True] * 5
    assert np.isnan(rollout.sampling_logprobs[rollout.completion_mask]).all()
    assert rollout.outcome == {"doors": 2}


def test_problems_that_nobody_can_show_are_left_out_and_none_at_all_is_an_error():
    class Book:
        name = "book"

        def gold(self, problem):
            return {"a": "yes"}.get(problem.id)

    backend = ToyBackend()
    groups = demonstrate(backend, [Problem("a", "q"), Problem("b", "q")], Book(), (0, 0))
    assert [group.problem.id for group in groups] == ["a"]
    assert groups[0].rollouts[0].text == "yes"
    with pytest.raises(DataError, match="knows no good answer to any of 1 problem,"):
        demonstrate(backend, [Problem("b", "q")], Book(), (0, 0))
    task = Building(doors=0)
    with pytest.raises(DataError, match="'building' knows no good answer"):
        demonstrate(backend, [PROBLEM], task, (0, 0), Environment(task, 4))


def test_a_task_answers_back_if_it_has_episodes():
    task = Building()
    limits = RolloutSection(max_tokens=64, observation_tokens=9)
    assert environment_of(task, SAMPLING, limits) == Environment(task, 4, 64, 9)
    assert not environment_of(task, SAMPLING, RolloutSection(turns="ready")).together
    assert environment_of(object(), SAMPLING, RolloutSection()) is None


def test_where_no_turn_fits_the_limit_and_what_to_set_are_named():
    problems = [PROBLEM, Problem("q", "go there")]
    groups = play(Building(), problems, max_tokens=12)  # prompts of 9 and 15 tokens, a turn of 4
    environment = Environment(Building(), 4, 12)
    said = (
        r"rollout\.max_tokens = 12 .* take 9 to 15 tokens.* sampling\.max_new_tokens = 4; set rollout\.max_tokens to 19"
    )
    with pytest.raises(DataError, match=said):
        require_tokens(groups, environment)
    with pytest.raises(DataError, match=said):
        demonstrate(ToyBackend(), problems, Building(), (0, 0), environment)
    # One of the two has a turn.
    require_tokens(play(Building(), problems, max_tokens=13), Environment(Building(), 4, 13))


class Wordy(Building):
    """A corridor whose doors have names of 30 characters, with a line that asks for a turn."""

    def episode(self, problem, seed):
        corridor = super().episode(problem, seed)
        whole = corridor.step

        def step(text):
            turn = whole(text)
            return turn if turn.done else Turn(f"{turn.observation} {'x' * 30}\naction:", False)

        corridor.step = step
        return corridor


def play_wordy(observation_tokens):
    task = Wordy(doors=3)
    environment = Environment(task, 4, 0, observation_tokens)
    return task, collect(ToyBackend(), [PROBLEM], 1, SAMPLING, (0, 0), 7, environment)


def test_an_observation_that_takes_too_many_tokens_is_cut_and_its_last_line_stays():
    tokenizer = CharTokenizer()
    assert cut_observation(tokenizer, "door 2\naction:", 14) == "door 2\naction:"
    assert cut_observation(tokenizer, "door number 2 of 9\naction:", 25) == "door number 2 ...\naction:"
    assert cut_observation(tokenizer, "door number 2 of 9\naction:", 20) == "door number 2 of ..."
    assert cut_observation(tokenizer, "door number 2", 10) == "door n ..."
    assert cut_observation(tokenizer, "door number 2", 3) == "doo"


def test_cut_observations_are_counted_and_only_what_was_shown_is_in_the_rollout():
    tokenizer = CharTokenizer()
    task, groups = play_wordy(26)
    (rollout,) = groups[0].rollouts
    environment = [int(i) for i in rollout.completion_ids[~rollout.completion_mask] if i != tokenizer.end_id]
    shown = "".join(f"\ndoor {door} {'x' * 7} ...\naction:\n" for door in (2, 3))
    assert environment == tokenizer.encode_prompt(shown).tolist()
    assert (rollout.observations, rollout.observations_cut) == (3, 2)  # the first is short
    assert task.made[0].told == list(rollout.turns)
    assert reward_metrics(groups)["observation/cut"] == 2 / 3


def test_halves_of_surrogate_pairs_in_an_observation_are_read_as_question_marks():
    class Broken(Building):
        def episode(self, problem, seed):
            corridor = super().episode(problem, seed)
            corridor.open = lambda: "a \ud83d b"
            return corridor

    (rollout,) = play(Broken())[0].rollouts
    assert rollout.seen[0] == "a ? b"
    assert (rollout.outcome, rollout.unscored) == ({"doors": 2}, None)


def test_without_a_limit_observations_are_whole_and_nothing_is_counted():
    _, groups = play_wordy(0)
    (rollout,) = groups[0].rollouts
    assert len(rollout.completion_ids[~rollout.completion_mask]) > 2 * 45
    assert (rollout.observations, rollout.observations_cut) == (0, 0)
    assert "observation/cut" not in reward_metrics(groups)


def test_the_sampler_and_the_trainer_agree_where_observations_are_cut():
    backend, (_, groups) = ToyBackend(), play_wordy(20)
    scored = [replace(g, rollouts=tuple(replace(r, reward=0.0) for r in g.rollouts)) for g in groups]
    batch = make_batch(scored, backend.tokenizer.pad_id)
    found = backend.score(batch, SAMPLING, frozenset())
    assert np.abs(found.logprobs - batch.sampling_logprobs)[batch.completion_mask].max() < 1e-5


class Crowded(Building):
    """Counts how many of its corridors are open, and the sizes of the batches that are played in them."""

    def __init__(self, max_open=None, **of_building):
        super().__init__(**of_building)
        self.max_open, self.open, self.most = max_open, 0, 0
        self.counting = threading.Lock()

    def count(self, change):
        with self.counting:
            self.open += change
            self.most = max(self.most, self.open)

    def episode(self, problem, seed):
        corridor = super().episode(problem, seed)
        corridor.doors = 1 + len(self.made) % 4  # some are longer than others
        opens, closes = corridor.open, corridor.close

        def open_():
            self.count(1)
            return opens()

        def close():
            self.count(-1)
            return closes()

        corridor.open, corridor.close = open_, close
        return corridor


class Counting(ToyBackend):
    """Remembers how many prompts it was given at once."""

    def __init__(self):
        super().__init__()
        self.batches = []

    def generate(self, prompts, sampling, seeds):
        self.batches.append(len(prompts))
        return super().generate(prompts, sampling, seeds)


def play_crowded(together=True, **of_task):
    backend, task = Counting(), Crowded(**of_task)
    problems = [Problem(f"p{i}", "go") for i in range(4)]
    return backend, task, collect(backend, problems, 16, SAMPLING, (0, 0), 7, Environment(task, 4, together=together))


def test_without_a_bound_all_episodes_are_open_and_answered_in_one_batch():
    backend, task, _ = play_crowded()
    assert (task.most, task.open) == (64, 0)
    assert backend.batches == [64, 48, 32, 16]  # 16 corridors each of 1, 2, 3 and 4 doors


@pytest.mark.parametrize("workers", [1, 2])
def test_never_more_episodes_are_open_than_the_task_allows_and_a_free_place_is_taken_at_once(workers):
    backend, task, _ = play_crowded(max_open=8, workers=workers)
    assert (task.most, task.open) == (8, 0)
    assert [corridor.closed for corridor in task.made] == [1] * 64
    # 160 turns in batches of 8 are 20; no batch but the last ones, for which no episodes are left, is smaller.
    assert sum(backend.batches) == 160
    assert backend.batches[:18] == [8] * 18


def test_rollouts_do_not_depend_on_how_many_episodes_may_be_open():
    def told(groups):
        return [
            (r.problem_id, r.completion_ids.tolist(), r.sampling_logprobs.tolist(), r.turns, r.outcome, r.stop_reason)
            for group in groups
            for r in group.rollouts
        ]

    whole = told(play_crowded()[2])
    assert len({str(one) for one in whole}) > 32
    for max_open in (1, 3, 64, 100):
        assert told(play_crowded(max_open=max_open, workers=2)[2]) == whole
    for max_open, workers in ((3, 2), (None, 1), (None, 8)):
        assert told(play_crowded(together=False, max_open=max_open, workers=workers)[2]) == whole


class Waiting(Building):
    """One corridor whose first door opens when another corridor has been walked through."""

    def __init__(self, **of_building):
        super().__init__(**of_building)
        self.through, self.waited = threading.Event(), None

    def episode(self, problem, seed):
        corridor = super().episode(problem, seed)
        whole = corridor.step

        def slow(text):
            if self.waited is None:
                self.waited = self.through.wait(1.0)
            return whole(text)

        def quick(text):
            turn = whole(text)
            if turn.done:
                self.through.set()
            return turn

        corridor.step = slow if len(self.made) == 1 else quick
        return corridor


@pytest.mark.parametrize("together", [True, False])
def test_a_slow_environment_is_waited_for_only_where_turns_come_together(together):
    """Were the second corridor not walked to its end meanwhile, the first one would wait for nothing."""
    task = Waiting(doors=3, workers=2)
    groups = play(task, samples=2, together=together)
    assert task.waited is not together
    assert [r.outcome for r in groups[0].rollouts] == [{"doors": 3}] * 2
    assert groups[0].rollouts[0].turns == play(Building(doors=3), samples=2)[0].rollouts[0].turns


def test_turns_that_are_ready_at_once_are_answered_in_one_batch():
    """A single worker has all answers at once, and the bound holds as it does where turns come together."""
    backend, task, _ = play_crowded(together=False)
    assert backend.batches == [64, 48, 32, 16]
    backend, task, _ = play_crowded(together=False, max_open=8, workers=4)
    assert (task.most, task.open, sum(backend.batches)) == (8, 0, 160)
    assert [corridor.closed for corridor in task.made] == [1] * 64


def test_an_interrupt_while_the_policy_answers_closes_what_is_open():
    class Stopped(ToyBackend):
        calls = 0

        def generate(self, prompts, sampling, seeds):
            self.calls += 1
            if self.calls == 3:
                raise KeyboardInterrupt
            return super().generate(prompts, sampling, seeds)

    task = Crowded(workers=4, doors=9)
    with pytest.raises(KeyboardInterrupt):
        collect(Stopped(), [PROBLEM], 12, SAMPLING, (0, 0), 7, Environment(task, 4, together=False))
    assert task.open == 0
    assert {corridor.closed for corridor in task.made} == {1}


@pytest.mark.filterwarnings("error")
def test_a_place_is_free_again_when_an_episode_breaks_or_has_no_room():
    task = Crowded(max_open=2, breaks_at="open")
    groups = play(task, [Problem(f"p{i}", "go") for i in range(5)])
    assert [g.rollouts[0].unscored for g in groups] == ["the page did not load"] * 5
    assert (task.most, task.open, len(task.made)) == (1, 0, 5)  # each is closed where it broke
    task = Crowded(max_open=2)
    groups = play(task, [Problem(f"p{i}", "go") for i in range(5)], max_tokens=12)
    assert [g.rollouts[0].stop_reason for g in groups] == ["length"] * 5
    assert (task.most, task.open, len(task.made)) == (1, 0, 5)


def test_a_user_who_interrupts_closes_what_is_open_and_opens_nothing_more():
    class Interrupted(Crowded):
        def episode(self, problem, seed):
            corridor = super().episode(problem, seed)
            if len(self.made) == 4:

                def step(text):
                    raise KeyboardInterrupt

                corridor.step = step
            return corridor

    task = Interrupted(max_open=2)
    with pytest.raises(KeyboardInterrupt):
        play(task, samples=9)
    assert task.open == 0
    assert {corridor.closed for corridor in task.made} == {1}
    assert 4 <= len(task.made) < 9


def test_an_environment_that_hangs_does_not_hold_an_interrupt(monkeypatch):
    monkeypatch.setattr(multi_turn, "_CLOSE_S", 0.2)
    gone = threading.Event()

    class Hanging(Crowded):
        def episode(self, problem, seed):
            corridor = super().episode(problem, seed)
            if len(self.made) == 1:
                corridor.step = lambda text: gone.wait(30)
            if len(self.made) == 2:
                corridor.step = lambda text: os.kill(os.getpid(), signal.SIGINT)
            return corridor

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    began = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            play(Hanging(max_open=3, workers=2), samples=3)
    finally:
        signal.signal(signal.SIGINT, before)
        gone.set()
    assert time.monotonic() - began < 15
