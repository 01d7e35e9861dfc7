"""The words the perturbation rules and their validator know. Protected groups may be neither altered nor introduced."""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


NUMBER_WORDS = _words(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred hundreds thousand "
    "thousands million millions billion dozen dozens half halves third thirds fourth fourths quarter quarters fifth "
    "fifths sixth seventh eighth ninth tenth tenths hundredth first second once twice thrice double doubles doubled "
    "doubling triple triples tripled tripling quadruple single pair pairs both couple percent percentage"
)
COMPARISON = frozenset("<>=≤≥≠≈≡≪≫∈⊂⊆")
LOGIC = _words(
    "not no never none neither nor cannot without unless if iff only except otherwise or either least most "
    "exactly precisely all any some every each more less fewer than same different distinct both but however "
    "always must can't don't doesn't isn't aren't won't didn't"
)
UNITS = _words(
    "mile miles kilometer kilometers kilometre kilometres km meter meters metre metres centimeter centimeters cm mm "
    "millimeter millimeters inch inches foot feet ft yard yards acre acres hectare hectares degree degrees radian "
    "radians second seconds minute minutes min hour hours hr hrs day days week weeks month months year years kg "
    "kilogram kilograms gram grams g mg pound pounds lb lbs ounce ounces oz ton tons liter liters litre litres ml "
    "gallon gallons pint pints quart quarts cup cups dollar dollars cent cents penny pennies dime dimes nickel nickels "
    "euro euros mph kph joule joules watt watts volt volts ampere amperes newton newtons kelvin celsius fahrenheit "
    "hertz pascal mol mole moles"
)
KEYWORDS = _words(
    "mean median mode average range integer integers prime primes composite even odd positive negative nonnegative "
    "nonzero real rational irrational complex natural whole number numbers digit digits sum sums difference "
    "differences product products quotient quotients remainder remainders divisor divisors factor factors multiple "
    "multiples divisible divides divide divided multiply multiplied add added subtract subtracted plus minus times "
    "square squares squared cube cubes cubed root roots power powers exponent base logarithm log ln sin cos tan "
    "largest smallest greatest maximum minimum maximal minimal maximize minimize largest-possible highest lowest "
    "bigger smaller larger greater total area areas perimeter volume length lengths width height radius radii "
    "diameter circumference angle angles triangle triangles circle circles rectangle rectangles polygon polygons "
    "quadrilateral parallelogram trapezoid rhombus hexagon pentagon octagon sphere cylinder cone pyramid tetrahedron "
    "hypotenuse diagonal diagonals side sides edge edges vertex vertices midpoint centroid incenter circumcenter "
    "orthocenter incircle circumcircle altitude altitudes bisector parallel perpendicular tangent collinear "
    "probability expected value values ratio ratios proportion fraction fractions decimal expression equation "
    "equations inequality function functions polynomial polynomials coefficient coefficients degree sequence "
    "sequences series arithmetic geometric term terms constant constants variable variables solution solutions "
    "solve domain codomain set sets subset subsets element elements permutation permutations combination combinations "
    "coprime relatively congruent modulo mod gcd lcm matrix determinant vector vectors derivative integral limit "
    "converges infinite finite increasing decreasing strictly consecutive respectively equal equals unequal ordered "
    "answer answers simplify simplified simplest form round rounded nearest lowest units ones tens many much long "
    "far old tall wide deep fast often speed rate distance time cost price profit interest discount weight age left "
    "remain remains remaining clockwise counterclockwise random randomly independent independently uniform "
    "uniformly inscribed circumscribed convex regular equilateral isosceles acute obtuse right graph line lines "
    "segment segments point points plane axis slope intercept origin coordinate coordinates symmetric reflection "
    "rotation translation mass force energy velocity acceleration temperature pressure density frequency wavelength "
    "charge current voltage luminosity"
)
# Short and yet safe to misspell.
MISSPELLABLE = _words("the")
PROTECTED = NUMBER_WORDS | LOGIC | UNITS | KEYWORDS
# Words that open sentences in problem texts, and may lose their capital behind a prefix.
STARTERS = _words(
    "a an the what which who how when where why find determine compute calculate evaluate let suppose assume given "
    "if there in on at for from with by to of as after before during while each every all any some one two three "
    "four five six seven eight nine ten consider define show prove it its he she they we you this that these those "
    "both no simplify solve express write convert convert factor expand estimate choose call denote starting "
    "your his her their our my many several another between under over since because when whenever once"
)
COMMON = STARTERS | _words(
    "note then next now also but and so however therefore thus hence here first second finally today yesterday "
    "points lines circles two-digit assume assuming knowing place sides cities people students children numbers "
    "integers positive real each triangle square rectangle circle regular equilateral right line point compare "
    "count draw mark pick select take use round solve list name enter state are is do does can will was were has "
    "have had would could should among according please remember recall initially originally together later "
    "meanwhile some most few half twice seen shared heard someone throughout near along inside outside across "
    "behind beside around until upon above below beyond somewhere just "
)
# Short words that a slip of one letter easily turns a word of a problem into.
SHORT_WORDS = _words(
    "angel angle bad bag ball ban band bar bat beast bed bell bend best bill boat bond bone bore born both bought "
    "bowl brought bud bug bull bus buy cake can cane cap cape car card care cart case cast cat cease coat code "
    "coin cold comb come cone cop cope cord core corn cost cot could count court crease cub cup cure cut dad dare "
    "dark dart data date day deal dean dear deed deep deer die dig doe dog door dos dose dot down draw drew drop "
    "dry dye east eight eleven even event ever every fact fail fair fall fame far farm fast fate feast feel feet "
    "fell felt fight file fill find fine fir fire firm fist five fog fond food fool foot for form four fro full "
    "fund fur gain game gate gave gift girl give glad goal goat gold gone good grade grew grid grow had hall hand "
    "hard harm has hat hate have head heal hear heat height held hell help her here hill him hire his hit hold "
    "hole home hope host hot hour huge hunt increase jam jar job joy key kid kind king kit land lane last late "
    "lead leaf lean lease least left lend lent less lest lift light like lime line link lion list live load loan "
    "lock long look lose loss lost lot love low luck made mail main make male mall many mark mate meal mean meat "
    "meet melt might mile milk mill mind mine miss mode moon more most move mud name near neck need nest never "
    "new news next nice night nine node noon nose note now odd off oil old once one open oral our oven over own "
    "pack page paid pain paint pair pale palm park part pass past path pay peak pear peel pen pet pick pie pig "
    "pile pill pin pine pink pint pipe place plain plan plane plant plate play plot plum plus point pool poor "
    "port pose post pot pour price prime print prize prof prune pull pump pure push put quiet quite race rack "
    "rail rain ran rank rare rate raw read real rear red rent rest rice rich ride right ring rise risk road rock "
    "role roll roof room root rope rose row rule run sad safe said sail sale salt same sand save saw say seat see "
    "seed seek seem seen self sell send sent set seven ship shoe shop shot show shut sick side sight sign silk "
    "sing sink site sits size skin slow snow soap sock soft soil sold sole some son song soon sort soul soup sour "
    "spot star stay step stop such suit sum sun sure swim tail take tale talk tall tank tape task team tear tee "
    "tell ten tent term test text than thee their them there these they thin thing think this tho those though "
    "thought three threw through throw thus thy tide tie tight tile till time tiny tip tire toe told toll tone "
    "took tool top tour town toy trail tree trial trim trip true tube tune turn twin two type unit use used van "
    "vary vast very vote wage wait wake walk wall want war ward warm was wash wave way weak wear week weight well "
    "went were west wet what when where whom wide wife wild will wind wine wing wins wire wise wish with wolf won "
    "wood word wore work world worn would yard year yes your zero "
)
# Left out when two texts are compared as paraphrases: they carry no condition, entity or order.
GLUE = _words("a an the is are was were be been being there then so does do did")
# Protected words that a frame may hold all the same ("on a rainy day", "near the old bridge").
FRAME_WORDS = _words("day week cup old long")
# Never in an irrelevant context (spec), nor in a frame.
BANNED_STEMS = ("question", "problem", "exercise", "consider")
# Never in a frame: they would turn it into a hint, an instruction, a condition or a fact to use.
HINTS = _words(
    "hint note notice recall remember observe assume assuming suppose supposing let given where such use using used "
    "therefore hence thus because since solution step steps formula theorem lemma rule method trick first check "
    "careful carefully think reason reasoning prove proof show find determine compute calculate consider imply "
    "implies means follows"
)
# Verbs and words that ask; `phrases.ASK` has the phrases.
ASKING = _words("find determine compute calculate evaluate")
