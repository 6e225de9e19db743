"""A few pages of the campaign of hostile ones: each way by which pages once reached other ports of this machine."""

import importlib
import itertools
import socket
import time
from collections import Counter
from pathlib import Path

import pytest


@pytest.fixture
def pages(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[4] / "bench" / "campaign"))
    return importlib.import_module("pages")


def test_a_seed_gives_the_same_pages_and_every_way_is_tried_first(pages):
    first, again, other = (list(itertools.islice(pages.attacks(seed), 200)) for seed in (1, 1, 2))
    assert first == again != other
    ways = {*pages.MARKUP, *pages.SCRIPTS, *pages.HEADERS, *pages.FILES}
    assert {attack.way for attack in first[: len(ways)]} == ways
    assert min(Counter(attack.promise for attack in first).values()) >= 3


def test_a_listener_notices_connections_and_datagrams(pages):
    listeners = pages.Listeners()
    tcp, udp, alone = (listeners.open() for _ in range(3))
    with socket.create_connection(("127.0.0.1", tcp)), socket.socket(type=socket.SOCK_DGRAM) as one:
        one.sendto(b"x", ("127.0.0.1", udp))
        time.sleep(0.3)
    listeners.close()
    assert listeners.touched == {tcp: "TCP", udp: "UDP"} and alone not in listeners.touched


# A way of each kind to reach a port; each week's run tries its likes as well.
WAYS = [
    "socket", "web transport", "relay over TCP", "peer over UDP", "shared worker with a socket",
    "speculative prerender", "download", "form in a new tab",
]  # fmt: skip
LIKES = [
    "secure socket", "peer over TCP", "relay over UDP", "shared worker that fetches", "speculative prefetch", "frame",
    "file in a frame",
]  # fmt: skip


@pytest.mark.browser
@pytest.mark.parametrize(
    ("ways", "parting", "hops"),
    [
        (WAYS, ["fetch later"], [("fetch", "localhost", 302)]),
        pytest.param(
            LIKES,
            ["beacon", "fetch kept alive"],
            [("fetch", "127.0.0.1", 302), ("frame", "127.0.0.1", 307)],
            marks=pytest.mark.weekly,
        ),
    ],
)
def test_no_page_reaches_another_port_of_this_machine(pages, tmp_path, monkeypatch, ways, parting, hops):
    monkeypatch.setattr(pages, "LATE_S", 2.0)
    attacks = [pages.Attack(way) for way in ways]
    attacks += [pages.Attack(way, moment="leave") for way in parting]
    attacks += [pages.Attack(way, host, hop) for way, host, hop in hops]
    campaign = pages.Campaign(tmp_path)
    for attack in attacks:
        campaign.attempt(attack)
    rows = campaign.end()
    assert [failure for _, _, failures in rows for failure in failures] == []
    assert campaign.hung == []
    assert sum(trials for promise, trials, _ in rows if promise not in (pages.ORIGIN, pages.NEXT)) == len(attacks)
