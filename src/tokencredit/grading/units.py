r"""Units behind a number: split off, and compared where both answers carry one that we know.

A unit in \text{} is never mathematics and always splits off. A unit in plain letters splits off an answer only if the
gold is a plain number (else `5m` would equal 5, and 3n-2t would lose its t); a gold keeps its single letters.
"""

from __future__ import annotations

import re

_NAMES = {
    "mm": "mm millimeter millimetre",
    "cm": "cm centimeter centimetre",
    "m": "m meter metre",
    "km": "km kilometer kilometre",
    "in": "in inch inches",
    "ft": "ft foot feet",
    "yd": "yd yard",
    "mi": "mi mile",
    "g": "g gram",
    "kg": "kg kilogram",
    "lb": "lb lbs pound",
    "ms": "ms millisecond",
    "s": "s sec second",
    "min": "min minute",
    "h": "h hr hour",
    "day": "day",
    "week": "week",
    "month": "month",
    "year": "yr year",
    "mph": "mph",
    "kmh": "kmh kph",
    "cent": "cent ¢",
    "dollar": "dollar usd",
    "degree": "degree deg",
    "radian": "radian rad",
    "celsius": "celsius",
    "fahrenheit": "fahrenheit",
    "liter": "liter litre",
    "ml": "ml milliliter",
    "joule": "j joule",
    "newton": "n newton",
    "watt": "w watt",
    "volt": "v volt",
    "kelvin": "k kelvin",
    "pascal": "pa pascal",
    "hz": "hz hertz",
    "mb": "mb megabyte",
    "gb": "gb gigabyte",
}
_CANONICAL = {spelling: unit for unit, spellings in _NAMES.items() for spelling in spellings.split()}
_POWERS = {"square": "2", "squared": "2", "sq": "2", "cubic": "3", "cubed": "3", "cu": "3"}
_FILLER = {"unit", "per", "of", "the", "a", "exactly", "approximately", "total"}

_TEXT_UNIT = re.compile(r"((?:\\text\s*\{[^{}]*[A-Za-z¢][^{}]*\}|[\s/.^]|\\cdot|\{\s*-?[123]\s*\}|[123](?!\d))+)$")
_AFTER_NUMBER = re.compile(r"(?:[\d})\]]|\\pi|\\infty)$")
_WORDS = sorted((s for s in _CANONICAL if len(s) > 1), key=len, reverse=True)
_WORD = "(?:" + "|".join(map(re.escape, _WORDS)) + ")s?"
_MORE = r"apple|student|people|person|ball|coin|way|unit|point|dozen|item|book|car|digit|side|step|game|ticket|page|egg"
_PLAIN_UNIT = re.compile(
    rf"\s*(?:(?:square|cubic|sq\.?|cu\.?)\s+)?(?:{_WORD}|(?:{_MORE})s?)(?:\s*(?:/|per)\s*(?:{_WORD}|[smh]))?(?:\s*\^\s*\{{?[23]\}}?)?$",
    re.IGNORECASE,
)
_LETTER_UNIT = re.compile(r"\s*[mshgLJNWVKC](?:\s*/\s*[smh])?(?:\s*\^\s*\{?[23]\}?)?$")
_NUMERIC = re.compile(r"[\d\s.,+\-*/^(){}]|\\(?:frac|sqrt|pi|cdot|times|div|pm)(?![A-Za-z])")


def is_numeric(text: str) -> bool:
    """Whether the text is arithmetic of numbers, without a letter."""
    return bool(text) and not _NUMERIC.sub("", text)


def split_text_unit(text: str) -> tuple[str, str]:
    r"""(`text` without the unit in \text{} it ends in, that unit or "").

    >>> split_text_unit(r"15\text{ cm}^{2}")
    ('15', '\\text{ cm}^{2}')
    """
    match = _TEXT_UNIT.search(text)
    if not match or "\\text" not in match.group():
        return text, ""
    # what the pattern took of the number itself (a digit, a slash) goes back
    begin = match.start() + match.group().find("\\text")
    value = text[:begin].rstrip()
    return (value, text[begin:]) if _AFTER_NUMBER.search(value) else (text, "")


def split_plain_unit(text: str, letters: bool) -> tuple[str, str]:
    """(`text` without the plain-letter unit it ends in, that unit or ""); `letters` allows units such as m."""
    for pattern in (_PLAIN_UNIT, _LETTER_UNIT) if letters else (_PLAIN_UNIT,):
        match = pattern.search(text)
        if match and is_numeric(text[: match.start()]):
            return text[: match.start()].rstrip(), match.group()
    return text, ""


def units_differ(left: str, right: str) -> bool:
    """Whether both are known units, and different ones."""
    first, second = _parse(left), _parse(right)
    return first is not None and second is not None and first != second


def _parse(unit: str) -> tuple[tuple[str, str], ...] | None:
    """((unit, power), ...) of a unit text; None if it is empty or holds a word we do not know."""
    words = re.findall(r"[A-Za-z¢]+|-?\d", unit.replace("\\text", " ").replace("\\cdot", " "))
    parts: list[tuple[str, str]] = []
    power = "1"
    for word in words:
        low = word.lower()
        known = _CANONICAL.get(low) or _CANONICAL.get(low.removesuffix("s"))
        if word.lstrip("-").isdigit():
            if parts:
                parts[-1] = (parts[-1][0], word)
        elif low in _POWERS:
            if low.endswith("d") and parts:
                parts[-1] = (parts[-1][0], _POWERS[low])
            else:
                power = _POWERS[low]
        elif known or len(word) == 1:
            parts.append((known or word, power))
            power = "1"
        elif low.removesuffix("s") not in _FILLER:
            return None
    return tuple(parts) or None
