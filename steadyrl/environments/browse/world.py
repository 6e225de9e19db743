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
    """The state of one site, which one episode has to itself.

    Attributes:
        products: What is on sale; a product's number is its place here.
        per_page: Rows of a list before there is a next page.
        is_searched: Whether the list of products offers a search, and shows nothing before it.
        is_filtered: Whether it offers a choice of colours.
        shows_prices: Whether it shows prices, or only the product's own page does.
        cart: Numbers of products.
        orders: What was ordered.
        tickets: A ticket's number is its place here.
        groups: The group of every customer.
        articles: Texts to read, by the words of their menu: "tools/pipe" is below "tools".
        buttons: What the panel offers.
        form: The controls of the settings page.
        saved: What that form was last saved with; None before.
        events: What was looked at and done, such as "item 3" or "press send", in order.
        answer: What the episode ended with; None before.
    """

    products: list[Product] = field(default_factory=list)
    per_page: int = 20
    is_searched: bool = False
    is_filtered: bool = False
    shows_prices: bool = True
    cart: list[int] = field(default_factory=list)
    orders: list[list[int]] = field(default_factory=list)
    tickets: list[Ticket] = field(default_factory=list)
    groups: dict[str, str] = field(default_factory=dict)
    articles: list[str] = field(default_factory=list)
    buttons: list[str] = field(default_factory=list)
    form: tuple[Control, ...] = ()
    saved: dict[str, str] | None = None
    events: list[str] = field(default_factory=list)
    answer: str | None = None

    def did(self, verb: str) -> list[str]:
        """Return what was done of one kind: ``did("press")`` is ["send"] after the event "press send"."""
        return [event.removeprefix(f"{verb} ") for event in self.events if event.startswith(f"{verb} ")]
