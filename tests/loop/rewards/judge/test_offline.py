import math

import pytest

from steadyrl.core.types import Problem
from steadyrl.loop.rewards.combine import make_terms, score_texts, term_metrics
from steadyrl.loop.rewards.judge.judge import score_of
from steadyrl.loop.rewards.judge.settings import JudgeSettings
from tests import needs


class NoTask:
    name, metric = "none", ""

    def rewards(self):
        return {}

    def gold(self, problem):
        return None


@pytest.mark.parametrize(("ratio", "score"), [(0.0, 0.5), (math.log(3), 0.75), (-math.log(3), 0.25), (1e6, 1.0)])
def test_a_ratio_becomes_a_share(ratio, score):
    assert score_of(ratio, 1.0) == pytest.approx(score)


def test_nats_set_the_scale():
    assert score_of(2 * math.log(3), 2.0) == pytest.approx(0.75)


def test_the_offline_judge_scores_with_a_model_folder_and_no_server(tiny_models):
    needs.package("torch")
    section = JudgeSettings(mode="likelihood", model=str(tiny_models["llama"]))
    terms = make_terms({"judge": section}, NoTask())
    texts = ("sees a small dog", "", "dog " * 100, "\ud800")  # the last as ``task check`` tries it
    some, none, long, _ = score_texts([(Problem("p", "the red cat"), text) for text in texts], terms)
    assert 0 < some.reward < 1
    assert some.reward == pytest.approx(1 / (1 + math.exp(-some.parts["judge_ratio"])))
    assert none.reward == 0.0
    assert (long.reward, long.unscored) == (None, "judge: the text is longer than the judge's model can read")
    assert term_metrics(terms)["judge/verdicts"] == 3.0
