r"""Equivalence of expressions under the house rules. Every pair here is decided by the mathematics in its comment or at sight."""

from __future__ import annotations

import pytest

from tokencredit.grading import check_gold
from tokencredit.grading.refuse import refusal

RIGHT = {
    "numbers": [
        ("2/3", r"\frac{4}{6}"), ("33.3", "33.30"), (r"\frac54", "1 1/4"), (r"-1\frac14", r"-\frac54"),
        ("137 \\frac{1}{2}", "137.5"),
        (r"4\sqrt2", r"4\sqrt(2)"), (r"4\sqrt{2}", r"\sqrt{32}"), (r"\frac{\pi}{2}", "pi/2"), ("14-i", "14.0 + -1.0i"),
        (r"0.5+\frac{\pi}8", r"\frac{4+\pi}{8}"), ("2^{99}", "633825300114114700748351602688"),
        ("4.5e33", r"4.5\times 10^{33}"),
        ("1e-5", "10^{-5}"), (r"\sqrt[3]{-8}", "-2"), (r"\binom{5}{2}", "10"), ("60", "(3-9)(5-15)"),
        (r"\frac43", r"1.\overline{3}"),
        (r"\frac{\sqrt3}{3}", r"\frac{1}{\sqrt3}"), (r"e^{i\pi}", "-1"), (r"2\binom{4}{2}", "12"), ("6", "(2)(3)"),
        ("6", "2(3)"),
        (r"\frac{1}{2014!^{2014}}", r"\dfrac{1}{2014!^{2014}}"), ("-1./3", r"-\frac13"), (r"\log_2 8", "3"),
        (r"2\sin 30^\circ", "1"),
        (r"\sqrt{5+2\sqrt6}", r"\sqrt2+\sqrt3"), ("5", "2+3=5"), ("0.5", r"\frac12"), (".0000672", r"6.72\cdot10^{-5}"),
    ],
    "units, degrees, percent, currency": [
        (r"74^\circ", "74"), ("74", r"74^{\circ}"), (r"5\text{ m}", "5"), ("5", "5 m"),
        (r"864 \mbox{ inches}^2", "864"),
        (r"15\mbox{ cm}^2", r"15\text{ square centimeters}"), (r"\frac{270}7\text{ degrees}", r"\frac{270}{7}^\circ"),
        (r"5\%", "5"), (r"5\%", r"5\%"), ("0.05", r"5\%"), (r"\$32,\!348", "32348"), (r"\$18.90", "18.9"),
        ("5", "5个"), ("-3", "−3"),
        (r"3 \mathrm{ft} / \mathrm{s}", r"3\text{ ft/s}"),
    ],
    "lists, sets, tuples": [
        ("0,1", "(0,1)"), ("0,1", r"\{1,0\}"), ("(0,1)", "0,1"), ("2500,7500", "7500, 2500"), ("100,200", "200, 100"),
        ("58,500", "58500"),
        ("1300400", "1,300,400"), ("1000", r"1\,000"), ("3", r"\{3\}"),
        (r"1 \pm \sqrt{19}", r"1-\sqrt{19}, 1+\sqrt{19}"),
        (r"\{1\pm\sqrt{5},-2\}", r"-2, 1+\sqrt5, 1-\sqrt5"), (r"1331 \text{ and } 1728", "1728, 1331"),
        (r"(1,\frac92)", "(1,4.5)"),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{bmatrix} 1 \\ 2 \end{bmatrix}"), ("(1,2),(3,4)", "(3,4), (1,2)"),
        (r"\emptyset", r"\varnothing"), (r"(45^{\circ}, 60^{\circ}),(135^{\circ}, 60^{\circ})", "(135,60),(45,60)"),
        ("3:2", "6:4"),
        (r"1, 2, \ldots, n", r"1,2,\dots,n"),
        (r"2,3,\frac{3+i\sqrt{3}}{2},\frac{3-i\sqrt{3}}{2}", r"\frac{3\pm i\sqrt3}{2}, 2, 3"),
    ],
    "assignments": [
        ("5", "y=5"), ("x=5", "5"), ("f(x)=2x", "2x"), ("2x", "f(x)=2x"), ("x=1,x=2", "2, 1"), ("(1,2)", "x=1,y=2"),
        ("x=1,y=2", "y=2,x=1"),
        ("n=2,3,4", "2,3,4"), ("D=(0,1)", "(0,1)"), ("5", "m+n=5"), ("5", "a^2+b^2=5"),
        (r"\frac13", r"x=\frac13\approx0.333"),
    ],
    "relations and intervals, both ways": [
        (r"m\geq\sqrt{2}", r"m\in[\sqrt{2},+\infty)"), (r"[\sqrt2,\infty)", r"m \ge \sqrt 2"),
        (r"(-\infty, 3)", "x<3"), ("x<3", r"(-\infty,3)"),
        (r"(-\infty,2)\cup(2,\infty)", r"x\neq 2"), (r"x\ne 2", r"\mathbb{R}\setminus\{2\}"), ("2<x<5", "(2,5)"),
        ("(2,5)", "5>x>2"),
        (r"x<-1\text{ or }x>3", r"(-\infty,-1)\cup(3,\infty)"), (r"\{x\mid x>2\}", r"(2,\infty)"),
        (r"x \in [-2,7]", r"-2\le x\le 7"),
        ("2x+4y-3=0", r"y=-\frac{1}{2}x+\frac{3}{4}"), ("y=2x+3", "2x-y+3=0"), ("xy=1", "y=1/x"),
        (r"0 \leq r \leq \frac{1}{2}", r"r\in[0,0.5]"),
    ],
    "functions": [
        (r"\tan^2(y)+1", r"\sec^2(y)"), (r"\frac{1}{\sqrt{n}}", r"\sqrt{1/n}"), ("R^2-r^2", "(R-r)(R+r)"),
        (r"\frac{n(n+1)}2", r"\sum_{k=1}^n k"),
        ("n!", "n(n-1)!"), ("(-1)^n", r"\cos(n\pi)"), (r"\arcsin{1.3 \sin{\theta_w}}", r"\sin^{-1}(1.3\sin\theta_w)"),
        (r"\sqrt{x^2}", "|x|"),
        (r"\lceil \frac{n}{2} \rceil", r"\lfloor \frac{n+1}{2}\rfloor"), ("3R^2", "3r^2"), ("2RC+R+C", "C+R+2CR"),
        ("E_{1},E_{2}", "E_2, E_1"),
        (r"y^{\prime}+r y-r x(t)=0", "y'+ry=rx(t)"), (r"\frac{n(n-1)}{2}", r"\binom n2"),
    ],
    "words and bases": [
        (r"\text{even}", "Even."), (r"\text{(C)}", "C"), ("E", r"\text{E}"), (r"\text{no solution}", "No solution"),
        ("52_8", "52_{8}"),
        ("52_8", r"52_{\text{eight}}"), ("101", "101_{10}"), ("p - q", "-q+p"), ("AB", "BA"),
    ],
}  # fmt: skip

WRONG = {
    "numbers": [
        ("2/3", "0.6667"), ("33.3", r"\frac{100}{3}"), (r"\frac{1}{2^{99}}", r"\frac{1}{2^{98}}"),
        (r"\frac{1}{2004!}", r"\frac{1}{2006!}"),
        (r"\frac{2^{2005}+1}{3\cdot2^{2006}}", r"\frac{1}{3\cdot2^{2006}}"),
        (r"\frac{\sqrt2}{2^{99}}", r"\frac{\sqrt2}{2^{98}}"),
        (r"\frac{1}{2}", r"\frac12+\frac{\pi}{2^{2000}}"), (r"\frac{1}{12}", "0.0833333333333333"),
        (r"-\frac{1}{21}", "-0.047619047619"),
        ("1", "0.9999999"), (r"1-\frac{1}{\mathrm{e}}", r"1+\frac{1}{\mathrm{e}}"),
        ("2^{99}", "633825300114114700748351602689"),
        (r"\sqrt{51}", "7.14142842854285"), ("262537412640768744", r"e^{\pi\sqrt{163}}"), ("-6", "(3-9) (5-15"),
        ("14-i", "14+i"),
        ("0", r"1-\cos(10^{-29})"), (r"\sin 10^\circ", r"\sin 10"), ("5", r"x \approx 5"), ("8", "5 3"), ("5", "2 3"),
        ("4", r"4\sqrt(2)"),
    ],
    "units, degrees, percent, bases": [
        ("5m", "5"), ("3n-2t", "3n-2"), ("3n-2", "3n-2t"), (r"5\text{ cm}", r"5\text{ m}"), ("5", r"5\%"),
        (r"5\%", "0.05"), ("5", "0.05"),
        ("52_8", "52"), ("52_8", "52_{10}"), ("101", "101_2"), ("5", "5x"), ("5x", "5"), (r"74^\circ", "75"),
    ],
    "lists, sets, tuples": [
        ("(0,1)", "(1,0)"), ("(0,1)", r"\{0,1\}"), (r"1331 \text{ and } 1728", "1728"), ("3,11,33", "31133"),
        ("100,200", "100200"),
        (r"\pm 2021", "2021"), (r"19, 46, \text{ and } 82", "21, 36, and 82"), ("1,1,2", "1,2"), ("(1,2)", "[1,2]"),
        ("(6,31,-1)", "(31,6,-1)"),
        (r"1, 2, \ldots, n", r"1, 3, 5, \ldots, 2n-1"), (r"1:2:3:\ldots", r"1:4:9:\ldots"), ("12:00", "1:00"),
        ("3:2", "2:3"),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}2\\1\end{pmatrix}"), ("(1,1),(3,2)", "[1,1),(3,2]"),
        ("1000", "1 000"),
    ],
    "assignments": [
        ("x=5", "y=5"), ("3", "n=3k"), ("0", "x-1=0"), ("0", "3x+4y+14=0"), ("x=1,y=2", "2,1"),
        ("x=1,y=2", "x=2,y=1"), ("n=2,3,4", "n=1,2,3"),
        ("D=(0,1)", "D=(0,1.5)"), ("f(n)=n^2", "f(x)=x^2"), ("a^2+b^2=5", "5"), ("f(x)=2x", "f(x)=3x"),
    ],
    "relations and intervals": [
        (r"m\geq\sqrt{2}", r"m\in(\sqrt{2},+\infty)"), (r"(-\infty,3)", r"x\le 3"), ("[2,5)", "[2,5]"),
        (r"k\ge 2", "k>2"), ("2x+4y-3=0", "2x+4y+3=0"),
        (r"\frac{x^2}{4}+\frac{y^2}{3}=1", r"\frac{x^2}{16}+\frac{y^2}{12}=1"),
        (r"F_n = \sum_{k=0}^{n-1} F_k F_{n-k-1}", r"F_n = \sum_{k=0}^{n-2} F_k F_{n-k-2}"),
        (r"\frac{d x}{d t}=k x-a", r"-\frac{d x}{d t}=k x-a"), (r"m_{\max}=n^2", r"-m_{\max}=n^2"), ("x<3", "x>3"),
    ],
    "functions and words": [
        ("R^2-r^2", "0"), ("|x|", "x"), (r"\sqrt{x^2}", "x"), (r"\lfloor n/2\rfloor", "n/2"),
        (r"\frac{2x}{3}", r"\frac{2}{3x}"), ("y'+ry=0", "y+ry=0"),
        (r"\sin^{-1}x", r"\frac{1}{\sin x}"), ("p-q", "q-p"), (r"\text{east}", "seat"), ("east", "seat"),
        (r"\text{Evelyn}", r"-\text{Evelyn}"),
        (r"\text{(C)}", "B"), ("None", "5"), (r"c^2(\gamma^2-1)", r"c^2(\gamma-1)"),
    ],
}  # fmt: skip


def _judge(gold: str, box: str, tolerance: float | None = None) -> bool:
    from tokencredit.grading.grader import _decide
    from tokencredit.grading.symbolic import judge

    local = _decide((gold, "expression", tolerance, box))
    return local.correct if local else judge(gold, box, tolerance)[0]


@pytest.mark.parametrize("group", RIGHT)
def test_equal_answers(group: str) -> None:
    assert [(g, b) for g, b in RIGHT[group] if not _judge(g, b)] == []


@pytest.mark.parametrize("group", WRONG)
def test_different_answers(group: str) -> None:
    assert [(g, b) for g, b in WRONG[group] if _judge(g, b)] == []


@pytest.mark.parametrize(
    ("gold", "box", "right"),
    [
        ("41.8", "41.9", True), ("41.8", "42.3", False), ("100", "101", True), ("100", "101.01", False),
        ("100", "99", True),
        ("1e-5", "1.005e-5", True), ("4.5e33", r"4.51\times10^{33}", True), ("0.33", r"\frac13", False),
        ("3.14", r"\pi", True),
        (r"\frac{37}{4} m", "9.3m", False), ("1.6", r"1.6\text{ cm}", True), ("0", "0.0001", False),
        ("(1.00, 2.00)", "(1.005, 2)", True),
    ],
)  # fmt: skip
def test_tolerance_is_relative_to_the_gold_and_for_numbers(gold: str, box: str, right: bool) -> None:
    assert _judge(gold, box, 1e-2 if gold != "0.33" else 1e-3) is right


@pytest.mark.parametrize(
    ("box", "reason"),
    [
        ("9^{9^{9^{9}}}", "too large"), ("29^{11^7}", "too large"), (r"\binom{1000000000}{500000000}", "too large"),
        ("1000000!", "too large"),
        ("10!!", "too large"), ("(10!)!", "too large"), ("1e99999", "too large"), ("x" * 301, "too long"),
        ("(" * 30 + ")" * 30, "nested too deeply"),
        ("1\x002", "control characters"), ("\ud800", "control characters"), (r"{10^9 \choose 5}", "too large"),
        ("2^{10^{6}}", "too large"),
        (r"x^{1000000}", "too large"),
    ],
)  # fmt: skip
def test_refusals(box: str, reason: str) -> None:
    assert refusal(box) == reason


@pytest.mark.parametrize(
    "box",
    ["2^{2^{7}}", "e^{x^{2}}", r"\binom{4048}{2024}", "2004!", r"\frac{1}{2014!^{2014}}", "2024^{4046}", "2^{2^{n}}",
     "(n-1)!", r"\binom{\binom{n}{k}}{m}",
     "10^{100}", "x^{10100}", r"1.8 \cdot 10^{12}", "(1+x)^{2n}", r"\frac{(2n)!}{n!^2}"],
)  # fmt: skip
def test_ordinary_answers_are_not_refused(box: str) -> None:
    assert refusal(box) == ""


def test_a_long_gold_raises_the_bar() -> None:
    gold = "+".join(f"x^{{{k}}}" for k in range(80))
    assert len(gold) > 300
    assert refusal(gold) == "too long"
    assert refusal(gold, gold) == ""


@pytest.mark.parametrize(
    ("gold", "fine"),
    [
        (r"\frac12", True), ("1,2,3", True), (r"\text{east}", True), ("52_8", True),
        (r"\[ \boxed{\frac{1}{2}} \]", True), (r"\frac{1}{2^{15}", True),
        ("The smallest possible value of the sum is 7.", False), (r"\frac{", False), ("9^{9^{9^{9}}}", False),
        ("", False), (r"\forall", False),
    ],
)  # fmt: skip
def test_check_gold_of_expressions(gold: str, fine: bool) -> None:
    assert (check_gold(gold, "expression") == "") is fine


def test_check_gold_names_an_unknown_kind() -> None:
    assert "essay" in check_gold("5", "essay")
