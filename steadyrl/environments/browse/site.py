"""The shop and help desk: a state machine from requests to pages, the same for a browser and without one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from steadyrl.environments.browse.pages import (
    Block,
    Box,
    Button,
    Cell,
    Choice,
    Control,
    Field,
    Form,
    Heading,
    Link,
    Page,
    Row,
    address,
    initial_value,
    row,
)
from steadyrl.environments.browse.world import World

STATUSES = ("open", "pending", "closed")
ANY = "any"
NOT_FOUND: Page = (Heading("not found"),)

Fields = Mapping[str, str]


def show(world: World, path: str, fields: Fields) -> Page:
    """Return the page at a path (GET); what is looked at is noted among the events of the site's state."""
    name, *segments = path.strip("/").split("/")
    view = _VIEWS.get(name)
    return view(world, segments, fields) if view else NOT_FOUND


def change(world: World, path: str, fields: Fields) -> str:
    """Do what a form asks for (POST) and return the path that is shown next."""
    name, *segments = path.strip("/").split("/")
    action = _CHANGES.get(name)
    return action(world, segments, fields) if action else "/missing"


def _home(world: World, segments: Sequence[str], fields: Fields) -> Page:
    categories = dict.fromkeys(product.category for product in world.products)
    return (Heading("shop"), *(row(Link(name, address("/items", {"category": name}))) for name in categories))


def _items(world: World, segments: Sequence[str], fields: Fields) -> Page:
    query, color, category = (fields.get(key, "") for key in ("search", "color", "category"))
    matches = [
        (number, product)
        for number, product in enumerate(world.products)
        if all(word in product.name.split() for word in query.lower().split())
        and color in ("", ANY, product.color)
        and category in ("", product.category)
    ]
    blocks: list[Block] = [Heading(category or "products")]
    if world.is_searched:
        blocks.append(Form("/items", (row(Field("search", query), Button("go")),), asks=True))
        matches = matches if query else []
    if world.is_filtered:
        colors = (ANY, *sorted({product.color for product in world.products}))
        selected = color if color in colors else ANY
        world.events.append(f"filter {selected}")
        blocks.append(Form("/items", (row(Choice("color", colors, selected), Button("filter")),), asks=True))
    world.events += [f"listed {number}" for number, _ in matches]
    rows = [
        row(Link(product.name, f"/item/{number}"), *([str(product.price)] if world.shows_prices else []))
        for number, product in matches
    ]
    return _paged(blocks, rows, "/items", fields, world.per_page)


def _item(world: World, segments: Sequence[str], fields: Fields) -> Page:
    number = _number(segments, len(world.products))
    if number is None:
        return NOT_FOUND
    world.events.append(f"item {number}")
    product = world.products[number]
    return (Heading(product.name), row("price", str(product.price)), Form(f"/add/{number}", (row(Button("add")),)))


def _add(world: World, segments: Sequence[str], fields: Fields) -> str:
    number = _number(segments, len(world.products))
    if number is not None:
        world.cart.append(number)
        world.events.append(f"add {number}")
    return "/cart"


def _cart(world: World, segments: Sequence[str], fields: Fields) -> Page:
    rows = [
        Form(f"/remove/{index}", (row(world.products[number].name, Button("remove")),))
        for index, number in enumerate(world.cart)
    ]
    footer: list[Block] = [Form("/order", (row(Button("order")),))] if world.cart else [row("empty")]
    return (Heading("cart"), *rows, *footer, row(Link("products", "/items")))


def _remove(world: World, segments: Sequence[str], fields: Fields) -> str:
    index = _number(segments, len(world.cart))
    if index is not None:
        world.events.append(f"remove {world.cart.pop(index)}")
    return "/cart"


def _order(world: World, segments: Sequence[str], fields: Fields) -> str:
    if world.cart:
        world.orders.append(world.cart)
        world.cart = []
        world.events.append("order ")
    return "/done"


def _tickets(world: World, segments: Sequence[str], fields: Fields) -> Page:
    rows = [row(Link(t.subject, f"/ticket/{number}"), t.customer) for number, t in enumerate(world.tickets)]
    return _paged([Heading("tickets")], rows, "/tickets", fields, world.per_page)


def _ticket(world: World, segments: Sequence[str], fields: Fields) -> Page:
    number = _number(segments, len(world.tickets))
    if number is None:
        return NOT_FOUND
    world.events.append(f"ticket {number}")
    ticket = world.tickets[number]
    return (
        Heading(f"ticket {ticket.subject}"),
        row("from", Link(ticket.customer, f"/customer/{ticket.customer.replace(' ', '-')}")),
        Form(f"/status/{number}", (row(Choice("status", STATUSES, ticket.status), Button("save")),)),
        Form(f"/reply/{number}", (row(Field("reply"), Button("send")),)),
        *(row(reply) for reply in ticket.replies),
    )


def _status(world: World, segments: Sequence[str], fields: Fields) -> str:
    number = _number(segments, len(world.tickets))
    if number is None:
        return "/missing"
    if fields.get("status") in STATUSES:
        world.tickets[number].status = fields["status"]
        world.events.append(f"status {number}")
    return f"/ticket/{number}"


def _reply(world: World, segments: Sequence[str], fields: Fields) -> str:
    number = _number(segments, len(world.tickets))
    if number is None:
        return "/missing"
    if text := fields.get("reply", "").strip():
        world.tickets[number].replies.append(text)
        world.events.append(f"reply {number}")
    return f"/ticket/{number}"


def _customers(world: World, segments: Sequence[str], fields: Fields) -> Page:
    return (Heading("customers"), *(row(Link(name, f"/customer/{name.replace(' ', '-')}")) for name in world.groups))


def _customer(world: World, segments: Sequence[str], fields: Fields) -> Page:
    name = segments[0].replace("-", " ") if segments else ""
    if name not in world.groups:
        return NOT_FOUND
    world.events.append(f"customer {name}")
    return (Heading(name), row("group", world.groups[name]))


def _help(world: World, segments: Sequence[str], fields: Fields) -> Page:
    article_path = "/".join(segments).replace("-", " ")
    if article_path in world.articles:
        world.events.append(f"read {article_path}")
        return (Heading(article_path.rpartition("/")[2]), row("text"))
    prefix = f"{article_path}/" if article_path else ""
    entries = dict.fromkeys(a.removeprefix(prefix).split("/")[0] for a in world.articles if a.startswith(prefix))
    if not entries:
        return NOT_FOUND
    links = (row(Link(name, f"/help/{(prefix + name).replace(' ', '-')}")) for name in entries)
    return (Heading(article_path.rpartition("/")[2] or "help"), *links)


def _panel(world: World, segments: Sequence[str], fields: Fields) -> Page:
    return (
        Heading("panel"),
        *(Form(f"/press/{index}", (row(Button(name)),)) for index, name in enumerate(world.buttons)),
    )


def _press(world: World, segments: Sequence[str], fields: Fields) -> str:
    index = _number(segments, len(world.buttons))
    if index is not None:
        world.events.append(f"press {world.buttons[index]}")
    return "/done"


def _settings(world: World, segments: Sequence[str], fields: Fields) -> Page:
    return (Heading("settings"), Form("/save", (*(row(control) for control in world.form), row(Button("save")))))


def _save(world: World, segments: Sequence[str], fields: Fields) -> str:
    # Only what the form's controls could have sent is taken over.
    world.saved = {control.name: _allowed(control, fields.get(control.name, "")) for control in world.form}
    world.events.append("save ")
    return "/done"


def _allowed(control: Control, value: str) -> str:
    match control:
        case Box():
            return "on" if value == "on" else ""
        case Choice(options=options):
            return value if value in options else initial_value(control)
    return value.strip()


def _paged(header: Sequence[Block], rows: Sequence[Row], path: str, fields: Fields, per_page: int) -> Page:
    """Return one page of a list with links to its neighbours; the number of the page is a field."""
    last = max(0, (len(rows) - 1) // per_page)
    page_text = fields.get("page", "0")
    page = min(int(page_text), last) if page_text.isascii() and page_text.isdigit() and len(page_text) < 4 else 0
    links: list[Cell] = []
    if page > 0:
        links.append(Link("previous", address(path, {**fields, "page": str(page - 1)})))
    if page < last:
        links.append(Link("next", address(path, {**fields, "page": str(page + 1)})))
    footer = [Row(tuple(links))] if links else []
    return (*header, *rows[page * per_page : (page + 1) * per_page], *footer)


def _number(segments: Sequence[str], count: int) -> int | None:
    """Return the number that a path ends with, or None where there is no such thing."""
    text = segments[0] if segments else ""
    # Few digits, for int() of many takes long.
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 and int(text) < count else None


_VIEWS: dict[str, Callable[[World, Sequence[str], Fields], Page]] = {
    "": _home,
    "items": _items,
    "item": _item,
    "cart": _cart,
    "tickets": _tickets,
    "ticket": _ticket,
    "customers": _customers,
    "customer": _customer,
    "help": _help,
    "panel": _panel,
    "settings": _settings,
    "done": lambda world, segments, fields: (Heading("done"),),
}
_CHANGES: dict[str, Callable[[World, Sequence[str], Fields], str]] = {
    "add": _add,
    "remove": _remove,
    "order": _order,
    "status": _status,
    "reply": _reply,
    "press": _press,
    "save": _save,
}
