"""Answers: extraction from responses, equivalence with golds, in worker processes where it takes computer algebra.

Importing this room imports neither sympy nor math_verify.
"""

from tokencredit.grading.grader import Grader, Item, Verdict

__all__ = ["Grader", "Item", "Verdict", "check_gold"]


def check_gold(gold: str, kind: str) -> str:
    """ "" if `gold` can be graded as `kind` (integer, expression, choice), else the reason in one line.

    Integers and letters are checked in pure Python; an expression is parsed in this process, after the refusal rules.
    """
    from tokencredit.grading.choice import choice_letter
    from tokencredit.grading.integers import canonical_integer
    from tokencredit.grading.refuse import refusal

    if not gold.strip():
        return "empty"
    if kind == "integer":
        return "" if canonical_integer(gold) is not None else "not an integer"
    if kind == "choice":
        return "" if choice_letter(gold) is not None else "not an option letter"
    if kind != "expression":
        return f"unknown answer kind {kind!r}"
    refused = refusal(gold, gold)
    if refused:
        return f"refused: {refused}"
    if canonical_integer(gold) is not None:
        return ""
    from tokencredit.grading.symbolic import why_unreadable

    return why_unreadable(gold)
