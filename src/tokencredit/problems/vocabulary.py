"""Closed word lists of the validator, beside the lexicon: what a frame may speak of, and what no synonym may replace.

OUR CHOICE throughout. Lists of what is harmless are closed (an unknown word is refused); lists of what is harmful
back them up where `novelty` lets unknown words in.
"""

from __future__ import annotations

from tokencredit.problems.text import stem
from tokencredit.problems.typos import KNOWN


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# ---- frames ----------------------------------------------------------------------------------------

# A frame opens with one of these: a time, a place, an occasion. "With", "for", "given", "by" open conditions.
OPENERS = _words(
    "during in on at while over near before after as inside outside beside under along around across throughout "
    "just late early amid behind above below somewhere following upon from"
)
# A frame that is a sentence of its own may also open with these.
SENTENCE_OPENERS = OPENERS | _words("this here seen shared heard posted told found written spotted overheard printed")
# Words without content of their own.
PLAIN = _words(
    "a an the of and to in on at by for from into over near under along around across through during while before "
    "after as is are was were be been being has have had its inside outside beside behind above below between among "
    "just late early amid somewhere following upon outside off out up down back soon ago away there this here that "
    "very quite rather almost nearly still yet"
)
# What frames are about: hours, weather, rooms, school, clubs, travel, meals, small acts.
SCENE = _words(
    "morning mornings afternoon afternoons evening evenings night noon midday midnight dawn dusk sunrise sunset day "
    "week weekend monday tuesday wednesday thursday friday saturday sunday spring summer autumn fall winter season "
    "january february march april may june july august september october november december holiday holidays vacation "
    "rain rains rainy raining sun sunny snow snowy wind windy storm stormy fog foggy cloud clouds cloudy sky weather "
    "drizzle breeze cold warm chilly cool mild bright gray grey "
    "classroom class school library hall corridor hallway room kitchen garden park street corner square market shop "
    "store cafe café bakery museum gallery theater theatre station platform bus train tram boat ferry plane road "
    "bridge river lake sea beach shore hill mountain forest village town city house home porch balcony attic office "
    "campus laboratory lab gym stadium court playground yard courtyard fountain bench table desk window door wall "
    "board blackboard whiteboard chalkboard notebook bulletin poster page "
    "club team meeting gathering lesson lecture seminar workshop session course tutorial recess break lunch breakfast "
    "dinner supper tea coffee cocoa soup bread pot cup walk stroll trip journey ride hike picnic visit drive errand "
    "festival parade party event ceremony concert contest competition olympiad tournament quiz exam test "
    "warm-up warmup warm wake practice study homework revision review training camp bell rings ringing ends begins "
    "starts sings sing hums hum glows falls falling passes passing waits wait waiting sits sitting walking riding "
    "sipping drinking eating cooking resting chatting talking listening reading writing sketching doodling watching "
    "cleaning tidying packing commuting traveling travelling gets "
    "teacher tutor student students pupil pupils classmate classmates friend friends neighbor neighbour family "
    "colleague guests visitors members old new quiet calm busy lively noisy crowded slow lazy long short little small "
    "large big local nearby usual weekly daily monthly annual regular casual friendly cheerful pleasant ordinary "
    "typical relaxed cozy cosy empty crisp fresh gentle light soft math maths mathematics science history music art "
    "came something someone somebody seen shared heard posted told found written spotted overheard printed aside "
    "background middle end beginning start edge outskirts clock lamp radio candle chalk birds dog music outdoors "
    "indoors downtown upstairs downstairs bridge town hall quietly calmly slowly briefly"
)
PROPER = SCENE | SENTENCE_OPENERS  # may stand with a capital
PLAIN_STEMS = frozenset(map(stem, PLAIN))
# Never in a frame, known or not: they set a condition, or speak of the scene itself.
CONDITIONS = _words(
    "replacement repetition repetitions overlap overlapping overlaps order orders alphabetical alphabetically "
    "chronological reverse reversed ascending descending sorted shuffled ignoring ignore neglect neglecting "
    "disregard disregarding excluding exclude excluded including include included counting count allowing allow "
    "allowed forbidden forbid provided assumed assumption condition conditions constraint restriction restricted "
    "required requirement fixed biased unbiased fair loaded weighted identical distinguishable indistinguishable "
    "labeled labelled unlabeled honest liar lies lying truthful knight knave vacuum frictionless friction gravity "
    "equilibrium steady static stationary rest binary hexadecimal octal modular roman reals rationals naturals "
    "complexes field ring group grid lattice space dimension dimensions isomorphism symmetry rotations reflections "
    "rotated reflected mixing mixed rounding rounded truncated exact approximately approximate leap broken missing "
    "extra additional unknown known true false correct incorrect right wrong result results final"
)
POINTING = _words(
    "he she it they we you i him her them us me his hers their theirs our your my these those such same everyone "
    "everybody nobody others former latter who whom whose which"
)

# ---- distractors -----------------------------------------------------------------------------------

# Labels under which a tag would read as an answer or an order.
LABELS = _words("ans sol soln key result results final correct truth gold target output solve reply value val res eq")
# Abbreviations that give a random string a meaning: "mod1000x1".
SHORT_MATHS = _words(
    "mod max min sum log exp sin cos tan cot sec csc arc gcd lcm det lim inf sup deg rad div abs avg var dim ker "
    "sqrt cbrt prod pow pct sq cu hr hrs min sec km cm mm kg mg lb oz ft yd ml mph kph"
)
SPELLED = frozenset(w for w in KNOWN if len(w) >= 3) | SHORT_MATHS

# ---- paraphrases -----------------------------------------------------------------------------------

# Never replaced by a word outside the phrase table: each has an opposite, or says who, when, where, which way.
FIXED = _words(
    "of to from in into on onto off out over under above below before after between among by with within without up "
    "down per inside outside across through along around behind beyond beside near next previous last toward towards "
    "away back until till since during while when whenever where as like than together apart separately alone "
    "already still yet now later earlier early late soon today tomorrow yesterday and because so also too again "
    "he she it they we you i his her hers their theirs its him them me us our your my these those this that others "
    "other another own who whom whose which what "
    "buy buys sell sells sold bought give gives gave given take takes took taken get gets got receive receives "
    "received lose loses lost win wins won gain gains gained spend spends spent earn earns earned pay pays paid cost "
    "costs borrow borrows borrowed lend lends lent owe owes owed return returns returned add adds remove removes "
    "removed put puts pour pours poured fill fills filled empty empties emptied use uses used eat eats ate eaten "
    "drink drinks drank drop drops dropped break breaks broke broken find finds found keep keeps kept donate donates "
    "donated share shares shared split splits cut cuts join joins joined leave leaves arrive arrives arrived enter "
    "enters entered exit exits start starts started stop stops stopped begin begins began end ends ended increase "
    "increases increased decrease decreases decreased grow grows grew shrink shrinks rise rises rose fall falls fell "
    "raise raises raised reduce reduces reduced climb climbs climbed descend descends come comes came go goes went "
    "open opens opened close closes closed pass passes passed fail fails failed replace replaces replaced save saves "
    "saved deposit deposits deposited withdraw withdraws withdrew load loads loaded unload unloads import export "
    "hire hires hired fire fires fired push pushes pull pulls send sends sent "
    "new old full fast slow high low short narrow thick thin heavy light hot cold top bottom front inner outer upper "
    "lower little extra additional big small large fair biased loaded labeled unlabeled adjacent disjoint opposite "
    "similar nonempty simple proper unique replacement repetition order ordered only just always sometimes often "
    "identical distinguishable indistinguishable north south east west northern southern eastern western forward "
    "backward older younger taller shorter faster slower heavier lighter cheaper longer wider further farther "
    "true false "
    "coin coins die dice card cards deck suit suits heart hearts spade spades diamond diamonds ace aces king kings "
    "queen queens jack jacks head heads tail tails vowel vowels consonant consonants letter letters alphabet "
    "word words rook rooks bishop bishops knight knights pawn pawns board leg legs wheel wheels boy boys girl girls "
    "man men woman women male female mother father son daughter brother brothers sister sisters child children "
    "twin twins parent parents red blue green yellow white black orange purple brown pink grey gray gold silver "
    "accept accepts reject rejects agree disagree alive dead day night winter summer"
)
# Behind an "a" these show that it names a number or a point: an article stands before a noun.
AFTER_A_NAME = _words("is are was were and or be equals divides such for in if then has must denotes")
# Verbs whose third person may lose its ending when a question is turned ("does she bake" -> "she bakes").
TURNED = _words(
    "have need earn make spend pay get sell buy eat use take save drink read run walk work drive own bake collect"
)
ACTS = {verb + "s": verb for verb in TURNED}
