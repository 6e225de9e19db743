"""Problems of the help desk: articles to be read, tickets to be answered, customers to be looked up."""

from __future__ import annotations

import random

from steadyrl.environments.browse.quest import Quest, Step, by_level, question
from steadyrl.environments.browse.words import CUSTOMERS, GROUPS, NOUNS, REPLIES, names
from steadyrl.environments.browse.world import Ticket, World


def open_article(rng: random.Random, level: int) -> Quest:
    """One link of a menu."""
    count = by_level(level, 2, 4, 6, 9)
    articles = rng.sample(NOUNS, count) if level < 3 else names(rng, count, alike=level == 4)
    article = rng.choice(articles)
    return Quest(
        goal=f"open {article}",
        world=World(articles=articles),
        start="/help",
        milestones=(),
        solved=lambda world: world.did("read")[:1] == [article],
        over=lambda world: bool(world.did("read")),
        plan=(Step("click", "link", article),),
    )


def close(rng: random.Random, level: int) -> Quest:
    """A ticket whose status is set."""
    world, target, ticket, start = _help_desk(rng, level)
    status = rng.choice(("pending", "closed"))
    return Quest(
        goal=f"set status of {ticket.subject} to {status}",
        world=world,
        start=start,
        milestones=(lambda world: f"ticket {target}" in world.events,) if level > 1 else (),
        solved=lambda world: world.did("status") == [str(target)] and world.tickets[target].status == status,
        over=lambda world: bool(world.did("status")),
        plan=(
            Step("click", "link", ticket.subject),
            Step("select", "select", "status", status),
            Step("click", "button", "save", when=lambda world: world.did("ticket")[-1:] == [str(target)]),
        ),
    )


def reply(rng: random.Random, level: int) -> Quest:
    """A reply to a ticket."""
    world, target, ticket, start = _help_desk(rng, level)
    text = " ".join(rng.sample(REPLIES, 1 if level < 3 else 2))
    return Quest(
        goal=f"reply {text} to {ticket.subject}",
        world=world,
        start=start,
        milestones=(lambda world: f"ticket {target}" in world.events,) if level > 1 else (),
        solved=lambda world: world.did("reply") == [str(target)] and world.tickets[target].replies == [text],
        over=lambda world: bool(world.did("reply")),
        plan=(
            Step("click", "link", ticket.subject),
            Step("type", "textbox", "reply", text),
            Step("click", "button", "send", when=lambda world: world.did("ticket")[-1:] == [str(target)]),
        ),
    )


def lookup(rng: random.Random, level: int) -> Quest:
    """A question about a customer, upwards of level 3 about that of a ticket."""
    world, target, ticket, _ = _help_desk(rng, level)
    world.groups = {t.customer: rng.choice(GROUPS) for t in world.tickets}
    customer, group = ticket.customer, world.groups[ticket.customer]
    plan = [Step("click", "link", customer), Step("stop", "", group, beside=group)]
    if level > 2:
        at_ticket = Step("click", "link", customer, when=lambda world: world.did("ticket")[-1:] == [str(target)])
        plan = [Step("click", "link", ticket.subject), at_ticket, plan[-1]]
    return question(
        goal=f"group of {customer}" if level < 3 else f"group of the customer of {ticket.subject}",
        world=world,
        start=(f"/customer/{customer}", "/customers", "/tickets", "/tickets")[level - 1],
        answer=group,
        plan=plan,
        on_the_way="" if level == 1 else f"customer {customer}",
    )


def _help_desk(rng: random.Random, level: int) -> tuple[World, int, Ticket, str]:
    count = by_level(level, 1, 2, 4, 8)
    subjects = rng.sample(NOUNS, count) if level < 3 else names(rng, count)
    tickets = [Ticket(s, c) for s, c in zip(subjects, rng.sample(CUSTOMERS, count), strict=True)]
    target = rng.randrange(count)
    world = World(tickets=tickets, per_page=4)
    return world, target, tickets[target], f"/ticket/{target}" if level == 1 else "/tickets"
