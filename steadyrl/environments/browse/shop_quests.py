"""Problems of the shop: products to be found, compared, bought and asked about."""

from __future__ import annotations

import random

from steadyrl.environments.browse.quest import Condition, Quest, Step, by_level, question, viewing_quest
from steadyrl.environments.browse.words import CATEGORIES, COLORS, names
from steadyrl.environments.browse.world import Product, World


def find(rng: random.Random, level: int) -> Quest:
    """A product that has to be searched for."""
    count = by_level(level, 4, 8, 16, 24)
    world = World(products=_products(rng, count, alike=level > 2), per_page=4, is_searched=True)
    target = rng.randrange(count)
    name = world.products[target].name
    query = name.split()[1] if level < 3 else name
    return viewing_quest(
        goal=f"find {name}",
        world=world,
        start="/items",
        target=target,
        plan=[Step("type", "textbox", "search", query), Step("click", "button", "go"), Step("click", "link", name)],
        on_the_way=f"listed {target}",
    )


def shelf(rng: random.Random, level: int) -> Quest:
    """A product on a shelf, behind the shelf's link."""
    shelves = by_level(level, 2, 3, 4, 5)
    world = World(products=_products(rng, shelves * by_level(level, 2, 3, 4, 5), shelves=shelves, alike=level > 2))
    target = rng.randrange(len(world.products))
    product = world.products[target]
    return viewing_quest(
        goal=f"find {product.name} in {product.category}",
        world=world,
        start="/",
        target=target,
        plan=[Step("click", "link", product.category), Step("click", "link", product.name)],
        on_the_way=f"listed {target}",
    )


def turn(rng: random.Random, level: int) -> Quest:
    """A product on one of several pages of a list."""
    pages, per_page = by_level(level, 2, 3, 4, 5), by_level(level, 2, 3, 3, 4)
    world = World(products=_products(rng, pages * per_page), per_page=per_page, shows_prices=False)
    target = rng.randrange(per_page, pages * per_page)
    return viewing_quest(
        goal=f"find {world.products[target].name}",
        world=world,
        start="/items",
        target=target,
        plan=[Step("click", "link", world.products[target].name)],
    )


def cheapest(rng: random.Random, level: int) -> Quest:
    """The cheapest product of a list; at the last level of one colour."""
    world = World(products=_products(rng, by_level(level, 2, 3, 5, 8)), is_filtered=level == 4)
    colors = {product.color for product in world.products}
    color = rng.choice(sorted(colors)) if level == 4 else ""
    of_color = [i for i, product in enumerate(world.products) if color in ("", product.color)]
    target = min(of_color, key=lambda i: world.products[i].price)
    name = world.products[target].name
    if level < 4:
        return viewing_quest("open the cheapest", world, "/items", target, [Step("click", "link", name)])

    def filtered(world: World) -> bool:
        return world.did("filter")[-1:] == [color]

    plan = [
        Step("select", "select", "color", color),
        Step("click", "button", "filter", when=lambda world: not filtered(world)),
        Step("click", "link", name, when=filtered),
    ]
    return viewing_quest(f"open the cheapest of color {color}", world, "/items", target, plan)


def buy(rng: random.Random, level: int) -> Quest:
    """One product, at the last level two, into the cart and ordered."""
    world = World(products=_products(rng, by_level(level, 2, 3, 5, 4)), is_searched=level == 3)
    targets = rng.sample(range(len(world.products)), by_level(level, 1, 1, 1, 2))
    product_names = [world.products[i].name for i in targets]

    def missing(target: int) -> Condition:
        return lambda world: target not in world.cart

    def complete(world: World) -> bool:
        return sorted(world.cart) == sorted(targets)

    plan = [Step("click", "link", "products", when=lambda world: not complete(world))]
    if level == 3:
        plan += [Step("type", "textbox", "search", product_names[0]), Step("click", "button", "go")]
    plan += [Step("click", "link", name, when=missing(i)) for i, name in zip(targets, product_names, strict=True)]
    plan += [Step("click", "button", "add"), Step("click", "button", "order", when=complete)]
    return Quest(
        goal="buy " + " and ".join(product_names),
        world=world,
        start=f"/item/{targets[0]}" if level == 1 else "/items",
        milestones=tuple(_in_cart(i) for i in targets),
        solved=lambda world: [sorted(order) for order in world.orders] == [sorted(targets)],
        over=lambda world: bool(world.orders),
        plan=tuple(plan),
    )


def remove(rng: random.Random, level: int) -> Quest:
    """A product out of the cart; at the upper levels the rest is ordered."""
    count = by_level(level, 2, 3, 4, 6)
    products = _products(rng, count, alike=level > 2)
    target = rng.randrange(count)
    remaining = [i for i in range(count) if i != target]
    name, orders = products[target].name, level > 2
    plan = [Step("click", "button", "order", when=lambda world: target not in world.cart)] if orders else []
    plan += [Step("click", "button", "remove", beside=name)]
    return Quest(
        goal=f"remove {name} and order" if orders else f"remove {name}",
        world=World(products=products, cart=list(range(count))),
        start="/cart",
        milestones=(lambda world: world.did("remove") == [str(target)],) if orders else (),
        solved=lambda world: world.orders == [remaining] if orders else world.cart == remaining and not world.orders,
        over=lambda world: bool(world.orders or (world.did("remove") and not orders)),
        plan=tuple(plan),
    )


def price(rng: random.Random, level: int) -> Quest:
    """A question after a price, answered with stop."""
    count = by_level(level, 1, 2, 4, 12)
    world = World(products=_products(rng, count), shows_prices=level == 2, is_searched=level == 4, per_page=4)
    target = rng.randrange(count)
    product = world.products[target]
    plan = [Step("stop", "", str(product.price), beside=str(product.price))]
    if level > 2:
        plan = [Step("click", "link", product.name), *plan]
    if level == 4:
        plan = [Step("type", "textbox", "search", product.name), Step("click", "button", "go"), *plan]
    return question(
        goal=f"price of {product.name}",
        world=world,
        start=f"/item/{target}" if level == 1 else "/items",
        answer=str(product.price),
        plan=plan,
        on_the_way=f"item {target}" if level > 2 else "",
    )


def _in_cart(target: int) -> Condition:
    return lambda world: any(target in products for products in (world.cart, *world.orders))


def _products(rng: random.Random, count: int, shelves: int = 1, alike: bool = False) -> list[Product]:
    """Return products of different names and prices, spread evenly over shelves."""
    product_names = names(rng, count, alike)
    categories = rng.sample(CATEGORIES, shelves)
    prices = rng.sample(range(2, 99), count)

    def color(name: str) -> str:
        random_color = rng.choice(COLORS[:3])
        return name.split()[0] if name.split()[0] in COLORS else random_color  # a red box is red

    return [
        Product(name, categories[i % shelves], color(name), price)
        for i, (name, price) in enumerate(zip(product_names, prices, strict=True))
    ]
