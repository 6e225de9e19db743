"""An agent that solves word problems with a calculator: it writes an expression, reads the result, and answers."""

import ast
import operator
import re
from fractions import Fraction
from itertools import permutations

from steadyrl.loop.rewards.answers import final_number

OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
CHARACTERS = 80  # of an expression: what is that short is calculated at once
# What the problems of one and of two steps come to, the simplest first.
FORMS = ("{} + {}", "{} - {}", "{} * {}", "2 * {} + {}", "{} * {} + {}", "{} * {} - {}", "({} + {}) * {}")


def calculate(expression: str) -> str:
    """Calculate, such as 3 * (4 + 5)"""
    if len(expression) > CHARACTERS:
        raise ValueError(f"an expression of {len(expression)} characters; expected at most {CHARACTERS}")
    value = value_of(ast.parse(expression.strip(), mode="eval").body)
    return str(value) if value.denominator == 1 else f"{float(value):.6g}"


def value_of(node: ast.expr) -> Fraction:
    """Return what an expression of numbers, + - * / and parentheses comes to; nothing else is evaluated."""
    match node:
        case ast.Constant(int() | float() as number):
            return Fraction(str(number))
        case ast.UnaryOp(ast.USub(), operand):
            return -value_of(operand)
        case ast.BinOp(left, sign, right) if type(sign) in OPERATORS:
            return OPERATORS[type(sign)](value_of(left), value_of(right))
    raise ValueError(f"cannot calculate {ast.unparse(node)!r:.40}; expected numbers, + - * / and parentheses")


class Calculator:
    """The reward is 1 for the right number at the end of the answer.

    Args:
        tool: Without it the policy calculates in its head.
    """

    def __init__(self, tool: bool = True):
        self.tools = (calculate,) if tool else ()

    def reset(self, problem):
        self.problem, self.result, self.correct = problem, None, Fraction(problem.columns["answer"])
        return None  # the problem's own prompt

    def step(self, message):
        if message.get("tool_calls") or message.get("invalid_tool_calls"):
            self.result = True
            return None, None, False
        return None, float(final_number(message["content"]) == self.correct), True

    def expert(self):
        """Calculate the problem's expression, or the simplest of the question's numbers that comes to the answer."""
        if self.result or not self.tools:
            return str(self.correct)
        expression = self.problem.columns.get("expression") or solution(self.problem.prompt, self.correct)
        function = {"name": "calculate", "arguments": {"expression": expression}}
        return {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "1", "type": "function", "function": function}],
        }


def solution(question: str, answer: Fraction) -> str:
    """Return an expression of numbers in a text that comes to the answer, numbers in their order if possible."""
    numbers = re.findall(r"\d+", question)
    for form in FORMS:
        for chosen in permutations(numbers, form.count("{}")):
            text = form.format(*chosen)
            if calculate(text) == str(answer):
                return text
    raise ValueError(f"no form of {FORMS} comes to {answer} in {question!r}")
