"""Ballots to verdicts: cache first, then the endpoint, several at a time; failures are counted, and too many stop it.

Verdicts are on disk by the content of what was asked: one small JSON file each, written beside its place and renamed.

A verdict that cannot be had costs one rollout its reward and no more. Only when more than ``judge.max_failed`` of the
verdicts of the last ``judge.window`` scorings fail does the run stop, with one error. A scoring without any verdict is
asked again, for a step of it could not train; each time counts, so that a judge which is down for long stops the run.
"""

from __future__ import annotations

import hashlib
import json
import logging
import tempfile
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any
from uuid import uuid4

from steadyrl.core.counting.count import tell
from steadyrl.core.errors import AccessError, EngineError
from steadyrl.core.rundir import parse_json
from steadyrl.loop.rewards.judge.client import ChatClient, NoReplyError, Reply
from steadyrl.loop.rewards.judge.modes import MODES, Answer, Ballot, Contest, Opinion
from steadyrl.loop.rewards.judge.prompts import repair_messages
from steadyrl.loop.rewards.judge.settings import JudgeSettings
from steadyrl.loop.rewards.judge.verdicts import MalformedVerdictError, Verdict

log = logging.getLogger(__name__)

_LEAST = 16  # verdicts that must have failed before the rest of a scoring is given up, or the run is stopped
_MILLION = 1e6
_NOT_ASKED = "not asked: all before it failed"
_FORM = 1  # of prompts and entries: raised when either changes, so that older verdicts are asked for again


@dataclass(frozen=True)
class BallotResult:
    """What became of one ballot."""

    answer: Answer
    """A verdict, or why there is none."""
    replies: Sequence[Reply] = ()
    """Of the endpoint, one or, with a repair, two."""
    requests: int = 0
    """Made for it, further tries included."""
    seconds: float = 0.0
    """From the first request to the verdict."""
    repaired: bool = False
    """Whether the judge had to be told that its verdict was none."""


class Panel:
    """Asks one endpoint."""

    def __init__(self, section: JudgeSettings):
        """Open the cache and take the key; errors as of ``VerdictCache`` and ``ChatClient``."""
        self._section, self._mode = section, MODES[section.mode]
        self._client = ChatClient(section)
        self._cache = VerdictCache(section) if section.cache else None
        self._recent: deque[tuple[int, int]] = deque(maxlen=section.window)  # (failed, asked) of each scoring
        self._results: list[BallotResult] = []  # since the last look, beside those that the cache knew
        self._cached = 0

    def opinions(self, contests: Sequence[Contest]) -> list[dict[str, Opinion]]:
        """Return for each contest an opinion by text; errors as of ``answers``."""
        by_contest = [self._mode.ballots(self._section, contest) for contest in contests]
        answers = iter(self.answers([ballot for ballots in by_contest for ballot in ballots]))
        votes = [[(ballot, next(answers)) for ballot in ballots] for ballots in by_contest]
        return [self._mode.settle(contest, cast) for contest, cast in zip(contests, votes, strict=True)]

    def answers(self, ballots: Sequence[Ballot]) -> list[Answer]:
        """Return a verdict on each ballot, or why there is none.

        Raises:
            EngineError: Too many failed, lately.
        """
        answers: dict[Ballot, Answer] = {}
        for ballot in dict.fromkeys(ballots):
            cached = self._cache.get(ballot.request, ballot.texts) if self._cache else None
            if cached is not None:
                answers[ballot] = cached
        self._cached += len(answers)
        missing = [ballot for ballot in dict.fromkeys(ballots) if ballot not in answers]
        while missing:
            new_answers = self._ask_all(missing)
            failures = [answer for answer in new_answers.values() if isinstance(answer, str)]
            failed = self._require_answering(failures, len(new_answers))
            answers |= new_answers
            # With any verdict, new or cached, the step can train, and what failed stays unscored.
            if failed < len(new_answers) or len(answers) > len(new_answers):
                break
            log.warning("the judge gave none of %d verdicts (%s); asking again", failed, _main_reason(failures))
        return [answers[ballot] for ballot in ballots]

    def drain(self) -> dict[str, float]:
        """Return judge/* of what was asked since the last call: shares, tokens, and cost where there is a price."""
        results, cached, self._results, self._cached = self._results, self._cached, [], 0
        if not results and not cached:
            return {}
        metrics = {"judge/verdicts": float(len(results) + cached), "judge/cached": cached / (len(results) + cached)}
        if not results:
            return metrics
        metrics["judge/failed"] = fmean(isinstance(result.answer, str) for result in results)
        metrics["judge/repaired"] = fmean(result.repaired for result in results)
        metrics["judge/requests"] = float(sum(result.requests for result in results))
        metrics["judge/latency"] = fmean(result.seconds for result in results)
        tokens = [reply.tokens for result in results for reply in result.replies]
        if metered := [counts for counts in tokens if counts is not None]:
            read, written = (float(sum(counts)) for counts in zip(*metered, strict=True))
            metrics |= {"judge/tokens_in": read, "judge/tokens_out": written}
            if self._section.price_in or self._section.price_out:
                metrics["judge/cost"] = (read * self._section.price_in + written * self._section.price_out) / _MILLION
        if len(metered) < len(tokens):
            metrics["judge/unmetered"] = float(len(tokens) - len(metered))
        return metrics

    def _ask_all(self, ballots: Sequence[Ballot]) -> dict[Ballot, Answer]:
        """Ask several at a time; where the first many all fail, the rest count as failed, unasked."""
        answers: dict[Ballot, Answer] = {}
        failures = 0
        with ThreadPoolExecutor(self._section.workers) as pool, ExitStack() as interrupted:
            interrupted.callback(self._client.stop)  # an interrupt must not wait for waits
            futures = {pool.submit(self._ask, ballot): ballot for ballot in ballots}
            try:
                for future in as_completed(futures):
                    result = future.result()
                    answers[futures[future]] = result.answer
                    self._results.append(result)
                    tell("verdicts of the judge", len(answers), len(ballots))
                    failures += isinstance(result.answer, str)
                    if failures == len(answers) >= _LEAST:
                        break
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
            interrupted.pop_all()
        for future, ballot in futures.items():
            if ballot not in answers:
                result = BallotResult(_NOT_ASKED) if future.cancelled() else future.result()
                answers[ballot] = result.answer
                self._results.append(result)
        return answers

    def _require_answering(self, failures: Sequence[str], count: int) -> int:
        """Note how many of a scoring's verdicts failed, and return it."""
        self._recent.append((len(failures), count))
        failed, total = (sum(counts) for counts in zip(*self._recent, strict=True))
        has_evidence = total >= _LEAST or len(self._recent) == self._section.window
        if has_evidence and failed / total > self._section.max_failed:
            raise EngineError(
                f"the judge '{self._section.model}' at {self._section.base_url} gave no verdict in {failed} of the last"
                f" {total} cases, more than rewards.judge.max_failed = {self._section.max_failed:g}; mostly: "
                f"{_main_reason(failures)}"
            )
        return len(failures)

    def _ask(self, ballot: Ballot) -> BallotResult:
        """Ask for one verdict, with one repair; keep it. Runs in a thread."""
        section, criteria = self._section, list(self._section.criteria)
        question = self._mode.question(section.criteria, ballot.request, ballot.texts)
        began = time.monotonic()
        until = began + section.deadline_s
        replies: list[Reply] = []
        answer: Answer
        requests = 0
        try:
            replies.append(self._client.ask(question.messages, until))
            try:
                answer = self._mode.read(replies[0].text, question, criteria)
            except MalformedVerdictError as error:
                repair = repair_messages(question, replies[0].text[:2000], str(error))
                replies.append(self._client.ask(repair, until))
                answer = self._mode.read(replies[1].text, question, criteria)
        except NoReplyError as error:
            answer, requests = str(error), error.requests
        except MalformedVerdictError as error:
            answer = f"no valid verdict, nor when asked again: {error}{replies[-1].hint}"
        if self._cache and not isinstance(answer, str):
            self._cache.put(ballot.request, ballot.texts, answer)
        requests += sum(reply.requests for reply in replies)
        return BallotResult(answer, replies, requests, time.monotonic() - began, len(replies) > 1)


def _main_reason(failures: Sequence[str]) -> str:
    """Return why most of those failed that were asked; that the others were not asked is no reason."""
    reasons = [reason for reason in failures if reason != _NOT_ASKED]
    return Counter(reasons).most_common(1)[0][0] if reasons else "see the rollouts"


class VerdictCache:
    """A folder of verdicts; may be shared by threads and by runs. What cannot be read is asked for again."""

    def __init__(self, section: JudgeSettings):
        """Open the folder.

        Raises:
            AccessError: It cannot be made or written.
        """
        self._folder = Path(section.cache)
        # Fences and labels are not in it: they are new each time and mean nothing. The address is: two servers may
        # give two models one name.
        self._judge = [_FORM, section.mode, section.base_url, section.model, dict(section.criteria), section.request]
        self._warned = False
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self._folder):
                pass
        except OSError as error:
            raise AccessError(
                f"rewards.judge.cache: cannot write in '{self._folder}' ({error.strerror}); give another folder, "
                "or '' for none"
            ) from error

    def get(self, request: str, texts: Sequence[str]) -> Verdict | None:
        """Return the verdict on these texts in this order, or None if there is none."""
        try:
            record = parse_json(self._path(request, texts).read_text(encoding="utf-8"))
            return _read_verdict(record, len(texts))
        except (OSError, ValueError, TypeError, KeyError):
            return None  # not asked yet, or damaged

    def put(self, request: str, texts: Sequence[str], verdict: Verdict) -> None:
        """Keep a verdict. A full disk costs the entry and one warning, not the run."""
        path = self._path(request, texts)
        record = {"values": verdict.values, "parts": dict(verdict.by_criterion), "reason": verdict.reason}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # A name of its own: two runs may write the same verdict at the same time.
            part = path.with_name(f"{path.stem}-{uuid4().hex}.part")
            part.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
            part.replace(path)
        except OSError as error:
            if not self._warned:
                log.warning("rewards.judge.cache: verdicts cannot be kept in '%s' (%s)", self._folder, error.strerror)
            self._warned = True

    def _path(self, request: str, texts: Sequence[str]) -> Path:
        content = json.dumps([*self._judge, request, list(texts)], sort_keys=True)
        name = hashlib.sha256(content.encode()).hexdigest()
        return self._folder / name[:2] / f"{name}.json"


def _read_verdict(record: Mapping[str, Any], count: int) -> Verdict:
    values, grades = record["values"], dict(record["parts"])
    numbers = [*values, *grades.values()]
    if len(values) != count or not all(isinstance(x, int | float) and 0 <= x <= 1 for x in numbers):
        raise ValueError("an entry of another form")
    return Verdict(tuple(map(float, values)), {str(k): float(v) for k, v in grades.items()}, str(record["reason"]))
