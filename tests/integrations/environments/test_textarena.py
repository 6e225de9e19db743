"""Games of TextArena, by its own environments."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from steadyrl.core.errors import ConfigError
from tests.integrations.environments.played import PROBLEM, environment, says, task_of, ten_steps
from tests.needs import skip_without_packages

skip_without_packages("textarena", extra="textarena")

NUMBER = environment("textarena", {"id": "GuessTheNumber-v0"}, max_turns=10)
HERE = "tests.integrations.environments.played"


def searched(episode):
    """Find the number by halves; return the guesses and the outcome."""
    (opening,) = episode.open()
    assert "between 1 and 20" in opening["content"]
    low, high, guesses = 1, 20, []
    while True:
        guesses.append((low + high) // 2)
        turn = episode.step(says(f"[{guesses[-1]}]"))
        if turn.done:
            return guesses, episode.close()
        (hint,) = turn.observation
        assert hint["content"] in ("The target number is lower.", "The target number is higher.")  # and nothing else
        low, high = (low, guesses[-1] - 1) if "lower" in hint["content"] else (guesses[-1] + 1, high)


def test_a_game_is_played_to_its_end():
    task = task_of(NUMBER)
    guesses, outcome = searched(task.episode(PROBLEM, 5))
    assert len(guesses) <= 5 and guesses[-1] == random.Random(5).randint(1, 20)
    assert outcome["reward"] == 1.0 and outcome["invalid_move"] is False


def test_games_at_the_same_time_are_those_of_their_seeds_and_the_global_generator_stays():
    task = task_of(NUMBER)
    seeds = [*range(8)] * 4
    random.seed(1)
    before = random.getstate()
    with ThreadPoolExecutor(8) as pool:
        numbers = [guesses[-1] for guesses, _ in pool.map(lambda seed: searched(task.episode(PROBLEM, seed)), seeds)]
    assert numbers == [random.Random(seed).randint(1, 20) for seed in seeds]
    assert random.getstate() == before


def test_two_wrong_forms_end_a_game_and_one_that_did_not_end_has_no_reward():
    task = task_of(NUMBER)
    episode = task.episode(PROBLEM, 5)
    episode.open()
    assert "invalid move" in episode.step(says("[x]")).observation[0]["content"]
    assert "reward" not in episode.close()
    assert episode.step(says("[y]")).done
    assert episode.close()["reward"] == 0.0 and episode.close()["invalid_move"]


@pytest.mark.parametrize(("player", "moves", "reward"), [(0, "012", 1.0), (1, "01", -1.0)])
def test_somebody_plays_the_other_side(player, moves, reward):
    """The other takes the last free square: 8, 7, and with 6 its row is full where it began."""
    arguments = {"id": "TicTacToe-v0", "players": 2, "player": player, "opponent": f"{HERE}:last_square"}
    episode = task_of(environment("textarena", arguments)).episode(PROBLEM, 0)
    seen = episode.open()[0]["content"]
    assert f"You are Player {player} in Tic Tac Toe" in seen
    assert ("placed their symbol" in seen) == (player == 1)  # the other began
    turns = [episode.step(says(f"[{move}]")) for move in moves]
    assert [turn.done for turn in turns] == [False] * (len(moves) - 1) + [True]
    assert episode.close()["reward"] == reward


def test_players_without_somebody_to_play_them_are_refused():
    with pytest.raises(ConfigError, match="give environment_args an 'opponent'"):
        task_of(environment("textarena", {"id": "TicTacToe-v0", "players": 2}))
    with pytest.raises(ConfigError, match="player = 2 with 2 players; expected 0 to 1"):
        task_of(
            environment(
                "textarena", {"id": "TicTacToe-v0", "players": 2, "player": 2, "opponent": f"{HERE}:last_square"}
            )
        )
    with pytest.raises(ConfigError, match="NoGame not found in registry"):
        task_of(environment("textarena", {"id": "NoGame"}))


def test_it_trains_ten_steps(tmp_path):
    lines = ten_steps(tmp_path, NUMBER, {"episode_return": 1.0})
    assert all(-1 <= line["reward/mean"] <= 1 for line in lines)
