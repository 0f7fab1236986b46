"""Words as COCO's caption evaluation has them: the conventions of Stanford's PTBTokenizer 3.4.1, as patterns.

The tokens it makes are those of the Penn Treebank, with its own ideas about abbreviations, addresses and emoticons.
The patterns describe what it does, oddities included: that "co.a" is two words and "end.The" is one is not a slip of
ours. Left out is all that changes no word, such as whether a full stop ends the sentence.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import methodcaller


def code_points(ranges: str) -> frozenset[str]:
    """The characters of "00a1 00a6-00a9": hexadecimal code points and ranges of them."""
    pairs = [(edges[0], edges[-1]) for edges in (item.split("-") for item in ranges.split())]
    return frozenset(chr(code) for first, last in pairs for code in range(int(first, 16), int(last, 16) + 1))


# Letters and digits that Unicode has got since 6.2, the version the original was built with: no letters there.
YOUNG = code_points(
    "037f-0383 0528-0530 0560 0588 05eb-05ef 085f-088f 08a1 08ad-08c9 0978 0980 09fc 0af2-0af9 0c34 0c5a-0c5f 0c80 "
    "0cd7-0cdd 0d04 0d50-0d5f 0de0-0df1 0e85-0e86 0e89 0e8b-0e8c 0e8e-0e93 0e98 0ea0 0ea8-0ea9 0eac 13f5-13ff "
    "16f1-16ff 170d 1716-171f 1878-187f 191d-191f 19ac-19c0 19c8-19cf 1b4c-1b4f 1c80-1cbf 1cf2-1cf3 1cfa-1cff 2c2f "
    "2c5f 312e-3130 31bb-31bf 4db6-4dbf 9fcd-9fff a698-a69d a78f a794-a79f a7ab-a7f7 a8fd-a8fe a9e0-a9ff aa7e-aa7f "
    "ab2f-abbf"
)
# Letters of 6.2 that have since been reclassified as marks.
FORMERLY_LETTERS = code_points("1885-1886")
# Accents and vowel signs, which continue a word or make one: soft hyphen, combining marks of some scripts.
MARKS = code_points(
    "00ad 02c2-02c5 02d2-02df 02e5-02eb 02ed 02ef-036f 0375 0378-0379 0384-0385 03f6 0483-0487 055a-055f 0591-05bd "
    "05bf 05c1-05c2 05c4-05c5 05c7 0615-061a 064b-065e 0670 06d6-06e4 06e7-06ed 06fd-06fe 070f 0711 0730-074c "
    "07a6-07b0 07eb-07f3 0900-0903 093c 093e-094e 0951-0955 0962-0963 0981-0983 09bc 09be-09c4 09c7-09c8 09cb-09cd "
    "09d7 09e2-09e3 0a01-0a03 0a3c 0a3e-0a4f 0a81-0a83 0abc 0abe-0acf 0b82 0bbe-0bc2 0bc6-0bc8 0bca-0bcd 0c01-0c03 "
    "0c3e-0c56 0d3e-0d44 0d46-0d48 0e31 0e34-0e3a 0e47-0e4e 0eb1 0eb4-0ebc 0ec8-0ecd"
)
# Signs that are a token each. Any other character that no pattern mentions is dropped.
SIGNS = code_points(
    "0025 00a1 00a6-00a9 00ac 00ae-00b1 00b4 00b6-00b8 00bf 00d7 00f7 037e 0387 0589 05be 05c0 05c3 05c6 05f3-05f4 "
    "0600-0603 0606-060a 060c 0614 061b 061e-061f 066a 066d 06d4 0700-070d 07f6-07f8 0964-0965 0e4f 1fbd 2016-2017 "
    "2020-2023 2030-2038 203b 203e-2042 2044 207a-207e 208a-208e 2100-2101 2103-2106 2108-2109 2114 2116-2118 "
    "211e-2123 2125 2127 2129 212e 213a-213b 2140-2144 214a-214d 214f 2190-2bff 3001-3002 3012 30fb ff01-ff0f "
    "ff1a-ff20 ff3b-ff40 ff5b-ff65"
)
LAST_OF_THE_BASIC_PLANE = "\uffff"  # the original reads 16-bit units: characters beyond are halves it cannot place


def is_letter(character: str) -> bool:
    if character > LAST_OF_THE_BASIC_PLANE or character in YOUNG:
        return False
    return unicodedata.category(character)[0] == "L" or character in FORMERLY_LETTERS


def is_digit(character: str) -> bool:
    if character > LAST_OF_THE_BASIC_PLANE or character in YOUNG:
        return False
    return unicodedata.category(character) == "Nd" or "\u07c0" <= character <= "\u07c9"


CATEGORIES: dict[str, Callable[[str], bool]] = {
    "letter": is_letter,
    "digit": is_digit,
    "mark": MARKS.__contains__,
    "sign": SIGNS.__contains__,
}

NOT_IN_URLS = ' \t\n\f\r"<>|'

FRAGMENTS = {
    # blanks; a line's end is the only line break that a scanner ever sees
    "blank": "[ \t\u00a0\u2000-\u200a\u3000]",
    "gap": "({blank}|\n)",
    # words
    "L": "([{letter}{mark}]|&[aeiouAEIOU](acute|grave|uml);)",
    "X": "({L}|{digit})",
    "word": r"{L}{X}*([.!?]{L}{X}*)*",
    "thing": (
        "([dDoOlL]{any_apostrophe}[{letter}{digit}])?[{letter}{digit}]+"
        "([_\\-\u058a\u2010\u2011]([dDoOlL]{any_apostrophe}[{letter}{digit}])?[{letter}{digit}]+)*"
    ),
    "hyphenated": "[A-Za-z0-9][A-Za-z0-9.,\u00ad]*(\\-([A-Za-z0-9\u00ad]+|{acronym}\\.))+",
    "slashed": r"[A-Za-z0-9]+(\-[A-Za-z]+){0,2}(\\?/[A-Za-z0-9]+(\-[A-Za-z]+){0,2}){1,2}",
    "initials_joined": "[A-Z]+(([+&]|&amp;)[A-Z]+)+",
    # apostrophes and contractions
    "apostrophe": "(['\u0092\u2019]|&apos;)",
    "any_apostrophe": "({apostrophe}|[`\u0091\u2018\u201b])",
    "auxiliary": "{apostrophe}([msdMSD]|re|ve|ll)",
    "not": "n{any_apostrophe}t",
    "before_not": "[A-Za-z\u00ad]*[A-MO-Za-mo-z]\u00ad*",
    "with_apostrophe": (
        "{apostrophe}n{apostrophe}?|{apostrophe}(em|till?|[2-9]0s)|[lLdDjJ]{apostrophe}|(dunkin|somethin|ol){apostrophe}"
        "|{apostrophe}cause|c'mon|cont'd\\.?|nor'easter|ev'ry|li'l|e'er|nat'l|s'mores|o{any_apostrophe}o"
        "|[A-HJ-XZn]{any_apostrophe}{letter}{letter}+"
        "|{letter}+[aeiouyAEIOUY]{any_apostrophe}[aeiouA-Z]{letter}*"
        "|cap{apostrophe}n|c{apostrophe}est"
    ),
    # numbers
    "number": "[\\-+]?({digit}*([.:,\u00ad\u066b\u066c]{digit}+)+|{digit}+)",
    "small_number": "[\u207a\u207b\u208a\u208b]?([\u2070\u00b9\u00b2\u00b3\u2074-\u2079]+|[\u2080-\u2089]+)",
    "date": r"{digit}{1,2}[\-/]{digit}{1,2}[\-/]{digit}{2,4}",
    "fraction": "({digit}{1,4}[\\- \u00a0])?{digit}{1,4}(\\\\?/|\u2044){digit}{1,4}",
    "phone": (
        "(\\([0-9]{2,3}\\)[ \u00a0]?|(\\+\\+?)?([0-9]{2,4}[\\- \u00a0])?[0-9]{2,4}[\\- \u00a0])"
        "[0-9]{3,4}[\\- \u00a0]?[0-9]{3,5}"
        "|((\\+\\+?)?[0-9]{2,4}\\.)?[0-9]{2,4}\\.[0-9]{3,4}\\.[0-9]{3,5}"
    ),
    # abbreviations; letters in [ ] must have this case
    "acronym": r"([A-Za-z](\.[A-Za-z])+|{state_acronym})",
    "letter_or_acronym": r"([A-Za-z](\.[A-Za-z])*|{state_acronym})",
    "state_acronym": r"((canada|sino|korean|eu|japan|non)\-u\.s|u\.s\.\-(u\.k|u\.s\.s\.r))",
    "may_end_a_sentence": (
        "([A]rk|[A]z|[D]el|[I]ll|[L]a|[M]ass|[M]iss|[O]re|[P]a|[T]ex|[W]ash"  # states that are also words
        "|ala?|ariz|calif|colo|conn|ct|dak|fla|ga|ind|kans?|ky|md|mich|minn|mo|mont|neb|nev|okla|penn|tenn|va|vt|wisc?"
        "|wyo|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec|mon|tue|tues|wed|thu|thurs|fri"
        "|assn|bancorp|bhd|bros|co|corp|cos|inc|intl|ltd|plc|p?pt[ey]s?|sys|univ"
        "|bldg|blvd|rd|rt|sq|esq|est|etc|ext|jr|seq|sr|tel|(ed|ph)\\.d)\\."
    ),
    "ends_no_sentence": (
        "(adj|adm|adv|alex|assoc|asst|attys?|ave|brig|capt|cf|cie|cmdr|col|comdr|cpl|dept|det|drs?|elec|ens|ft|gen"
        "|govs?|hon|insp|invt|jos|lieut|lt|maj|messrs|m[ft]g|[M]iss|mlle|mme|mr|mrs|ms|msgr|mt|natl|pfc|ph|pres|profs?"
        "|pvt|reps?|rev|sens?|sfc|sgt|spc|ste?|supts?|treas|vs|wm|a\\.k\\.a)\\."
    ),
    "starts_a_sentence": (
        "([A]|[A]bout|[A]ccording|[A]dditionally|[A]fter|[A]n|[A]s|[A]t|[B]ut|[E]arlier|[H]e|[H]er|[H]ere|[H]owever|[I]f"
        "|[I]n|[I]t|[L]ast|[M]any|[M]ore|[M]r\\.|[M]s\\.|[N]ow|[O]nce|[O]ne|[O]ther|[O]ur|[S]he|[S]ince|[S]o|[S]ome"
        "|[S]uch|[T]hat|[T]he|[T]heir|[T]hen|[T]here|[T]hese|[T]hey|[T]his|[W]e|[W]hat|[W]hen|[W]hile|[Y]et|[Y]ou|{tag})"
    ),
    "before_a_number": r"(art|bldg|ca|figs?|nos?|op|pp|prop)\.",
    # the web
    "name": r"[A-Za-z][A-Za-z0-9_:.\-]*",
    "tag": ("<([!?][A-Za-z\\-][^>\r\n]*|{name}([ ]+{name}([ ]*=[ ]*('[^']*'|\"[^\"]*\"))?)*[ ]*/?|/{name})[ ]*>"),
    "url": f"https?://[^{NOT_IN_URLS}()\\{{\\}}]+[^{NOT_IN_URLS}.!?()\\{{\\}},\\-]",
    "likely_url": (
        f"(www\\.([^{NOT_IN_URLS}.!?()\\{{\\}},]+\\.)+[a-zA-Z]{{2,4}}"
        f"|([^{NOT_IN_URLS}`'!()\\{{\\}}$,-_]+\\.)+(com|net|org|edu))"
        f"(/[^{NOT_IN_URLS}()]+[^{NOT_IN_URLS}.!?()\\{{\\}},\\-])?"
    ),
    "email": (
        f"(&lt;|<)?[a-zA-Z0-9][^{NOT_IN_URLS}()\u00a0\\{{\\}}]*@"
        f"([^{NOT_IN_URLS}()\\{{\\}}.\u00a0]+\\.)*[^{NOT_IN_URLS}()\\{{\\}}.\u00a0]+(&gt;|>)?"
    ),
    "file_name": (
        r"{X}+(\.{X}+)*\.(bat|bmp|c|class|cgi|cpp|dll|doc|docx|exe|gif|gz|h|htm|html|jar|java|jpeg|jpg|mov|mp3|pdf|php"
        "|pl|png|ppt|ps|py|sql|tar|txt|wav|x|xml|zip)"
    ),
    # faces
    "smiley": r"[<>]?[:;=][\-o*']?[()DPdpO\\\{@|\[\]]",
    "face": (
        r"[\^x=~<>]\.\[\^x=[^<]*<>\]|[\-\^x=~<>']_[\-\^x=~<>']"
        r"|\([\-\^x=~<>'][_.]?[\-\^x=~<>']\)|\([\^x=~<>']\-[\^x=~<>'`]\)"
    ),
    # punctuation
    "inner": "[,;:\u3001]",
    "quote": "[`\u0091-\u0094\u2018-\u201f\u2039\u203a\u00ab\u00bb]",
}

CURRENCIES = {"\u00a2": "cents", "\u00a3": "#", "\u00a4": "$", "\u0080": "$", "\u20a0": "$", "\u20ac": "$"}
FRACTIONS = {"\u00bc": "1/4", "\u00bd": "1/2", "\u00be": "3/4", "\u2153": "1/3", "\u2154": "2/3"}
BRACKETS = {"(": "-LRB-", ")": "-RRB-", "[": "-LSB-", "]": "-RSB-", "{": "-LCB-", "}": "-RCB-"}
QUOTES = str.maketrans(
    dict.fromkeys("\u0091\u2018\u201b\u2039", "`")
    | dict.fromkeys("\u0092\u2019\u203a", "'")
    | dict.fromkeys("\u0093\u201c\u00ab", "``")
    | dict.fromkeys('"\u0094\u201d\u00bb', "''")
)

AUXILIARY_AT_END = re.compile(r"(?:['\x92\u2019]|&apos;)\w+\Z", re.IGNORECASE)
NOT_AT_END = re.compile(r"n(?:['\x92\u2019`\x91\u2018\u201b]|&apos;)t\Z", re.IGNORECASE)


def without_soft_hyphens(text: str) -> str:
    return text.replace("\u00ad", "") or "-"


def with_plain_quotes(text: str) -> str:
    return text.replace("&apos;", "'").replace("&quot;", "''").translate(QUOTES)


with_plain_ampersand = partial(re.compile("&amp;", re.IGNORECASE).sub, "&")
with_named_brackets = methodcaller("translate", str.maketrans({"(": "-LRB-", ")": "-RRB-"}))
with_blanks_kept = methodcaller("replace", " ", "\u00a0")  # so that splitting at blanks leaves a token whole


def always(token: str) -> Callable[[str], str]:
    return lambda text: token


def all_but_last(count: int) -> Callable[[str], int]:
    return lambda text: len(text) - count


def before(ending: re.Pattern[str]) -> Callable[[str], int]:
    """The characters before an ending that the rule's pattern has made sure of."""
    return lambda text: len(text) - len(ending.search(text)[0])  # type: ignore[index]


@dataclass(frozen=True)
class Rule:
    """A pattern, how many of the matched characters the token takes (the rest is only looked at), and its spelling."""

    pattern: str
    spelling: Callable[[str], str] = str
    length: Callable[[str], int] = len


RULES = (
    Rule("cannot|'twas", length=all_but_last(3)),
    Rule("gonna|gotta|lemme|gimme|wanna|'tis", length=all_but_last(2)),
    Rule(r"(pro|anti)\-"),
    Rule("{tag}", with_blanks_kept),
    Rule("&(MD|mdash|ndash);|[\u0096\u0097\u2013-\u2015]", always("--")),
    Rule("&(HT|TL|UR|LR|QC|QL|QR|odq|cdq|#[0-9]+);"),
    Rule("{word}{auxiliary}", without_soft_hyphens, before(AUXILIARY_AT_END)),
    Rule("{before_not}{not}", without_soft_hyphens, before(NOT_AT_END)),
    Rule("{word}", without_soft_hyphens),
    Rule("{with_apostrophe}"),
    Rule("y{apostrophe}{letter}", length=all_but_last(1)),
    Rule("{url}|{likely_url}"),
    Rule("{email}"),
    Rule("@[A-Za-z_][A-Za-z_0-9]*|#{L}+"),
    Rule("({auxiliary}|{not})[^A-Za-z]", with_plain_quotes, all_but_last(1)),
    Rule("{date}"),
    Rule("{number}", without_soft_hyphens),
    Rule("{small_number}"),
    Rule("{fraction}", with_blanks_kept),
    *(Rule(sign, always(name)) for sign, name in FRACTIONS.items()),
    Rule("[\u2155-\u215e]"),
    Rule("{before_a_number}{gap}?{digit}", length=lambda text: text.index(".") + 1),
    Rule("{may_end_a_sentence}[^][^]", length=all_but_last(2)),
    Rule("{may_end_a_sentence}|{ends_no_sentence}"),
    # "Henry I. The king": a lone letter is taken for an initial unless a sentence begins behind it, or the caption ends
    Rule("[A-Za-z]\\.({gap}+{starts_a_sentence}{gap}|{blank}*\n)", length=lambda text: 1),
    Rule(r"{letter_or_acronym}\."),
    Rule("{letter_or_acronym}{gap}", length=all_but_last(1)),
    Rule(r"{word}\.{inner}", without_soft_hyphens, all_but_last(1)),
    Rule(r"{initials_joined}\.{inner}", with_plain_ampersand, all_but_last(1)),
    Rule(r"{hyphenated}\.{inner}", without_soft_hyphens, all_but_last(1)),
    Rule(r"{thing}\.{inner}", length=all_but_last(1)),
    Rule("{phone}", lambda text: with_named_brackets(with_blanks_kept(text))),
    Rule('("|&quot;)[A-Za-z0-9$]', with_plain_quotes, all_but_last(1)),
    Rule("'[A-Za-z][^ \t\n\r\u00a0]", always("`"), all_but_last(2)),
    Rule("{apostrophe}[0-9]{2}{gap}", length=all_but_last(1)),
    Rule("<|&lt;", always("<")),
    Rule(">|&gt;", always(">")),
    Rule("{smiley}[^A-Za-z0-9]", with_named_brackets, all_but_last(1)),
    Rule("{face}", with_named_brackets),
    *(Rule(f"\\{bracket}", always(name)) for bracket, name in BRACKETS.items()),
    Rule("\\.{3,5}|(\\.[ \u00a0]){2,4}\\.|[\u0085\u2026]", always("...")),
    Rule("{file_name}({gap}|[.?!,])", length=all_but_last(1)),
    Rule("{slashed}"),
    Rule("&amp;|{initials_joined}|s(&|&amp;)(ls|p\\-500)|\\-[lrLR](r|s|c)b\\-", with_plain_ampersand),
    Rule("{hyphenated}", without_soft_hyphens),
    Rule("{thing}"),
    Rule(r"\-+", lambda text: "--" if 3 <= len(text) <= 4 else text),
    Rule(r"\*+|(\\\*){1,3}"),
    Rule("{quote}{1,2}|\"|''?|&apos;|&quot;|{auxiliary}|{not}", with_plain_quotes),
    *(Rule(sign, always(name)) for sign, name in CURRENCIES.items()),
    Rule("[\u00a5\u060b\u0e3f\u20a4\uffe0\uffe1\uffe5\uffe6]"),
    Rule(r"[A-Z]*\$|#+|@+|_+|[!?]+|<<|>>|[cCfF]#|[cC]\+\+|[+&~^|\\=.,:;/]|{sign}"),
    Rule("{blank}+|&nbsp;", always("")),
    Rule("[^]", always("")),
)
