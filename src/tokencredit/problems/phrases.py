"""The phrase table of paraphrases: the rules write with it, and the validator accepts what it explains (`CLASSES`)."""

from __future__ import annotations

from dataclasses import dataclass

from tokencredit.problems import lexicon


@dataclass(frozen=True)
class Swap:
    """`source` may be written as any of `targets`; `before`/`after` are regular expressions that the text on
    either side of the phrase has to match (at its edge) for the rule to write it so."""

    source: str
    targets: tuple[str, ...]
    before: str = ""
    after: str = ""


_START = r"(?:^|[.?!:]\s*|\n\s*|,\s*(?:then|please)?\s*)$"  # imperative position
_OBJECT = r"\s+(?:the|all|a|an|how|\$|\\|its|every|each|exactly)"
_PER = r"(?:\$[\d.,]+|\b(?:times|hours|minutes|pages|cups|dollars|cents|pounds|eggs|bottles|days))\s+$"
_NOUN = r"(?:number|integer|triangle|rectangle|polygon|circle|polynomial|quadrilateral|parallelogram|sphere|cone)"

SWAPS: tuple[Swap, ...] = (
    Swap("find", ("determine",), before=_START),
    Swap("find", ("compute",), before=_START, after=r"\s+(?:the\b|\$|\\)"),
    Swap("compute", ("calculate", "determine", "find"), before=_START),
    Swap("calculate", ("compute", "determine", "find"), before=_START),
    Swap("determine", ("find",), before=_START, after=_OBJECT),
    Swap("evaluate", ("compute", "calculate"), before=_START),
    Swap("find", ("determine",), before=r"\b(?:to|can you|must|and)\s+$"),
    Swap("different", ("distinct",), after=r"\s+[a-z]+"),
    Swap("distinct", ("different",), after=r"\s+[a-z]+"),
    Swap("such that", ("for which",), before=r"(?<!\bis)(?<!\bare)(?<!\bbe)(?<!\bexist)(?<!\bexists)\s+$"),
    Swap("suppose that", ("assume that",)),
    Swap("assume that", ("suppose that",)),
    Swap("suppose", ("assume",), before=_START),
    Swap("assume", ("suppose",), before=_START),
    Swap("given that", ("knowing that",), before=_START),
    Swap("with", ("that has",), before=rf"\b(?:a|an|one|the|each|every)(?:\s+[a-z]+)?\s+{_NOUN}\s+$"),
    Swap("with", ("that has",), before=r"\b(?:smallest|largest|least|greatest)(?:\s+[a-z]+)*\s+(?:number|integer)\s+$"),
    Swap("with", ("that have",), before=rf"\b{_NOUN}s\s+$"),
    Swap("can be written", ("can be expressed",)),
    Swap("can be expressed", ("can be written",)),
    Swap("be written", ("be expressed",), after=r"\s+(?:as|in)\b"),
    Swap("be expressed", ("be written",), after=r"\s+(?:as|in)\b"),
    Swap("for each", ("for every",), after=r"\s+(?!of\b|other\b)[a-z$]"),
    Swap("for every", ("for each",)),
    Swap("in each", ("in every",), after=r"\s+(?!of\b|other\b|case\b)[a-z]"),
    Swap("on each", ("on every",), after=r"\s+(?!of\b|other\b)[a-z]"),
    Swap("each day", ("every day",)),
    Swap("each", ("every",), before=r"(?:^|[.?!]\s+)$", after=r"\s+(?!of\b|other\b)[a-z]+"),
    Swap("each", ("every",), before=r"\b(?:from|of|to|with|by)\s+$", after=r"\s+(?!of\b|other\b)[a-z]{4,}"),
    Swap("every", ("each",), after=r"\s+(?!other\b|one\b|few\b|time\b|single\b|second\b|third\b)[a-z]+"),
    Swap("each time", ("every time",)),
    Swap("there exists", ("there is",)),
    Swap("there exist", ("there are",)),
    Swap("let", ("suppose",), before=_START, after=r"\s+(?:there\s+be|it\s+be)\b"),
    Swap("denotes", ("stands for", "represents"), before=r"[$)A-Za-z]\s*$"),
    Swap("denote", ("represent", "stand for"), before=r"[$)A-Z]\s*$", after=r"\s+(?:the|a|an)\b"),
    Swap("represents", ("stands for",), before=r"[$)]\s*$"),
    Swap("is called", ("is said to be",), after=r"\s+(?:an?\s+)?[*_`'\"“$\\a-z]"),
    Swap("are called", ("are said to be",)),
    Swap("consists of", ("is made up of",)),
    Swap("consist of", ("are made up of",)),
    Swap("consisting of", ("made up of",)),
    Swap("passes through", ("goes through",)),
    Swap("pass through", ("go through",)),
    Swap("passing through", ("going through",)),
    Swap("intersects", ("meets",)),
    Swap("meets", ("intersects",), before=r"(?:\$|\bline|\bcircle|\bcircumcircle|\bbisector)\s*$"),
    Swap("intersect", ("meet",)),
    Swap("satisfies", ("fulfills",)),
    Swap("satisfy", ("fulfill",)),
    Swap("satisfying", ("fulfilling",)),
    Swap("at random", ("randomly",), before=r"\b(?:chosen|selected|picked|drawn)(?:\s+uniformly)?\s+$"),
    Swap("chosen", ("selected",)),
    Swap("chooses", ("selects",)),
    Swap("choose", ("select",)),
    Swap("selected", ("chosen",)),
    Swap("selects", ("chooses",)),
    Swap("select", ("choose",)),
    Swap("picks", ("chooses",), after=r"\s+(?:a|an|one|two|three|some|any|the)\b"),
    Swap("in order to", ("so as to",)),
    Swap("begins", ("starts",)),
    Swap("begin", ("start",)),
    Swap("began", ("started",)),
    Swap("beginning", ("starting",), after=r"\s+(?:with|at|from|in)\b"),
    Swap("starts", ("begins",), after=r"\s+(?:with|at|from|in|on|to|by|out)\b"),
    Swap("started", ("began",), after=r"\s+(?:with|at|from|in|on|to|by|out)\b"),
    Swap("starting", ("beginning",), after=r"\s+(?:with|at|from|in|on)\b"),
    Swap("big", ("large",)),
    Swap("large", ("big",), after=r"\s+[a-z]"),
    Swap("buys", ("purchases",)),
    Swap("buy", ("purchase",), before=r"(?i)\b(?:to|can|will|they|must|could|would|you|we|I)\s+$"),
    Swap("bought", ("purchased",)),
    Swap("purchases", ("buys",), after=r"\s+(?:a|an|the|some|\$|\d|one|two|three|four|five|six|ten)"),
    Swap("purchased", ("bought",), before=r"\b(?:he|she|they|[A-Z][a-z]+)\s+$"),
    Swap("needs", ("requires",), after=r"\s+(?!to\b)[\da-z$]"),
    Swap("requires", ("needs",), after=r"\s+(?:a|an|the|\d|\$)"),
    Swap("gets", ("receives",), after=r"\s+(?:a|an|\$|\d|one|two|three|four|five|six|ten)\b"),
    Swap("receives", ("gets",), after=r"\s+(?:a|an|\$|\d|one|two|three|four|five|six|ten)"),
    Swap("received", ("got",), before=r"\b(?:he|she|they|[A-Z][a-z]+)\s+$"),
    Swap("got", ("received",), after=r"\s+(?:a|an|\$|\d)"),
    Swap("also", ("additionally",), after=r"\s+[a-z]"),
    Swap("additionally", ("also",)),
    Swap("in addition", ("besides",), before=r"(?:^|[.?!]\s*)$", after=r","),
    Swap("finish", ("complete",), after=r"\s+(?:the|a|his|her|their|all|it)\b"),
    Swap("finishes", ("completes",), after=r"\s+(?:the|a|his|her|their|all|it)\b"),
    Swap("complete", ("finish",), before=r"\b(?:to|will|can)\s+$", after=r"\s+(?:the|a|his|her|their|all|it)\b"),
    Swap("entire", ("whole",)),
    Swap("lies on", ("is located on",)),
    Swap("lie on", ("are located on",)),
    Swap("lies in", ("is located in",)),
    Swap("lie in", ("are located in",)),
    Swap("is located", ("is situated",)),
    Swap("are located", ("are situated",)),
    Swap("obtain", ("get",), before=r"[a-z,]\s+$"),
    Swap("obtained", ("found",), before=r"\b(?:be|is|are|was|were)\s+$"),
    Swap("in terms of", ("as a function of",)),
    Swap("as shown", ("as depicted",)),
    Swap("shown below", ("depicted below",)),
    Swap("is equal to", ("equals",)),
    Swap("are equal to", ("equal",)),
    Swap("equals", ("is equal to",)),
    Swap("has to", ("must",)),
    Swap("needs to", ("has to", "must")),
    Swap("must", ("has to",), before=r"\b(?:it|he|she|which)\s+$"),
    Swap("is able to", ("can",)),
    Swap("are able to", ("can",)),
    Swap("for which", ("such that",), after=r"\s+(?:the\b|there\b|\$)"),
    Swap("builds", ("constructs",)),
    Swap("built", ("constructed",)),
    Swap("makes", ("produces",), after=r"\s+(?:\d|\$\d)"),
    Swap("earns", ("makes",), after=r"\s+(?:\d|\$\d)"),
    Swap("gives", ("hands",), after=r"\s+(?:him|her|them|his|[A-Z][a-z]+|\d+ [a-z]+ to)\b"),
    Swap("gave", ("handed",), after=r"\s+(?:him|her|them|his|[A-Z][a-z]+|\d+ [a-z]+ to)\b"),
    Swap("collected", ("gathered",)),
    Swap("collects", ("gathers",)),
    Swap("throughout", ("all through",)),
    Swap("whenever", ("every time",)),
    Swap("located", ("situated",), before=r"\b(?:is|are)\s+$"),
    Swap("show that", ("prove that",), before=_START),
    Swap("prove that", ("show that",), before=_START),
    Swap("owns", ("has", "possesses"), after=r"\s+(?:a|an|the|\d|\$|some|one|two|three|four|five|six)"),
    Swap("has", ("owns",), before=r"(?:^|[.?!]\s+|,\s+)[A-Z][a-z]+\s+$", after=r"\s+(?:\d+|[$]\d+[$])\s+[a-z]+\."),
    Swap("altogether", ("in total", "in all"), after=r"\s*[?.,]"),
    Swap("in total", ("altogether", "in all"), after=r"\s*[?.,]"),
    Swap("in all", ("in total", "altogether"), after=r"\s*[?.,]"),
    Swap("wants to", ("would like to",)),
    Swap("decides to", ("chooses to",)),
    Swap("decided to", ("chose to",)),
    Swap("wanted to", ("wished to",)),
    Swap("initially", ("originally", "at first"), before=r"[a-z,.]\s+$"),
    Swap("originally", ("initially", "at first"), before=r"[a-z,.]\s+$"),
    Swap("currently", ("at present",)),
    Swap("the rest of the", ("the remaining",)),
    Swap("per hour", ("an hour",), before=_PER),
    Swap("per day", ("a day", "each day"), before=_PER),
    Swap("per week", ("a week", "each week"), before=_PER),
    Swap("per month", ("a month", "each month"), before=_PER),
    Swap("per year", ("a year", "each year"), before=_PER),
    Swap("every day", ("each day",)),
    Swap("every week", ("each week",)),
    Swap("every month", ("each month",)),
    Swap("every year", ("each year",)),
    Swap("because", ("since",), before=r"[a-z,]\s+$", after=r"\s+(?!of\b)"),
    Swap("puts", ("places",), after=r"\s+(?:a|an|the|his|her|their|it|them|\d|\$)"),
    Swap("eats", ("consumes",)),
    Swap("ate", ("consumed",)),
    Swap("lives in", ("resides in",)),
    Swap("another", ("a further",), after=r"\s+[$]?\d"),
    Swap("all of the", ("all the",)),
    Swap("sees", ("spots",), after=r"\s+(?:a|an|\d|one|two|three|four|five|six|seven|eight|nine|ten)\b"),
    Swap("saw", ("spotted",), after=r"\s+(?:a|an|\d|one|two|three|four|five|six|seven|eight|nine|ten)\b"),
    Swap("gathers", ("collects",)),
    Swap("gathered", ("collected",)),
    Swap("wishes to", ("wants to",)),
    Swap("gives away", ("hands out",)),
    Swap("doubles", ("is doubled",), before=r"\bnumber\s+$"),
    Swap("triples", ("is tripled",), before=r"\bnumber\s+$"),
)
# Sentences that may be turned: (pattern over the whole sentence, its new form, the new closing mark). A group
# named `third` is a verb that gets its third-person ending.
_VERB = (
    r"(?:do|does|did|can|could|will|would|should|must|is|was|has|had|may|might|shall|there"
    r"|(?:are|were)\s+(?:they|we|you|the|[A-Z]))"
)
_ACT = r"have|need|earn|make|spend|pay|get|sell|buy|eat|use|take|save|drink|read|run|walk|work|drive|own|bake|collect"
_WHO = r"he|she|it|they|you|we|I|[A-Z][a-z]+"
_WHAT = rf"(?:(?!\b{_VERB}\b)[^?])"
TURNS: tuple[tuple[str, str, str], ...] = (
    (r"(?i:what is|what's|what are) (?P<rest>(?:the |\$|\\\(|\d)[^?]+)\?", "Find {rest}", "."),
    (r"(?i:find|determine|compute|calculate) (?P<rest>(?:the |\$|\\\()[^.?;]+)\.", "What is {rest}", "?"),
    (rf"(?i:how many) (?P<what>{_WHAT}*?)\bare there\b(?P<rest>[^?]*)\?", "Find how many {what}there are{rest}", "."),
    (rf"(?i:how many) (?P<rest>{_WHAT}+)\?", "Find how many {rest}", "."),
    (
        rf"(?i:how) (?P<what>(?:many|much)\b{_WHAT}*) does (?P<who>{_WHO}) (?P<third>{_ACT})\b(?P<rest>[^?]*)\?",
        "Find how {what} {who} {third}{rest}",
        ".",
    ),
    (
        rf"(?i:how) (?P<what>(?:many|much)\b{_WHAT}*) do (?P<who>they|you|we|I) (?P<verb>{_ACT})\b(?P<rest>[^?]*)\?",
        "Find how {what} {who} {verb}{rest}",
        ".",
    ),
    (rf"(?i:how) old is (?P<who>{_WHO})(?P<rest>(?: now)?)\?", "Find how old {who} is{rest}", "."),
    (
        r"Let (?P<what>\$[^$,]+\$|\\\([^,]+?\\\)) be (?P<rest>(?:an?|the) [^.?]+)\.",
        "Suppose that {what} is {rest}",
        ".",
    ),
)
ASK = ("find", "determine", "compute", "calculate", "evaluate", "what is", "what are", "what's")
# Phrases that are one to the validator, beside those of SWAPS.
SAME: tuple[tuple[str, ...], ...] = (
    ASK,
    *((f"how {q}", f"find how {q}", f"determine how {q}") for q in ("many", "much", "old")),
    ("there are", "are there", "there is", "is there"),
    *((verb, f"{verb}s") for verb in ("earn", "make", "get", "buy", "need", "eat", "own")),
    ("has", "have"),
    ("has to", "have to"),
    ("needs to", "need to"),
    ("let", "suppose that"),
)


def _classes() -> dict[tuple[str, ...], str]:
    """Phrase (lower-case words) -> name of its class; phrases joined by any swap share one."""
    parent: dict[str, str] = {}

    def top(phrase: str) -> str:
        parent.setdefault(phrase, phrase)
        while parent[phrase] != phrase:
            phrase = parent[phrase]
        return phrase

    for swap in SWAPS:
        for target in swap.targets:
            parent[top(target)] = top(swap.source)
    for group in SAME:
        for phrase in group[1:]:
            parent[top(phrase)] = top(group[0])
    return {tuple(phrase.split()): top(phrase) for phrase in list(parent)}


CLASSES = _classes()
LONGEST_PHRASE = max(len(phrase) for phrase in CLASSES)
# Classes one of whose phrases holds a protected word ("different", "has to" ~ "must"): frozen as a whole.
FROZEN_CLASSES = frozenset(name for phrase, name in CLASSES.items() if lexicon.PROTECTED & set(phrase))
