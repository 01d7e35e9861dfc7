r"""Seeded word problems small enough for a model of 0.4 M parameters to learn on a CPU.

    [On a rainy day,] Tom has 12 apples. Tom buys 5 more. The number doubles. How many apples now? [#draft]

Every value that occurs while the story runs lies in 1..99; the answer is the last of them.

| split | steps | start | note |
|---|---|---|---|
| train, easy | 2, 2, 3 | 2..20 | in distribution |
| hard | 4 | 2..30 | longer than what is trained on |
| noop | 2, 3 | 2..20 | one irrelevant numeric sentence, of phrases the pretraining corpus never uses |

Two decorations, a leading scenario phrase and a closing tag, carry no information about the answer. The
pretraining corpus (corpus.py) makes some of them predict how careful its author is: the planted spurious
correlation that drift should find.

Disjointness. The bare story (no decoration, no extra sentence) is hashed into one of 20 buckets, and every
split, and the corpus, owns its own buckets (`BUCKETS`). So no two of them can share a story, whatever the
sizes, the seeds, the decorations or the paraphrase: the bare story is what `Story.bare` renders.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import cached_property

from tokencredit.problems.text import problem_id
from tokencredit.study.errors import UserError
from tokencredit.study.seeds import derive

NAMES = ("Tom", "Anna", "Ben", "Mia", "Sam", "Lucy", "Max", "Emma", "Leo", "Nora", "Paul", "Ruth")
THINGS = (
    "apples", "books", "coins", "cards", "pens", "shells", "stamps", "marbles", "cookies", "stones", "balls", "plates",
)  # fmt: skip
HIGHEST = 99  # all values of a story lie in 1..HIGHEST

# operation -> surface forms; the first is the plain one, the others are its paraphrases
FORMS: dict[str, tuple[str, ...]] = {
    "start": ("{name} has {k} {things}.", "{name} owns {k} {things}."),
    "add": ("{name} buys {k} more.", "{name} purchases {k} more.", "Then {name} buys {k} more."),
    "sub": ("{name} gives away {k}.", "{name} hands out {k}.", "Then {name} gives away {k}."),
    "double": ("The number doubles.", "The number is doubled.", "Then the number doubles."),
    "triple": ("The number triples.", "The number is tripled.", "Then the number triples."),
    "ask": ("How many {things} now?", "How many {things} are there now?", "So how many {things} now?"),
}
FACTOR = {"double": 2, "triple": 3}

# decorations and the shift of P(careful) they are planted with in the corpus's noisy stage
TAGS = {"#draft": -0.28, "#misc": -0.28, "#exam": 0.42, "#unit": 0.42, "#list": 0.0, "#page": 0.0}
SCENARIOS = {
    "On a rainy day": -0.20,
    "Near the old bridge": -0.20,
    "On a sunny day": 0.25,
    "In the town hall": 0.25,
    "After the long walk": 0.0,
    "At the corner shop": 0.0,
}
P_TAG, P_SCENARIO = 0.6, 0.5
CORPUS_EXTRAS = ("A shelf nearby holds {k} jars.", "The bus comes in {k} minutes.")
NOOP_EXTRAS = (
    "The dog next door is {k} years old.",
    "A clock on the wall shows {k}.",
    "The garden has {k} tall trees.",
)

STEPS = {"train": (2, 2, 3), "easy": (2, 2, 3), "hard": (4,), "noop": (2, 3)}
HIGHEST_START = {"hard": 30}
# of 20 buckets; the corpus takes half since it is by far the largest
BUCKETS = {
    "corpus": range(10),
    "train": range(10, 14),
    "easy": range(14, 16),
    "hard": range(16, 18),
    "noop": range(18, 20),
}
SPLITS = tuple(STEPS)


@dataclass(frozen=True)
class Step:
    op: str  # add, sub, double, triple
    k: int = 0  # the operand of add and sub

    def apply(self, value: int) -> int:
        if self.op in FACTOR:
            return value * FACTOR[self.op]
        return value + self.k if self.op == "add" else value - self.k

    def equation(self, value: int, result: int | None = None) -> str:
        """`12+5=17`; `result` in place of the right one where a slip is wanted."""
        sign, k = ("*", FACTOR[self.op]) if self.op in FACTOR else ("+" if self.op == "add" else "-", self.k)
        return f"{value}{sign}{k}={self.apply(value) if result is None else result}"


@dataclass(frozen=True)
class Story:
    name: str
    things: str
    start: int
    steps: tuple[Step, ...]
    scenario: str = ""
    tag: str = ""
    extra: str = ""  # one irrelevant sentence before the question
    forms: tuple[int, ...] = ()  # surface form of start, each step, the question; () = all plain

    @cached_property
    def values(self) -> tuple[int, ...]:
        """Start, then the value after every step."""
        values = [self.start]
        for step in self.steps:
            values.append(step.apply(values[-1]))
        return tuple(values)

    @property
    def answer(self) -> int:
        return self.values[-1]

    @property
    def sound(self) -> bool:
        return all(1 <= v <= HIGHEST for v in self.values)

    @property
    def sentences(self) -> list[str]:
        kinds = ["start", *(s.op for s in self.steps), "ask"]
        ks = [self.start, *(s.k for s in self.steps), 0]
        forms = self.forms or (0,) * len(kinds)
        return [
            FORMS[kind][form].format(name=self.name, things=self.things, k=k)
            for kind, form, k in zip(kinds, forms, ks, strict=True)
        ]

    @property
    def text(self) -> str:
        *body, ask = self.sentences
        if self.scenario:
            body[0] = f"{self.scenario}, {body[0]}"
        return " ".join([*body, *([self.extra] if self.extra else []), ask, *([self.tag] if self.tag else [])])

    @property
    def bare(self) -> str:
        """The story without decorations, extra sentence or paraphrase: what the buckets are made of."""
        return replace(self, scenario="", tag="", extra="", forms=()).text


def bucket(story: Story) -> int:
    """Which of the 20 buckets the bare story falls into."""
    return _bucket(story.bare)


def _bucket(bare: str) -> int:
    return int.from_bytes(hashlib.sha256(bare.encode()).digest()[:8], "big") % 20


def draw_step(rng: random.Random, value: int) -> Step:
    """A step that keeps the value in 1..99: add or subtract 2..9 (p 0.35 each), double (0.2), triple (0.1)."""
    while True:
        op = rng.choices(("add", "sub", "double", "triple"), (0.35, 0.35, 0.2, 0.1))[0]
        step = Step(op, rng.randint(2, 9) if op in ("add", "sub") else 0)
        if 1 <= step.apply(value) <= HIGHEST:
            return step


def draw_story(rng: random.Random, steps: int, highest_start: int = 20) -> Story:
    """A bare story of `steps` steps."""
    start = value = rng.randint(2, highest_start)
    drawn = []
    for _ in range(steps):
        drawn.append(draw_step(rng, value))
        value = drawn[-1].apply(value)
    return Story(rng.choice(NAMES), rng.choice(THINGS), start, tuple(drawn))


def decorate(rng: random.Random, story: Story, p_tag: float = P_TAG, p_scenario: float = P_SCENARIO) -> Story:
    """Add a tag with probability `p_tag` and a scenario with probability `p_scenario`, each uniform over its kind."""
    tag = rng.choice(tuple(TAGS)) if rng.random() < p_tag else ""
    scenario = rng.choice(tuple(SCENARIOS)) if rng.random() < p_scenario else ""
    return replace(story, tag=tag, scenario=scenario)


def add_extra(rng: random.Random, story: Story, phrases: tuple[str, ...]) -> Story:
    """Insert one irrelevant numeric sentence whose number occurs nowhere in the story."""
    taken = {*story.values, *(s.k for s in story.steps)}
    k = rng.choice([k for k in range(2, 21) if k not in taken])
    return replace(story, extra=rng.choice(phrases).format(k=k))


def generate(split: str, size: int, seed: int, exclude: AbstractSet[str] = frozenset()) -> list[dict]:
    """`size` rows of the table `problems`, with unique texts none of which (nor its problem_id) is in `exclude`.

    Row i does not depend on `size`, so a larger size extends a smaller one. Raises UserError for an unknown
    split, or where the split's stories run out.
    """
    if split not in STEPS:
        raise UserError(f"synthetic problems have no split '{split}'; choose from {', '.join(SPLITS)}")
    rng = random.Random(derive(seed, "synthetic", split))
    rows: list[dict] = []
    seen: set[str] = set()
    tries = 0
    while len(rows) < size:
        tries += 1
        if tries > 200 * size + 10_000:
            raise UserError(
                f"synthetic split '{split}' yields only {len(rows)} of {size} unique problems; ask for fewer"
            )
        story = draw_story(rng, rng.choice(STEPS[split]), HIGHEST_START.get(split, 20))
        story = decorate(rng, story)
        if split == "noop":
            story = add_extra(rng, story, NOOP_EXTRAS)
        bare = story.bare
        if _bucket(bare) not in BUCKETS[split] or bare in seen:
            continue
        row = to_row(story, split)
        if row["problem"] in exclude or row["problem_id"] in exclude:
            continue
        seen.add(bare)
        rows.append(row)
    return rows


def to_row(story: Story, split: str) -> dict:
    """The story as a row of the table `problems`."""
    tags = [f"steps:{len(story.steps)}"]
    tags += [f"tag:{story.tag}"] if story.tag else []
    tags += [f"scenario:{story.scenario}"] if story.scenario else []
    return {
        "problem_id": problem_id(story.text),
        "source": f"synthetic:{split}",
        "problem": story.text,
        "answer": str(story.answer),
        "answer_kind": "integer",
        "choices": [],
        "tags": tags,
    }


# ---- reading a story back from its text ------------------------------------------------------------


def _pattern(form: str) -> str:
    parts = {"{name}": r"(?P<name>[A-Z][a-z]+)", "{things}": r"(?P<things>[a-z]+)", "{k}": r"(?P<k>\d+)"}
    return re.sub(r"\\\{(\w+)\\\}", lambda m: parts["{" + m.group(1) + "}"], re.escape(form))


_FORM_PATTERNS = [(op, i, re.compile(_pattern(form))) for op, forms in FORMS.items() for i, form in enumerate(forms)]
_EXTRA_PATTERNS = [re.compile(_pattern(form)) for form in (*CORPUS_EXTRAS, *NOOP_EXTRAS)]


def parse(text: str) -> Story | None:
    """The story that `text` tells, or None if it is not exactly a text of this generator.

    >>> parse("Tom has 12 apples. The number doubles. How many apples now? #exam").answer
    24
    """
    found = re.fullmatch(r"(?:(?P<scenario>[A-Z][a-z ]+), )?(?P<body>.+?\?)(?: (?P<tag>#[a-z]+))?", text)
    if found is None:
        return None
    scenario, tag = found["scenario"] or "", found["tag"] or ""
    if (scenario and scenario not in SCENARIOS) or (tag and tag not in TAGS):
        return None
    story = Story("", "", 0, (), scenario=scenario, tag=tag)
    sentences = re.findall(r"[^.?]+[.?]", found["body"])
    for i, sentence in enumerate(sentences):
        longer = _read(story, sentence.strip(), first=i == 0, last=i == len(sentences) - 1)
        if longer is None:
            return None
        story = longer
    return story if story.text == text else None


def _read(story: Story, sentence: str, first: bool, last: bool) -> Story | None:
    """The story with one more sentence read, or None where it does not fit."""
    for op, form, pattern in _FORM_PATTERNS:
        match = pattern.fullmatch(sentence)
        if match is None:
            continue
        if first != (op == "start") or last != (op == "ask"):
            return None
        forms = (*story.forms, form)
        if op == "start":
            return replace(story, name=match["name"], things=match["things"], start=int(match["k"]), forms=forms)
        if op == "ask":
            return replace(story, forms=forms)
        k = int(match["k"]) if op in ("add", "sub") else 0
        return replace(story, steps=(*story.steps, Step(op, k)), forms=forms)
    if not first and not last and not story.extra and any(p.fullmatch(sentence) for p in _EXTRA_PATTERNS):
        return replace(story, extra=sentence)
    return None


def rephrase(rng: random.Random, story: Story) -> Story:
    """The same story, same entities, numbers and order, with at least one sentence in another of its forms."""
    kinds = ["start", *(s.op for s in story.steps), "ask"]
    old = story.forms or (0,) * len(kinds)
    while True:
        forms = tuple(
            rng.randrange(len(FORMS[kind])) if rng.random() < 0.5 else f for kind, f in zip(kinds, old, strict=True)
        )
        if forms != tuple(old):
            return replace(story, forms=forms)
