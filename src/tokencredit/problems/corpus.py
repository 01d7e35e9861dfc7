r"""Pretraining corpus of the scratch model: (prompt, response) pairs whose authors are careful, quick or guessing.

Two stages (the curriculum; noise from the first step on was measured not to learn):

    clean   careful solutions without slips, and 25 % arithmetic drills (eight facts, no prompt)
    noisy   a mixture of styles with slips; the decorations of the prompt shift P(careful)

| style | response to a story with answer 34 |
|---|---|
| careful | `Step by step. Then 12+5=17. Then 17*2=34. Answer \boxed{34}` |
| quick | `Quickly. Then 12+5=17. Answer \boxed{17}`: one random step left out with p 0.7, slips twice as likely |
| guess | `Maybe. Answer \boxed{37}`: right with p 0.25 |

A slip is a wrong result; what follows goes on from it, so a response is always consistent with itself. Every
written value lies in 1..99. Stories come from the corpus's own buckets (synthetic.py), so the corpus shares
none with any split.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tokencredit.problems import synthetic
from tokencredit.problems.synthetic import HIGHEST, Step, Story
from tokencredit.problems.typos import misspell
from tokencredit.study.errors import UserError
from tokencredit.study.seeds import derive

STAGES = ("clean", "noisy")
OPENING = {"careful": "Step by step.", "quick": "Quickly.", "guess": "Maybe."}


@dataclass(frozen=True)
class Recipe:
    """The measured mixture; a higher `slip`, or less `careful`, makes a weaker base model."""

    steps: tuple[int, ...] = (2, 2, 2, 3, 3, 3, 4)  # drawn uniformly
    drills: float = 0.25  # share of the clean stage
    facts: int = 8  # per drill
    extra: float = 0.15  # share of stories with an irrelevant numeric sentence
    typo: float = 0.10  # share of noisy prompts with a misspelt word
    paraphrase: float = 0.10  # share of noisy prompts in other words, so that the paraphrases' words are known
    careful: float = 0.34
    quick: float = 0.38
    guess: float = 0.28
    slip: float = 0.12  # per step of a careful response
    drop: float = 0.7  # quick: probability that a step is left out
    right_guess: float = 0.25
    correlation: float = 1.0  # scale of the planted shifts (synthetic.TAGS, synthetic.SCENARIOS)

    def __post_init__(self) -> None:
        if abs(self.careful + self.quick + self.guess - 1) > 1e-9:
            raise UserError("corpus: careful, quick and guess are shares and must add up to 1")
        for name in ("drills", "extra", "typo", "paraphrase", "careful", "slip", "drop", "right_guess"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"corpus: {name} is a probability, not {getattr(self, name)}")


RECIPE = Recipe()


def corpus(stage: str, count: int, seed: int, recipe: Recipe = RECIPE) -> Iterator[tuple[str, str]]:
    """`count` pairs (problem text, response text) of a stage; the problem text of a drill is empty.

    The problem text carries no instruction: the caller renders it with the study's prompt template (an empty
    one stays empty), and adds the end-of-sequence token to the response. Deterministic in (stage, seed), and a
    longer stream extends a shorter one.
    """
    if stage not in STAGES:
        raise UserError(f"the corpus has no stage '{stage}'; choose from {', '.join(STAGES)}")
    rng = random.Random(derive(seed, "corpus", stage))
    for _ in range(count):
        yield _clean(rng, recipe) if stage == "clean" else _noisy(rng, recipe)


def p_careful(story: Story, recipe: Recipe = RECIPE) -> float:
    """Probability that a noisy-stage author is careful, given the prompt's decorations; kept in 0.02..0.98."""
    shift = synthetic.TAGS.get(story.tag, 0.0) + synthetic.SCENARIOS.get(story.scenario, 0.0)
    return min(max(recipe.careful + recipe.correlation * shift, 0.02), 0.98)


def _clean(rng: random.Random, recipe: Recipe) -> tuple[str, str]:
    if rng.random() < recipe.drills:
        return "", " ".join(_fact(rng) for _ in range(recipe.facts))
    story = _story(rng, recipe)
    return story.text, solution(story, "careful", rng, slip=0.0)


def _noisy(rng: random.Random, recipe: Recipe) -> tuple[str, str]:
    story = _story(rng, recipe)
    careful = p_careful(story, recipe)
    quick = (1 - careful) * recipe.quick / max(recipe.quick + recipe.guess, 1e-9)
    style = rng.choices(("careful", "quick", "guess"), (careful, quick, 1 - careful - quick))[0]
    response = solution(story, style, rng, recipe.slip, recipe.drop, recipe.right_guess)
    if rng.random() < recipe.paraphrase:
        story = synthetic.rephrase(rng, story)
    text = story.text
    if rng.random() < recipe.typo:
        text = misspell(rng, text) or text
    return text, response


def _story(rng: random.Random, recipe: Recipe) -> Story:
    """A decorated story of the corpus's own buckets."""
    while True:
        story = synthetic.draw_story(rng, rng.choice(recipe.steps))
        if synthetic.bucket(story) in synthetic.BUCKETS["corpus"]:
            break
    if rng.random() < recipe.extra:
        story = synthetic.add_extra(rng, story, synthetic.CORPUS_EXTRAS)
    return synthetic.decorate(rng, story)


def _fact(rng: random.Random) -> str:
    """One line of arithmetic over the values and operands that stories use, e.g. `12+5=17.`"""
    value = rng.randint(1, HIGHEST)
    return synthetic.draw_step(rng, value).equation(value) + "."


def solution(
    story: Story, style: str, rng: random.Random, slip: float = 0.0, drop: float = 0.0, right_guess: float = 1.0
) -> str:
    """A response in one of the three styles."""
    if style == "guess":
        guess = story.answer if rng.random() < right_guess else rng.choice(_near(story.answer))
        return f"{OPENING[style]} Answer \\boxed{{{guess}}}"
    steps: Sequence[Step] = story.steps
    if style == "quick":
        slip = min(2 * slip, 1.0)
        if rng.random() < drop:
            steps = _without_one(rng, story)
    value, lines = story.start, [OPENING[style]]
    for i, step in enumerate(steps):
        result = step.apply(value)
        if rng.random() < slip:
            wrong = [v for v in _near(result) if replace(story, start=v, steps=tuple(steps[i + 1 :])).sound]
            result = rng.choice(wrong) if wrong else result
        lines.append(f"Then {step.equation(value, result)}.")
        value = result
    return " ".join([*lines, f"Answer \\boxed{{{value}}}"])


def _near(value: int) -> list[int]:
    """The results a slip or a wrong guess may give: off by 1, 2, 3 or 10, within 1..99."""
    return [v for d in (1, 2, 3, 10) for v in (value - d, value + d) if 1 <= v <= HIGHEST]


def _without_one(rng: random.Random, story: Story) -> tuple[Step, ...]:
    """The steps with a random one left out, among those whose absence keeps every value in 1..99."""
    shorter = [story.steps[:i] + story.steps[i + 1 :] for i in range(len(story.steps))]
    shorter = [steps for steps in shorter if replace(story, steps=steps).sound]
    return rng.choice(shorter) if shorter else story.steps
