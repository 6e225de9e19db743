"""Attacks on whoever reads the values: costly, deep, malformed and ambiguous ones."""

from tests.environments.code.sandbox.attacks.record import Attack, body

_COST = "the trainer's time is worth more than an answer's"
_COLLIDING = "[index * (2**61 - 1) for index in range(31_000)]"


def _raw(name, why, written, verdicts=("malformed",)):
    return Attack(
        "decoding", name, why, f"import os\ndef add(a, b):\n    os.write(3, {written})\n    os._exit(0)\n", verdicts
    )


DECODING = (
    body(
        "decoding",
        "colliding integers in a set",
        "rebuilding the set took the trainer 19 s",
        f"return set({_COLLIDING}[:3000])",
    ),
    body("decoding", "colliding keys of a dict", _COST, f"return dict.fromkeys({_COLLIDING}[:3000])"),
    body("decoding", "colliding tuples in a set", _COST, f"return {{(x,) for x in {_COLLIDING}[:3000]}}"),
    body(
        "decoding",
        "many colliding integers, written by hand",
        "rebuilding the set took the trainer 19 s",
        f"import json\nos.write(3, json.dumps(['value', ['set', *{_COLLIDING}]]).encode() + b'\\n')\nreturn 0",
    ),
    body(
        "decoding",
        "many colliding keys, written by hand",
        _COST,
        f"import json\n"
        f"os.write(3, json.dumps(['value', ['dict', *(y for x in {_COLLIDING} for y in (x, 0))]]).encode() + b'\\n')\n"
        f"return 0",
    ),
    body(
        "decoding", "floats that collide", _COST, "return {float(2**61 - 1) * 2.0 ** (i % 900) for i in range(20_000)}"
    ),
    body("decoding", "a list that holds itself", "writing it never ends", "x = []; x.append(x)\nreturn x"),
    body("decoding", "a dict that holds itself", "writing it never ends", "x = {}; x[0] = x\nreturn x"),
    *(
        body(
            "decoding",
            f"a list {depth} deep",
            "492 deep crashed a step of training",
            f"x = []\nfor _ in range({depth}): x = [x]\nreturn x",
        )
        for depth in (101, 330, 492, 900, 5000, 10**5)
    ),
    body(
        "decoding",
        "tuples, dicts and sets in each other",
        "each kind has its own way of being read",
        "x = 0\nfor _ in range(300): x = {0: (frozenset([1]), [x])}\nreturn x",
    ),
    body("decoding", "a huge integer", "decimal digits of it take quadratic time", "return (1 << 1_000_000) + a"),
    body("decoding", "many long integers", _COST, "return [(1 << 12_000) + i for i in range(80)]"),
    body("decoding", "an integer in the text of an error", "writing it may be refused", "raise ValueError(10 ** 5000)"),
    body("decoding", "half of a surrogate pair", "no file can hold it", "return '\\ud800' * 1000"),
    body(
        "decoding",
        "a null, a bell and an escape",
        "screens and C programs stop or move at them",
        "return '\\0\\a\\x1b[2J\\u202e'",
    ),
    body(
        "decoding",
        "a dict that lies about its items",
        "subclasses are read by the methods of dict",
        "class D(dict):\n    def items(self): return iter(lambda: (0, 0), 1)\nreturn D(a=1)",
    ),
    body(
        "decoding",
        "a list that lies about its items",
        "subclasses are read by the methods of list",
        "class L(list):\n    def __iter__(self): return iter(int, 1)\nreturn L([1])",
    ),
    body(
        "decoding",
        "a hash that raises",
        "sets are rebuilt nowhere",
        "class H(int):\n    def __hash__(self): raise ValueError\nreturn [H(1)]",
    ),
    body("decoding", "an object named like a built-in", "the name is all that travels", "return type('int', (), {})()"),
    body(
        "decoding",
        "an object with a hostile name",
        "the name is all that travels",
        "return type('\\ud800' * 1000, (), {})()",
    ),
    _raw("garbage", "bytes that are no text", "b'\\xff\\xfe\\x00garbage\\n'"),
    _raw("brackets without end", "a reader that recurses crashes", "b'[' * 200000 + b'\\n'"),
    _raw(
        "lists without end",
        "a reader that recurses crashes",
        "b'[\"value\", ' + b'[\"list\", ' * 9000 + b']' * 9000 + b']\\n'",
    ),
    _raw(
        "lists 492 deep, written by hand",
        "492 deep crashed a step of training",
        "b'[\"value\", ' + b'[\"list\", ' * 492 + b'1' + b']' * 493 + b'\\n'",
    ),
    _raw("too many digits", "reading them takes quadratic time", "b'[\"value\", ' + b'9' * 6000 + b']\\n'"),
    _raw("an object", "objects are hashed as they are read", 'b\'["value", {"int": "5"}]\\n\''),
    _raw(
        "many objects",
        "keys of objects can be made to collide",
        "b'[\"value\", {' + b','.join(b'\"%d\": 1' % i for i in range(50000)) + b'}]\\n'",
    ),
    _raw("an integer in decimal", "hexadecimal is what is written", 'b\'["value", ["int", "5"]]\\n\''),
    _raw("an integer with underscores", "int() reads more than digits", 'b\'["value", ["int", "0x_5"]]\\n\''),
    _raw("bytes of half a byte", "bytes.fromhex raises at them", 'b\'["value", ["bytes", "abc"]]\\n\''),
    _raw("a key without a value", "pairs are read two by two", 'b\'["value", ["dict", 7]]\\n\''),
    _raw(
        "a number of two parts that are none", "complex() raises at them too", 'b\'["value", ["complex", [], 1]]\\n\''
    ),
    _raw("a kind that is not known", "a reader may guess", 'b\'["value", ["nothing", 1]]\\n\''),
    _raw("a list without a kind", "a reader may guess", "b'[\"value\", [5, 5]]\\n'"),
    _raw("an empty list", "it has no first item", "b'[\"value\", []]\\n'"),
    _raw("a kind that is a list", "a list cannot be looked up", 'b\'["value", [["int"], "0x5"]]\\n\''),
    _raw("a value of the tests' process", "references are for the other way", 'b\'["value", ["reference", 0]]\\n\''),
    _raw("a type that is none", "types are looked up by name", 'b\'["value", ["type", "__import__"]]\\n\''),
    _raw("another coding", "JSON readers guess among five", "'[\"value\", 5]\\n'.encode('utf-16')"),
    _raw("a mark of byte order", "JSON readers take it for a sign", "'\\ufeff[\"value\", 5]\\n'.encode()"),
    _raw("constants that JSON lacks", "Python's reader takes them", "b'[\"value\", nan]\\n'"),
    _raw("text behind the value", "a reader may stop too early", "b'[\"value\", 5] 6\\n'"),
    _raw("a number of arguments that is wrong", "a pattern may be too wide", "b'[\"value\", 5, 5]\\n'"),
    _raw("an error of wrong types", "a pattern may be too wide", "b'[\"raised\", 5, null]\\n'"),
    _raw("a line that never ends", "what is read is kept until its end", "b'[\"value\", \"' + b'x' * 900_000"),
    _raw("the line 'compiled' a hundred thousand times", _COST, "b'[\"compiled\"]\\n' * 80_000"),
    _raw("empty lines without end", _COST, "b'\\n' * 1_000_000", verdicts=("killed",)),
    _raw("other ends of lines", "a line ends at one byte alone", 'b\'["value", 5]\\r["value", 6]\\x0b\\n\''),
    _raw(
        "a long number",
        "reading it takes more than linear time",
        "b'[\"value\", 0.' + b'1' * 900_000 + b'e-5]\\n'",
        verdicts=("killed", "malformed"),
    ),
    _raw(
        "empty lists by the hundred thousand",
        _COST,
        "b'[\"value\", [\"list\"' + b', [\"list\"]' * 80_000 + b']]\\n'",
        verdicts=("killed",),
    ),
    _raw("a repeated key", "two values for one key", 'b\'["value", ["dict", 1, 5, 1, 6]]\\n\'', verdicts=("killed",)),
)
