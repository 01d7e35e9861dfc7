"""The generator of word problems: right answers, unique texts, splits that can't overlap."""

import re

import pytest

from tokencredit.problems import synthetic
from tokencredit.problems.corpus import corpus
from tokencredit.study.errors import UserError
from tokencredit.study.tables import SCHEMAS

ADD, SUB = re.compile(r" buys (\d+) more"), re.compile(r" gives away (\d+)")


def solve(text: str) -> tuple[int, list[int]]:
    """The answer of a plain text, and all values on the way, by an independent reading."""
    values = []
    for sentence in text.split(". "):
        if found := re.search(r" has (\d+) [a-z]+", sentence):
            values.append(int(found[1]))
        elif found := ADD.search(sentence):
            values.append(values[-1] + int(found[1]))
        elif found := SUB.search(sentence):
            values.append(values[-1] - int(found[1]))
        elif "number doubles" in sentence:
            values.append(values[-1] * 2)
        elif "number triples" in sentence:
            values.append(values[-1] * 3)
    return values[-1], values


@pytest.mark.parametrize("split", synthetic.SPLITS)
def test_rows_are_sound(split: str) -> None:
    rows = synthetic.generate(split, 300, seed=3)
    assert len({r["problem"] for r in rows}) == len({r["problem_id"] for r in rows}) == 300
    steps = {"hard": {4}, "noop": {2, 3}}.get(split, {2, 3})
    for row in rows:
        assert list(row) == [c.name for c in SCHEMAS["problems"]]
        plain = row["problem"].split("How many")[0]
        for phrase in synthetic.NOOP_EXTRAS:
            plain = re.sub(phrase.format(k=r"\d+").replace(".", r"\."), "", plain)
        answer, values = solve(plain)
        assert row["answer"] == str(answer)
        assert all(1 <= v <= 99 for v in values)
        assert len(values) - 1 in steps
        assert f"steps:{len(values) - 1}" in row["tags"]
        assert "boxed" not in row["problem"]


def test_a_larger_set_extends_a_smaller_one_and_seeds_differ() -> None:
    small, large = (synthetic.generate("easy", n, seed=1) for n in (20, 40))
    assert large[:20] == small
    assert synthetic.generate("easy", 20, seed=2) != small


def test_exclude_by_text_or_id() -> None:
    first = synthetic.generate("easy", 10, seed=1)
    left_out = {first[0]["problem"], first[1]["problem_id"]}
    again = synthetic.generate("easy", 10, seed=1, exclude=left_out)
    assert again[:8] == first[2:]


def test_splits_and_corpus_share_no_story() -> None:
    """Not even under other decorations: the bare stories are compared."""
    stories = {
        split: {synthetic.parse(r["problem"]).bare for r in synthetic.generate(split, 400, seed)}  # type: ignore[union-attr]
        for split in synthetic.SPLITS
        for seed in (1, 2)
    }
    stories["corpus"] = {s.bare for p, _ in corpus("clean", 2000, 5) if (s := synthetic.parse(p))}
    assert len(stories["corpus"]) > 1000
    names = list(stories)
    for i, one in enumerate(names):
        for other in names[i + 1 :]:
            assert not stories[one] & stories[other]


def test_buckets_are_owned_once() -> None:
    owned = [b for buckets in synthetic.BUCKETS.values() for b in buckets]
    assert sorted(owned) == list(range(20))


def test_noop_phrases_never_occur_in_the_corpus() -> None:
    heads = [phrase.split(" {k}")[0] for phrase in synthetic.NOOP_EXTRAS]
    texts = [p for stage in ("clean", "noisy") for p, _ in corpus(stage, 1500, 0)]
    assert not [t for t in texts if any(h in t for h in heads)]
    assert all(any(h in r["problem"] for h in heads) for r in synthetic.generate("noop", 50, 0))


def test_the_number_of_an_irrelevant_sentence_is_fresh() -> None:
    for row in synthetic.generate("noop", 100, 4):
        story = synthetic.parse(row["problem"])
        assert story is not None
        (k,) = map(int, re.findall(r"\d+", story.extra))
        assert k not in {*story.values, *(s.k for s in story.steps)}


def test_decorations_are_as_frequent_as_planned_and_say_nothing_about_the_answer() -> None:
    rows = synthetic.generate("train", 1500, 0)
    tagged = [r for r in rows if "#" in r["problem"]]
    scenes = [r for r in rows if any(t.startswith("scenario:") for t in r["tags"])]
    assert abs(len(tagged) / 1500 - 0.6) < 0.04  # three standard errors
    assert abs(len(scenes) / 1500 - 0.5) < 0.04
    means = [sum(int(r["answer"]) for r in rows if f"tag:{tag}" in r["tags"]) / 150 for tag in ("#draft", "#exam")]
    assert abs(means[0] - means[1]) < 8


@pytest.mark.parametrize(
    "text",
    [
        "Tom has 12 apples.",
        "Tom has 12 apples. Anna buys 5 more. How many apples now?",
        "Tom has 12 apples. Tom buys 5 more. How many books now?",
        "On a Monday, Tom has 12 apples. Tom buys 5 more. How many apples now?",
        "Tom has 12 apples. Tom buys 5 more. How many apples now? #other",
        "How many apples now? Tom has 12 apples.",
    ],
)
def test_parse_refuses_what_the_generator_would_not_write(text: str) -> None:
    assert synthetic.parse(text) is None


def test_errors_name_the_remedy() -> None:
    with pytest.raises(UserError, match=r"no split 'medium'.*easy"):
        synthetic.generate("medium", 1, 0)
