"""What the site knows: products, a cart, tickets, settings, and what was done so far."""

from __future__ import annotations

from dataclasses import dataclass, field

from steadyrl.environments.browse.pages import Control


@dataclass(frozen=True)
class Product:
    """Something on sale."""

    name: str
    category: str
    color: str
    price: int


@dataclass
class Ticket:
    """A request of a customer."""

    subject: str
    customer: str
    status: str = "open"
    priority: str = "normal"
    replies: list[str] = field(default_factory=list)


@dataclass
class World:
    """The state of one site, which one episode has to itself."""

    products: list[Product] = field(default_factory=list)
    """What is on sale; a product's number is its place here."""
    per_page: int = 20
    """Rows of a list before there is a next page."""
    is_searched: bool = False
    """Whether the list of products offers a search, and shows nothing before it."""
    is_filtered: bool = False
    """Whether it offers a choice of colours."""
    shows_prices: bool = True
    """Whether it shows prices, or only the product's own page does."""
    cart: list[int] = field(default_factory=list)
    """Numbers of products."""
    orders: list[list[int]] = field(default_factory=list)
    """What was ordered."""
    tickets: list[Ticket] = field(default_factory=list)
    """A ticket's number is its place here."""
    groups: dict[str, str] = field(default_factory=dict)
    """The group of every customer."""
    articles: list[str] = field(default_factory=list)
    """Texts to read, by the words of their menu: "tools/pipe" is below "tools"."""
    buttons: list[str] = field(default_factory=list)
    """What the panel offers."""
    form: tuple[Control, ...] = ()
    """The controls of the settings page."""
    saved: dict[str, str] | None = None
    """What that form was last saved with; None before."""
    events: list[str] = field(default_factory=list)
    """What was looked at and done, such as "item 3" or "press send", in order."""
    answer: str | None = None
    """What the episode ended with; None before."""

    def did(self, verb: str) -> list[str]:
        """Return what was done of one kind: ``did("press")`` is ["send"] after the event "press send"."""
        return [event.removeprefix(f"{verb} ") for event in self.events if event.startswith(f"{verb} ")]
