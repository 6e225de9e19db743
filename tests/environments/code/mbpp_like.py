"""Problems in MBPP's format, written for these tests: one of each shape that test code takes there."""

NODE = "class Node:\n    def __init__(self, value):\n        self.value, self.left, self.right = value, None, None\n"
PAIR = "class Pair(object):\n    def __init__(self, a, b):\n        self.a = a\n        self.b = b\n"
STACK = (
    "class Stack:\n    def __init__(self):\n        self.items = []\n    def push(self, item):\n"
    "        self.items.append(item)\n    def pop(self):\n        return self.items.pop()\n"
)

# name: (solution, a wrong one, set-up code, tests)
SHAPES = {
    "an assert first that is no equation": (
        "def half(x):\n    return x / 2",
        "def half(x):\n    return x",
        "",
        [
            "assert abs(half(1) - 0.5) < 1e-9",
            "assert abs(half(3) - 1.5) < 1e-9",
            "assert half(2) <= 1",
            "assert half(8) > 3",
        ],
    ),
    "an assert first that is negated": (
        "def odd(x):\n    return x % 2 == 1",
        "def odd(x):\n    return x % 2",
        "",
        ["assert not odd(2)", "assert odd(3) is True", "assert odd(5) is True"],
    ),
    "types as arguments": (
        "def keep(xs, kind):\n    return [x for x in xs if type(x) is kind]",
        "def keep(xs, kind):\n    return xs",
        "",
        [
            "assert keep([1, 'a', 2.5], int) == [1]",
            "assert keep([1, 'a', 2.5], str) == ['a']",
            "assert keep([], float) == []",
        ],
    ),
    "types as results and in containers": (
        "def kinds(xs):\n    return {type(x) for x in xs}",
        "def kinds(xs):\n    return {int}",
        "",
        ["assert kinds([1, 'a']) == {int, str}", "assert kinds([None]) == {type(None)}"],
    ),
    "a module that only the solution imports": (
        "import math\ndef area(r):\n    return math.pi * r * r",
        "def area(r):\n    return r * r",
        "",
        ["assert math.isclose(area(1), math.pi)", "assert area(0) == 0", "assert math.floor(area(2)) == 12"],
    ),
    "a class that only the solution imports": (
        "from collections import Counter\ndef letters(word):\n    return Counter(word)",
        "def letters(word):\n    return {}",
        "",
        ["assert letters('aab') == Counter(a=2, b=1)", "assert letters('x') == Counter('x')"],
    ),
    "objects of the solution's class as arguments": (
        PAIR + "def chain(pairs, n):\n    return max(pair.b - pair.a for pair in pairs[:n])",
        PAIR + "def chain(pairs, n):\n    return n",
        "",
        [
            "assert chain([Pair(5, 24), Pair(39, 60)], 2) == 21",
            "assert chain([Pair(1, 2)], 1) == 1",
            "assert chain([Pair(1, 9)], 1) == 8",
        ],
    ),
    "objects that the set-up code makes and ties": (
        NODE + "def height(root):\n    if root is None:\n        return 0\n"
        "    return 1 + max(height(root.left), height(root.right))",
        NODE + "def height(root):\n    return 1",
        "root = Node(1)\nroot.left = Node(2)\nroot.right = Node(3)\nroot.left.left = Node(4)\n"
        "other = Node(7)\nother.left = Node(8)",
        ["assert (height(root)) == 3", "assert (height(root.left)) == 2", "assert (height(other)) == 2"],
    ),
    "methods and attributes of the solution's class": (
        STACK + "def stack_of(items):\n    made = Stack()\n    for item in items:\n        made.push(item)\n"
        "    return made",
        STACK + "def stack_of(items):\n    return Stack()",
        "",
        [
            "assert stack_of([1, 2]).pop() == 2",
            "assert stack_of([3]).items == [3]",
            "assert len(stack_of('ab').items) == 2",
        ],
    ),
    "another function of the solution": (
        "def double(x):\n    return 2 * x\ndef fourfold(x):\n    return double(double(x))",
        "def double(x):\n    return x\ndef fourfold(x):\n    return x",
        "",
        ["assert fourfold(2) == double(4)", "assert fourfold(3) == 12"],
    ),
    "a constant of the solution": (
        "LIMIT = 10\ndef clip(x):\n    return min(x, LIMIT)",
        "LIMIT = 0\ndef clip(x):\n    return LIMIT",
        "",
        ["assert clip(99) == LIMIT", "assert clip(3) == 3"],
    ),
    "named arguments": (
        "def scale(x, by=1):\n    return x * by",
        "def scale(x, by=1):\n    return x",
        "",
        ["assert scale(2, by=3) == 6", "assert scale(x=4) == 4", "assert scale(2, by=5) == 10"],
    ),
    "an exception of the solution's own": (
        "class Empty(ValueError):\n    pass\n"
        "def first(xs):\n    if not xs:\n        raise Empty('no items')\n    return xs[0]",
        "class Empty(ValueError):\n    pass\ndef first(xs):\n    return xs",
        "def empty_is_told():\n    try:\n        first([])\n"
        "    except Empty as error:\n        return str(error) == 'no items'\n    return False",
        ["assert empty_is_told()", "assert first([4]) == 4"],
    ),
    "a list that is made before and results that are used again": (
        "def up(x):\n    return x + 1",
        "def up(x):\n    return x",
        "xs = [up(i) for i in range(3)]\ntotal = sum(xs)",
        ["assert total == 6", "assert up(up(total)) == 8", "assert xs == [1, 2, 3]"],
    ),
    "arguments that are changed in place": (
        "def tidy(xs, seen):\n    xs.sort()\n    seen[len(xs)] = xs[0]",
        "def tidy(xs, seen):\n    return sorted(xs)",
        "xs, seen, named = [3, 1, 2], {}, {'a': 1}\ntidy(xs, seen)\ntidy([[2], [1]], named)",
        [
            "assert tidy([4], {}) is None",
            "assert xs == [1, 2, 3]",
            "assert seen == {3: 1} and named == {'a': 1, 2: [1]}",
        ],
    ),
    "a built-in function as an argument": (
        "def apply(f, xs):\n    return [f(x) for x in xs]",
        "def apply(f, xs):\n    return xs",
        "",
        ["assert apply(str, [1]) == ['1']", "assert apply(int, ['7']) == [7]"],
    ),
}

# name: (solution, tests, what is said of it)
REFUSED = {
    "objects of the solution are compared": (
        PAIR + "def swap(p):\n    return Pair(p.b, p.a)",
        ["assert swap(Pair(1, 2)) == Pair(2, 1)"],
        "compare an object with one of type 'Pair'",
    ),
    "functions of the tests as arguments": (
        "def apply(f, x):\n    return f(x)",
        ["assert apply(lambda x: x + 1, 1) == 2"],
        "hand the function an object of type 'function'",
    ),
    "results that are no plain values": (
        "from fractions import Fraction\ndef thirds(n):\n    return [Fraction(n, 3)]",
        ["assert thirds(1) == [Fraction(1, 3)]"],
        "get a container with an object of type 'Fraction'",
    ),
    "the type of an object is asked for": (
        NODE + "def leaf(x):\n    return Node(x)",
        ["assert isinstance(leaf(1), Node)"],
        "ask whether an object is of one of type 'type'",
    ),
}


def record(number, solution, tests, setup=""):
    """Return a line of MBPP's file."""
    return {
        "task_id": number,
        "text": f"Write function {number}.",
        "code": solution,
        "test_setup_code": setup,
        "test_list": tests,
        "challenge_test_list": [],
    }
