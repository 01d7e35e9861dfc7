"""Train/test overlap: the same problem in other notation is found, a shared closing sentence is not enough."""

from pathlib import Path

from tokencredit.problems import synthetic
from tokencredit.problems.overlap import find, grams, words
from tokencredit.problems.sources import read
from tokencredit.study.sources import FileProblems

CLOSING = "can be written as $\\frac{m}{n}$, where $m$ and $n$ are relatively prime positive integers. Find $m+n$."


def rows(*texts: str) -> list[dict]:
    return [{"problem_id": str(i), "problem": text} for i, text in enumerate(texts)]


def test_other_notation_is_the_same_problem() -> None:
    one = "Let $a \\leq \\dfrac{1}{2}$ and $b\\neq 3$. Compute $\\left( a+b \\right)^{2}$, $a>0$."
    other = "Let \\(a \\le \\frac{1}{2}\\) and \\( b \\ne 3 \\). \n Compute \\((a+b)^2,\\, a > 0\\)."
    (found,) = find(rows(one), rows("Something else altogether.", other))
    assert (found.train_id, found.test_id, found.kind) == ("0", "1", "exact")


def test_another_number_is_another_problem_but_a_near_one() -> None:
    text = "A train of 12 wagons leaves the station at noon and returns " + "after a long and winding journey " * 2
    (found,) = find(rows(text), rows(text.replace("12", "15")))
    assert found.kind == "near"
    shared = grams(words(text)) & grams(words(text.replace("12", "15")))
    assert found.jaccard == len(shared) / len(grams(words(text)) | grams(words(text.replace("12", "15"))))


def test_a_shared_closing_sentence_is_no_overlap() -> None:
    assert find(rows(f"The ratio of the areas of both circles {CLOSING}"), rows(f"The least such $x$ {CLOSING}")) == []


def test_signs_and_short_texts_are_minded() -> None:
    assert find(rows("$x<2$"), rows("$x>2$")) == []
    assert find(rows("$x<2$"), rows("$x < 2$."))[0].kind == "exact"


def test_real_sets(shared: Path) -> None:
    """At least one DAPO problem stands in Omni-Math's rule subset, and AMC 2023 in AMC 2022-2023 as a whole."""

    def load(name: str) -> list[dict]:
        source = FileProblems(kind="jsonl", path=str(shared / "data" / f"{name}.jsonl"))
        return [{"problem_id": r["id"], "problem": r["problem"]} for r in read(source, shared)[0]]

    assert any(o.kind == "exact" for o in find(load("dapo_conflicts_24"), load("omni_math_rule_2821")))
    amc = find(load("amc_2023"), load("amc_2022_2023"))
    assert len({o.train_id for o in amc if o.kind == "exact"}) == 40
    assert find(load("aime_2024"), load("aime_2025")) == []


def test_synthetic_splits_share_no_exact_text() -> None:
    train, test = (synthetic.generate(split, 150, 0) for split in ("train", "hard"))
    assert [o for o in find(train, test) if o.kind == "exact"] == []
