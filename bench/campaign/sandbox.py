"""All attacks on the sandbox, in every jail that holds here, again and again until the time is up.

    python bench/campaign/sandbox.py --minutes 10 [--seed 0] [--jail landlock] [--out FILE.json]

Three kinds of trials take turns: the attacks of tests/environments/code/sandbox/attacks in random order; answers that
search all of their memory for hidden tests, expected values and solutions of other jobs, against problems of cases
and of test code; and lines that a candidate might write, valid ones changed at random, which the trainer has to read
at once and without harm. A table says what was promised, how often it was tried and how often it failed; exit code 1
if it ever did. The list has every attack with the reason that it is there. Needs the package without extras; Linux.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # the attacks lie with the tests, which are no package that is installed

from steadyrl.environments.code.judge_tests import judge  # noqa: E402
from steadyrl.environments.code.problems import Case, CodeProblem  # noqa: E402
from steadyrl.environments.code.sandbox import values  # noqa: E402
from steadyrl.environments.code.sandbox.choose import probe  # noqa: E402
from steadyrl.environments.code.sandbox.outcome import Returned, read_outcome  # noqa: E402
from steadyrl.environments.code.sandbox.pool import Limits, Sandbox  # noqa: E402
from tests.environments.code.sandbox.attacks.every import EVERY  # noqa: E402
from tests.environments.code.sandbox.attacks.record import LIMITS, PATIENT, PROMISES, Ground, broken_by  # noqa: E402
from tests.environments.code.sandbox.memory_scan import SCAN, secret  # noqa: E402

JAILS = ("bubblewrap", "landlock")
SEARCHING = Limits(wall_s=60.0, cpu_s=30, memory_mib=512)
LINES = 2000  # changed at random, between two rounds of attacks
LINE_S = 1.0  # processor time for reading one candidate's lines, at most a megabyte
SEARCHED = "hidden tests, expected values and solutions lie in no answer's memory"
READ = "any bytes of a candidate are read at once, as values or as malformed"


class Table:
    """How often each promise was tried and failed, and what was seen where it failed."""

    def __init__(self) -> None:
        self.trials: Counter[tuple[str, str]] = Counter()
        self.failures: Counter[tuple[str, str]] = Counter()
        self.seen: list[str] = []

    def add(self, jail: str, promise: str, failure: str) -> None:
        """Count a trial, which failed unless ``failure`` is empty."""
        self.trials[jail, promise] += 1
        if failure:
            self.failures[jail, promise] += 1
            self.seen.append(f"{jail}: {failure}")

    def rows(self) -> list[dict[str, object]]:
        """Return a row per jail and promise."""
        return [
            {"jail": jail, "promise": promise, "trials": count, "failures": self.failures[jail, promise]}
            for (jail, promise), count in self.trials.items()
        ]


def main() -> None:
    """Attack until the time is up, print the table, and say by the exit code whether all promises held."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="at least one whole round is tried in any case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jail", choices=JAILS, action="append", help="default: every jail that holds here")
    parser.add_argument("--out", type=Path, help="write the table as JSON too")
    args = parser.parse_args()
    until = time.monotonic() + 60 * args.minutes
    rng, table = random.Random(args.seed), Table()
    jails = [jail for jail in args.jail or JAILS if not say_why_not(jail, probe(jail))]
    if not jails:
        sys.exit("no jail holds on this machine: nothing was tried")
    rounds = 0
    while not rounds or time.monotonic() < until:
        for jail in jails:
            attack(jail, table, rng)
            search(jail, table)
        read(table, rng)
        rounds += 1
    report(table, args, jails, rounds)
    sys.exit(1 if table.failures else 0)


def say_why_not(jail: str, reason: str) -> str:
    """Print why a jail is left out."""
    if reason:
        print(f"{jail} is left out: {reason}", file=sys.stderr)
    return reason


def attack(jail: str, table: Table, rng: random.Random) -> None:
    """Try every attack of the list once, in random order; those that need a limit have a worker of their own."""
    order = rng.sample(EVERY, len(EVERY))
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(Ground(Path(folder))) as ground,
        Sandbox(jail, LIMITS) as short,
        Sandbox(jail, PATIENT) as patient,
    ):
        for tried in order:
            pool = short if tried.slow else patient
            broken = {line.partition(":")[0]: line for line in broken_by(tried, pool, ground)}
            for promise, words in PROMISES.items():
                table.add(jail, words, f"{tried.id}: {broken[promise]}" if promise in broken else "")


def search(jail: str, table: Table) -> None:
    """Judge right answers, then one that reads all of its memory, on a problem of cases and one of test code."""
    hidden = [secret() for _ in range(4)]
    solution = f"def f(x):\n    KEPT = {hidden[0]!r}\n    return {hidden[1][:9]!r} + {hidden[1][9:]!r} * (x < 9)\n"
    script = f"for i in range(3):\n    assert f(i) == {hidden[1]!r}  # {hidden[2]}\n" + f"# {hidden[3]}\n" * 3000
    cases = tuple(Case((i,), hidden[1]) for i in range(3))
    with Sandbox(jail, SEARCHING) as pool:
        for problem in (CodeProblem("cases", "p", "f", cases=cases), CodeProblem("script", "p", "f", script=script)):
            rights = [judge(pool, solution, problem) for _ in range(4)]
            assert all(right.passed == right.total for right in rights), "the right answer passes"
            thief = judge(pool, f"{SCAN}\ndef f(x):\n    return scan()\n", problem)
            said = [result.value for result in thief.outcome.results if isinstance(result, Returned)]
            found = {name for names, _ in said for name in names} & set(hidden)
            failure = f"{problem.id}: found {sorted(found)}" if found or not said or thief.passed else ""
            table.add(jail, SEARCHED, failure)


def read(table: Table, rng: random.Random) -> None:
    """Read lines that no candidate should write, and compare what they say with values of a problem."""
    for _ in range(LINES):
        data = b'["compiled"]\n' + b"".join(changed(rng) for _ in range(rng.randint(1, 4)))
        began = time.process_time()
        try:
            outcome = read_outcome(data, 3, False, 0, 0.0)
            for result in outcome.results:
                if isinstance(result, Returned):
                    values.same(result.wire, {1: [2.0, (3, "x")]})
                    values.short_repr(result.wire)
                    values.line(result.wire)
            failure = "" if time.process_time() - began < LINE_S else f"slow: {data[:200]!r}"
        except Exception as error:
            failure = f"{type(error).__name__}: {data[:200]!r}"
        table.add("no jail", READ, failure)


def changed(rng: random.Random) -> bytes:
    """Return a line of a random value with some of its bytes changed, repeated or left out."""
    data = bytearray(values.line(["value", values.encode(value(rng, 4))]))
    for _ in range(rng.choice((0, 1, 1, 3, 20))):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(4):
            case 0:
                data[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                data[at:at] = rng.choice((b"[", b"]", b'"', b",", b"{", b"0", b"e", b"\\u", b"-", b"list", b"null"))
            case 2:
                data[at : at + rng.randint(1, 9)] = b""
            case _:
                data[at:at] = data[at : at + 20] * rng.choice((1, 2, 500))
    return bytes(data)


def value(rng: random.Random, room: int) -> object:
    """Return a random plain value, or one that is not plain."""
    leaves = (None, True, 0, -1, 1 << 80, 0.1, -0.0, float("nan"), float("inf"), 2j, "x\ud800\n{", b"\0", int, object())
    if room == 0 or rng.random() < 0.3:
        return rng.choice(leaves)
    items = [value(rng, room - 1) for _ in range(rng.randrange(5))]
    return rng.choice((list, tuple, lambda x: dict(enumerate(x)), lambda x: {repr(item) for item in x}))(items)


def report(table: Table, args: argparse.Namespace, jails: list[str], rounds: int) -> None:
    """Print the table and what was seen, and write both where that was asked for."""
    found = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "user": "root" if os.getuid() == 0 else "an ordinary user",
        "jails": jails,
        "attacks": len(EVERY),
        "seed": args.seed,
        "rounds": rounds,
        "table": table.rows(),
        "failed": table.seen[:100],
    }
    print(
        f"{found['attacks']} attacks, {rounds} rounds, seed {args.seed}, Python {found['python']}, as {found['user']}"
    )
    for line in table_lines(table.rows()):
        print(line)
    for seen in table.seen[:100]:
        print(seen, file=sys.stderr)
    if args.out:
        args.out.write_text(json.dumps(found, indent=2) + "\n")


def table_lines(rows: list[dict[str, object]]) -> Iterator[str]:
    """Yield the lines of a table as text."""
    yield f"{'jail':12} {'trials':>7} {'failures':>8}  promise"
    for row in rows:
        yield f"{row['jail']:12} {row['trials']:7} {row['failures']:8}  {row['promise']}"


if __name__ == "__main__":
    main()
