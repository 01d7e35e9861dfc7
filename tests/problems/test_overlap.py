"""Train/test overlap: the same problem in other notation is found, a shared closing sentence is not enough."""

from pathlib import Path

import pytest

from tokencredit.problems import synthetic
from tokencredit.problems.overlap import find, grams, summary, table, words
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


def test_short_texts_with_a_long_closing_are_minded_too() -> None:
    assert find(rows(f"The ratio of two circles {CLOSING}"), rows(f"The least such ratio {CLOSING}")) == []
    assert find(rows(f"The ratio {CLOSING}"), rows(f"The ratio {CLOSING}"))[0].kind == "exact"
    long = "of the areas of two circles that meet each other and a given line in just one point"
    assert find(rows(f"The ratio {long} {CLOSING}"), rows(f"The quotient {long} {CLOSING}"))[0].kind == "near"


def test_signs_and_short_texts_are_minded() -> None:
    assert find(rows("$x<2$"), rows("$x>2$")) == []
    assert find(rows("$x<2$"), rows("$x < 2$."))[0].kind == "exact"


def test_real_sets(shared: Path) -> None:
    """At least one DAPO problem stands in Omni-Math's rule subset, and AMC 2023 in AMC 2022-2023 as a whole."""

    def load(name: str) -> list[dict]:
        source = FileProblems(kind="jsonl", path=str(shared / "data" / f"{name}.jsonl"))
        return [{"problem_id": r["id"], "problem": r["problem"]} for r in read(source, shared).rows]

    assert any(o.kind == "exact" for o in find(load("dapo_conflicts_24"), load("omni_math_rule_2821")))
    amc = find(load("amc_2023"), load("amc_2022_2023"))
    assert len({o.train_id for o in amc if o.kind == "exact"}) == 40
    assert find(load("aime_2024"), load("aime_2025")) == []


def test_the_real_overlap_is_found_with_both_texts(shared: Path) -> None:
    """A DAPO problem that is in Omni-Math's rule subset but for the spelling of a relation."""

    def load(name: str) -> list[dict]:
        source = FileProblems(kind="jsonl", path=str(shared / "data" / f"{name}.jsonl"))
        return [{**r, "problem_id": r["id"]} for r in read(source, shared).rows]

    (found, *_) = table(load("dapo_conflicts_24"), {"omni": load("omni_math_rule_2821")}, dropped=["omni"])
    assert found["kind"] == "exact" and found["dropped"]
    assert found["problem"] != found["benchmark_problem"]
    assert found["problem"].replace("\\le ", "\\leq ") == found["benchmark_problem"].replace("\\le ", "\\leq ")


@pytest.mark.slow
def test_contests_of_different_years_share_nothing(shared: Path) -> None:
    """Hundreds of texts with the same closing sentences: none is taken for another."""
    names = ("aime_2024", "aime_2025", "aime_2026", "hmmt_feb_2025", "hmmt_feb_2026", "brumo_2025", "dapo_sample_27")
    sets = {}
    for name in names:
        source = FileProblems(kind="jsonl", path=str(shared / "data" / f"{name}.jsonl"))
        sets[name] = [{**r, "problem_id": r["id"]} for r in read(source, shared).rows]
    assert table([], sets) == []


def test_the_table_compares_training_with_benchmarks_and_these_with_each_other() -> None:
    def full(name: str, *texts: str, tags: tuple[str, ...] = ()) -> list[dict]:
        return [
            {"problem_id": f"{name}{i}", "problem": t, "answer": "1", "tags": list(tags)} for i, t in enumerate(texts)
        ]

    one, two, three = (
        "Find the least $x$ with $x>1$.",
        "Find all $y$ that are odd.",
        "Count the ways to seat ten people.",
    )
    sets = {"a": full("a", one, two), "b": full("b", two), "v": full("v", two, tags=("base:a1",))}
    found = table(full("t", one, three), sets, dropped=["a"])
    assert [(r["set"], r["problem_id"], r["benchmark"], r["benchmark_problem_id"], r["dropped"]) for r in found] == [
        ("train", "t0", "a", "a0", True),
        ("a", "a1", "b", "b0", False),
    ]
    assert summary(found)["counts"] == {"pairs": 2, "training_problems": 1, "dropped": 1}


def test_other_scripts_are_compared_by_their_letters() -> None:
    assert find(rows("求 $x$ 的值."), rows("设 $x$ 为数.")) == []
    assert find(rows("求 $x$ 的值."), rows("求 $x$  的值"))[0].kind == "exact"


def test_a_higher_threshold_finds_less() -> None:
    text = "A train of 12 wagons leaves the station at noon and returns " + "after a long and winding journey " * 2
    (found,) = find(rows(text), rows(text.replace("12", "15")))
    assert find(rows(text), rows(text.replace("12", "15")), threshold=found.jaccard) == []


def test_synthetic_splits_share_no_exact_text() -> None:
    train, test = (synthetic.generate(split, 150, 0) for split in ("train", "hard"))
    assert [o for o in find(train, test) if o.kind == "exact"] == []
