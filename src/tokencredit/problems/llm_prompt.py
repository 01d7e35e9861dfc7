r"""What a language model is asked, and how its reply is read.

The instructions carry SCAPO's rules for the four perturbations (arXiv 2609.40360, section 2) in our own words, and
name the shapes that the validator knows. All kinds are asked for in one JSON object. The model never sees the answer.

Mathematics in JSON goes wrong in two ways: backslashes left single ("\frac" is a form feed and "rac", "\sqrt" no JSON
at all) and backslashes doubled once too often. `readings` gives every way a reply may have been meant; the validator,
which holds the original, decides.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

SYSTEM = r"""You rewrite mathematics problems so that the wording differs while the problem stays exactly the same.

In every rewriting these are untouchable, character by character: numbers, however they are written (12, 1,000, 3.5%,
"three", "half"); everything inside $...$, $$...$$, \(...\), \[...\] and environments; LaTeX commands, each with its
single backslash; variables and point labels; units; comparison signs and operations; names of people and places;
words of mathematics (prime, mean, median, even, integer, sum, ...) and of logic (not, all, at least, exactly, each,
...); what is asked for, and the form the answer must have. Never add or remove a condition, a fact, a hint or a step
of reasoning, and never hint at the answer. If something cannot be done within these rules, give an empty text.

Kinds:
{kinds}

Reply with one JSON object and nothing else. Its keys are {keys}; each value is the complete rewritten problem as one
string. Inside JSON a backslash is written twice, so \frac becomes "\\frac"; a line break becomes "\n"."""

KINDS = {
    "paraphrase": "Replace some ordinary words of the prose by words that mean the same: word for word, at the same "
    "place. Keep scenario, entities, order of events, every sentence and its end, brackets, tenses, and prepositions "
    "(of, to, from, before, after, ...). Leave the sentence that asks as it is, but for its opening: Find, "
    "Determine, Compute, Calculate and What is may replace each other.",
    "typo_noise": "Copy the text with exactly one slip of the keyboard: in one ordinary word of four letters or more "
    "insert, drop or change one letter, or swap two neighbours (changing or dropping the first letter is not "
    "allowed). The result must not be another English word. Change nothing else, not even white space.",
    "scenario_wrap": "Put a light, idle frame around the text and copy the rest: either a phrase of 3 to 10 words in "
    "front, opening with During, On, At, In, While, Over, After or Before and closing with a comma (the first word "
    "of the text then loses its capital unless it is a name or a symbol), or a sentence in brackets at the very end "
    "that opens with Seen, Heard, Shared, Posted, Told or Found. The frame takes no word from the problem, names "
    "nobody, has no number, no word of mathematics and no 'he', 'she', 'it' or 'they', and tells nothing about the "
    "scene.",
    "irrelevant_context": "Copy the text unchanged, then one space, then exactly one of: a tautology of the shape "
    "'and X is X' with an everyday word X that the text does not hold; a random string of 6 to 12 lower-case letters "
    "and digits, at least two of each, that spells no word; or a tag such as [ref: q7xk2] with such a string. Let the "
    "shapes vary. The added part must not hold the words question, problem, exercise or consider.",
}
AGAIN = """These rewritings were refused; write them anew, and mind the reasons:
{refused}"""


def messages(
    problem: str, kinds: Sequence[str], refused: Mapping[str, tuple[str, str]] | None = None
) -> list[dict[str, str]]:
    """The conversation that asks for `kinds`; `refused` maps a kind to its last text and why it was refused."""
    rules = "\n".join(f"- {kind}: {KINDS[kind]}" for kind in kinds)
    system = SYSTEM.replace("{kinds}", rules).replace("{keys}", ", ".join(f'"{kind}"' for kind in kinds))
    user = f"The problem:\n{problem}"
    if refused:
        told = {kind: {"text": text, "reason": reason} for kind, (text, reason) in refused.items()}
        user += "\n\n" + AGAIN.replace("{refused}", json.dumps(told, ensure_ascii=False, indent=1))
    return [{"role": "system", "content": system}, {"role": "user", "content": user}]


def response_format(mode: str, kinds: Sequence[str]) -> dict[str, Any]:
    """The request's `response_format`, as an entry to merge; empty for mode "none"."""
    if mode == "none":
        return {}
    if mode == "object":
        return {"response_format": {"type": "json_object"}}
    shape = {
        "type": "object",
        "properties": {kind: {"type": "string"} for kind in kinds},
        "required": list(kinds),
        "additionalProperties": False,
    }
    return {
        "response_format": {"type": "json_schema", "json_schema": {"name": "texts", "strict": True, "schema": shape}}
    }


# ---- reading a reply -------------------------------------------------------------------------------

_THOUGHT = re.compile(r"<think>.*?</think>", re.DOTALL)
# A backslash of a JSON string with what it escapes: "\\" is one unit, so that "\\frac" is not seen as "\frac"; and so
# is "\\\\", a row break written as JSON wants it.
_ESCAPE = re.compile(r"\\\\\\\\|\\(\\|\"|[A-Za-z]+|.)", re.DOTALL)
_COMMAND = re.compile(r"\\([A-Za-z]+)")
_LETTERS = re.compile(r"[A-Za-z]*")


def readings(content: str, original: str) -> Iterator[dict[str, Any]]:
    """JSON objects that `content` may stand for, likeliest first; none where there is no object in it.

    >>> [r["a"] for r in readings('{"a": "$\\\\frac12$"}', "$\\\\frac12$")]  # written "\\frac12": two readings
    ['$\\x0crac12$', '$\\\\frac12$']
    """
    content = _THOUGHT.sub("", content)
    mended = _ESCAPE.sub(lambda m: _mended(m, original), content)
    seen = []
    for text in (content, mended):
        value = _object(text)
        if value is None:
            continue
        for reading in (value, {k: _halved(v) for k, v in value.items()}):
            if reading not in seen:
                seen.append(reading)
                yield reading


def _mended(escape: re.Match[str], original: str) -> str:
    """A backslash that was left single, doubled: where the original has that command (or, for two backslashes, a row
    break there), or where JSON knows no such escape."""
    what, commands = escape[1], _COMMAND.findall(original)
    if what == "\\":
        following = _LETTERS.match(escape.string, escape.end())
        row_break = "\\\\" in original and following is not None and following[0] not in commands
        return escape[0] * 2 if row_break else escape[0]
    if what is None or what in ('"', "/") or (what[0] in "bfnrtu" and what not in commands):
        return escape[0]
    return "\\" + escape[0]


def _object(text: str) -> dict[str, Any] | None:
    """The first JSON object in `text` (there may be words or a code fence around it)."""
    decoder = json.JSONDecoder(strict=False)  # line breaks inside strings are let through
    for start in (m.start() for m in re.finditer(r"\{", text)):
        try:
            value, _ = decoder.raw_decode(text, start)
        except (json.JSONDecodeError, RecursionError):
            continue
        if isinstance(value, dict):
            return value
    return None


def _halved(value: Any) -> Any:
    return value.replace("\\\\", "\\") if isinstance(value, str) else value
