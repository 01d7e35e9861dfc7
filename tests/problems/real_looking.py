"""Problems that look like real ones, in pieces of known kind, and every forbidden change of a piece.

Written for these tests. A piece is (kind, text); a problem is the pieces' texts joined. Kinds: number, latex, variable,
unit, name, logic, ask (what is asked for), word (an ordinary word that a typo may touch), thing, alt (a phrase with
others that mean the same, "a|b"), text.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from hypothesis import strategies as st

Piece = tuple[str, str]
Pieces = tuple[Piece, ...]
Draw = Callable[[st.SearchStrategy], object]

# [kind:text] marks a piece; N is a drawn number, V a drawn variable, W a drawn name, T a drawn thing, U a drawn unit.
TEMPLATES = (
    "[alt:Find|Determine|Compute|Calculate] the [ask:smallest] [ask:positive integer] [variable:V] [alt:such that|for which] "
    "[latex:$V^2 + 3V \\equiv N \\pmod{N}$].",
    "Let [latex:$ABC$] be a [word:pleasant] [thing:triangle] with [latex:\\(AB = N\\)] and [latex:\\(BC = \\sqrt{N}\\)]. "
    "[alt:What is|Find] the [ask:area] of [latex:\\(ABC\\)][alt:?|.]",
    "[name:W] [word:walks] [number:N] [unit:U] to the [word:garden] and then [number:N] [unit:U] to the [word:bridge]. "
    "She [word:rests] there for [number:N] minutes. How many [unit:U] does she walk in all?",
    "A [thing:T] costs [number:$N.50] and [name:W] [alt:buys|purchases] [number:N] of them with [logic:at least] [number:N%] off. "
    "[alt:What is|Compute|Determine] the [ask:total] price[alt:?|.]",
    "Suppose that [latex:$f(x) = \\frac{x^{N}}{N} - \\alpha x$] for [logic:all] real [variable:V]. The [word:curve] is drawn "
    "[word:carefully]. [alt:Find|Determine] the [ask:maximum] of [latex:$f'(N)$].",
    "How many ways are there to [alt:choose|select] [number:N] of [number:N] [logic:distinct] [thing:books] so that [logic:no] "
    "[number:two] of them [word:stand] side by side on the [word:wooden] shelf?",
    "[name:W] [word:writes] the numbers [number:N], [number:N], [number:N], ..., [variable:V] on the [word:paper]. "
    "[alt:Find|Determine|Compute] the [ask:sum] of the [ask:even] ones.",
    "The [word:friendly] [thing:T] weighs [number:N.5] [unit:kg]. It [word:sleeps] for [number:N] [unit:hours] [logic:every] [unit:day]. "
    "[alt:What is|Find] the [ask:mean] of [variable:A] and [variable:B] if [variable:A] > [variable:B] + [number:N][alt:?|.]",
    "[alt:Evaluate|Compute|Calculate] [number:N]! + [variable:V] : [variable:q], where [variable:V] = [number:N] and [variable:q] [logic:divides] [number:N], "
    "[word:please].",
    "The [word:ancient] sequence [latex:\\[ a_{n+1} = a_n^{2} \\cdot \\left( N - \\frac{1}{a_n} \\right) \\]] starts at [latex:$a_1 = N$]. "
    "[alt:Let|Suppose that] [variable:V] be its limit. [alt:Find|Determine] the [ask:value] of [latex:$V^N$].",
)
NAMES = ("Maria", "Peter", "Priya", "Omar", "Chen")
THINGS = ("lamp", "kite", "basket", "parrot")
UNITS = ("miles", "km", "meters", "yards")
VARIABLES = ("n", "k", "x", "m", "p")


@st.composite
def problems(draw: Draw) -> Pieces:
    """One template, filled."""
    template = draw(st.sampled_from(TEMPLATES))
    chosen = {"V": VARIABLES, "W": NAMES, "T": THINGS, "U": UNITS}
    once = {letter: draw(st.sampled_from(options)) for letter, options in chosen.items()}
    pieces = []
    for kind, text in split(template):
        text = re.sub(r"(?<![A-Za-z\\])N(?![A-Za-z])", lambda _: str(draw(st.integers(2, 99))), text)
        for letter, value in once.items():
            text = re.sub(rf"(?<![A-Za-z\\]){letter}(?![A-Za-z])", value, text)
        pieces.append((kind, text))
    return tuple(pieces)


def split(template: str) -> list[Piece]:
    out: list[Piece] = []
    at = 0
    for m in re.finditer(
        r"\[(alt|number|latex|variable|unit|name|logic|ask|word|thing):(.*?)\](?=[ .,?!\[:]|$)", template
    ):
        out += [("text", template[at : m.start()])] if m.start() > at else []
        out.append((m[1], m[2]))
        at = m.end()
    return [*out, ("text", template[at:])] if at < len(template) else out


def joined(pieces: Pieces) -> str:
    """The problem's text; of a phrase with alternatives, the first."""
    return "".join(text.split("|")[0] if kind == "alt" else text for kind, text in pieces)


# ---- forbidden changes: (pieces, draw) -> other pieces ---------------------------------------------


def at(pieces: Pieces, kind: str, draw: Draw, change: Callable[[str], str]) -> Pieces:
    """One piece of the kind, changed; () where there is none."""
    spots = [i for i, (k, _) in enumerate(pieces) if k == kind]
    if not spots:
        return ()
    i = draw(st.sampled_from(spots))
    return (*pieces[:i], (kind, change(pieces[i][1])), *pieces[i + 1 :])


def number(pieces: Pieces, draw: Draw) -> Pieces:
    """Another value, another way of writing it, a sign, a percentage; or the number is gone or doubled."""

    def change(text: str) -> str:
        digits = re.search(r"\d+", text)
        if digits is None:
            return draw(st.sampled_from(("three", "2", "")))
        n = int(digits[0])
        new = draw(
            st.sampled_from(
                (
                    n + 1,
                    n * 10,
                    f"{n},000",
                    f"-{n}",
                    f"{n}%",
                    f"{n}.5",
                    f"0{n}",
                    "",
                    f"{n} {n}",
                    "seven",
                    f"{n}/2",
                    f"{n}!",
                )
            )
        )
        return text[: digits.start()] + str(new) + text[digits.end() :]

    return at(pieces, draw(st.sampled_from(("number", "latex"))), draw, change)


def latex(pieces: Pieces, draw: Draw) -> Pieces:
    """One character of a formula dropped, doubled or replaced; a backslash doubled; a command or delimiter changed."""

    def change(text: str) -> str:
        how = draw(st.sampled_from(("drop", "double", "replace", "backslash", "command", "delimiter", "gone")))
        if how == "gone":
            return ""
        if how == "backslash":
            return text.replace("\\", "\\\\", 1) if "\\" in text else text + "\\"
        if how == "command":
            return re.sub(r"\\(frac|sqrt|alpha|cdot|left|equiv|pmod)", r"\\d\1", text, count=1)
        if how == "delimiter":
            return text.replace("$", "", 1).replace("\\(", "(", 1).replace("\\[", "[", 1)
        i = draw(st.integers(0, len(text) - 1))
        return (
            text[:i] + {"drop": "", "double": text[i] * 2, "replace": draw(st.sampled_from("7y+"))}[how] + text[i + 1 :]
        )

    return at(pieces, "latex", draw, change)


def variable(pieces: Pieces, draw: Draw) -> Pieces:
    return at(
        pieces,
        "variable",
        draw,
        lambda t: draw(st.sampled_from(("w", t.swapcase(), t + "'", "", "the", f"2{t}", f"-{t}", t + t, f"{t}!"))),
    )


def unit(pieces: Pieces, draw: Draw) -> Pieces:
    return at(
        pieces,
        "unit",
        draw,
        lambda t: draw(st.sampled_from(tuple({"feet", "inches", "seconds", "square " + t, "", t[:-1]} - {t}))),
    )


def name(pieces: Pieces, draw: Draw) -> Pieces:
    return at(
        pieces, "name", draw, lambda t: draw(st.sampled_from(("Zoe", t[:-1], t.lower(), f"{t} and Zoe", "She", "")))
    )


def logic(pieces: Pieces, draw: Draw) -> Pieces:
    others = ("some", "at most", "not", "", "exactly", "all but one", "any", "identical")
    return at(pieces, "logic", draw, lambda t: draw(st.sampled_from([o for o in others if o != t])))


def question(pieces: Pieces, draw: Draw) -> Pieces:
    """What is asked for is another thing, or more."""
    others = (
        "largest",
        "product",
        "perimeter",
        "square",
        "median",
        "odd",
        "prime",
        "minimum",
        "second",
        "number of",
        "sum and product",
    )

    def change(text: str) -> str:
        return draw(st.sampled_from([o for o in others if o != text] + [f"negative {text}", f"{text} squared", ""]))

    asked = at(pieces, "ask", draw, change)
    last = pieces[-1]
    swaps = (
        ("does", "did"),
        ("How many", "How much"),
        ("How many", "How many more"),
        ("in all", "at first"),
        ("in all", "each day"),
    )
    told = [(*pieces[:-1], (last[0], last[1].replace(a, b))) for a, b in swaps if a in last[1]]
    return asked or (draw(st.sampled_from(told)) if told else ())


CLAUSES = (
    " that is even", ", none of them equal", " if possible", " with replacement", " without replacement", " in base five", ", where order matters,",
    " less than 100", " (not necessarily distinct)", " except one", " at most once", " modulo seven", " rounded up", " twice", " on average",
    " in lowest terms", ", counting repetitions,", " up to rotation", " inclusive", " other than zero", " per hour", " each", " only", " half full",
)  # fmt: skip
SENTENCES = (
    " Assume that all of them are positive.", " Order matters.", " Each one is used once.", " It is known that they are equal.", " Note that repetitions count.",
    " They are all red.", " Ignore friction.", " The coin is biased.", " Nobody shares.", " Give the result modulo 1000.", " Also find the square.",
    " Recall the quadratic formula.", " The answer is even.", " Think step by step.", " She loses half of them.", " Use symmetry.", " Zero counts.",
)  # fmt: skip
PREFIXES = (
    "With replacement, ", "Ignoring order, ", "Over the reals, ", "Modulo seven, ", "Without a calculator, ", "In alphabetical order, ", "For distinguishable objects, ",
    "In base nine, ", "Up to symmetry, ", "During two lessons, ", "On the complex plane, ", "Rounding down, ", "Given that it rains, ", "If needed, ", "Using induction, ",
    "Before she loses three, ", "After Zoe takes some, ", "In a vacuum, ", "At constant speed, ", "Counting from zero, ", "While everyone lies, ", "In reverse, ",
)  # fmt: skip
TAILS = (
    " mod1000x1", " [ans: 42ab]", " times100", " and two is two", " [hint: ab12]", " 12345km", " x2y3", " and the answer is the answer", " [mod: q7x2]", " (Order matters.)",
    " [value: 12ab]", " plus12cm", " sqrt49x", " half50pct", " in base 7", " [unit: #meters]", " [result: k12x]", " rounded99", " and n is n", " 123456789",
)  # fmt: skip


def condition(pieces: Pieces, draw: Draw) -> Pieces:
    """A clause behind any piece but the last words, a sentence behind a sentence or at either end, a frame or tail."""
    where = draw(st.sampled_from(("clause", "sentence", "prefix", "tail", "parenthesis")))
    if where == "prefix":
        return (("text", draw(st.sampled_from(PREFIXES))), *pieces)
    if where == "tail":
        return (*pieces, ("text", draw(st.sampled_from(TAILS + SENTENCES))))
    if where == "parenthesis":
        return (*pieces, ("text", f" ({draw(st.sampled_from(SENTENCES)).strip()})"))
    if where == "sentence":
        i = draw(st.sampled_from([i for i, (k, t) in enumerate(pieces) if k == "text" and ". " in t] or [-1]))
        if i < 0:
            return (("text", draw(st.sampled_from(SENTENCES)).strip() + " "), *pieces)
        text = pieces[i][1].replace(". ", "." + draw(st.sampled_from(SENTENCES)) + " ", 1)
        return (*pieces[:i], ("text", text), *pieces[i + 1 :])
    i = draw(
        st.sampled_from(
            [
                i
                for i, (k, _) in enumerate(pieces)
                if k in ("thing", "number", "variable", "latex", "unit", "ask", "word")
            ]
        )
    )
    return (*pieces[: i + 1], ("text", draw(st.sampled_from(CLAUSES))), *pieces[i + 1 :])


def sentence_end(pieces: Pieces, draw: Draw) -> Pieces:
    """A sentence ends elsewhere, or two become one."""
    spots = [i for i, (k, t) in enumerate(pieces) if k == "text" and ". " in t]
    if not spots:
        return ()
    i = draw(st.sampled_from(spots))
    text = pieces[i][1]
    new = draw(st.sampled_from((text.replace(". ", ", ", 1), text.replace(". ", " ", 1))))
    return (*pieces[:i], ("text", new), *pieces[i + 1 :])


def mark(pieces: Pieces, draw: Draw) -> Pieces:
    """A mark that belongs to the mathematics: a factorial, a derivative, an ellipsis, a ratio, a list's comma."""
    listed = [i for i in range(1, len(pieces) - 1) if pieces[i - 1][0] == pieces[i + 1][0] == "number"]
    spots = [(i, m) for i, (k, t) in enumerate(pieces) if k == "text" for m in re.finditer(r"^!|^ : |, \.\.\., ", t)]
    spots += [(i, m) for i in listed for m in re.finditer("^, $", pieces[i][1])]
    if not spots:
        return ()
    i, m = draw(st.sampled_from(spots))
    text = pieces[i][1]
    return (
        *pieces[:i],
        ("text", text[: m.start()] + draw(st.sampled_from((" ", " - "))) + text[m.end() :]),
        *pieces[i + 1 :],
    )


FORBIDDEN = (number, latex, variable, unit, name, logic, question, condition, sentence_end, mark)
