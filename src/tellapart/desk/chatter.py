"""Words that chat models put around a caption, or in place of it: first words, labels, markdown, thoughts, refusals.

`caption_in` takes the caption out of an answer, `is_refusal` knows an answer that has none, and `has_chatter` and
`has_opening` find the same in captions that are in a file already.  The patterns err on the side of leaving a text as
it is: "A photo of a dog" may go on "... stands on a desk", so only openings that cannot be part of the picture ("The
image shows") are taken off.  Openings, labels and hashtags are English; refusals are known in some other languages too.
"""

from __future__ import annotations

import json
import re
import unicodedata

from tellapart.data.examples import clean

LONGEST_ALT = 125  # characters of alternative text; some screen readers cut a text into pieces there
_LONGEST_READ = 8000  # characters of an answer after its thoughts: no caption begins later
_LONGEST_CAPTION = 300  # characters


def caption_in(answer: str) -> str:
    """The caption in what a model answered, on one line; "" if there is none.

    >>> caption_in('Sure! Here is a caption: "The image shows a dog." #dog')
    'A dog.'
    """
    caption = _unquoted(_without_opening(_unquoted(_without_chatter(answer))))
    return _shortened(caption) if any(character.isalnum() for character in caption) else ""


def is_refusal(answer: str) -> bool:
    """True if a model declines, or asks for the photo, instead of describing it."""
    return _REFUSAL.match(_unquoted(_without_chatter(answer))) is not None


def has_chatter(caption: str) -> bool:
    """True if there is anything around a caption that is not part of it; openings and quotes are not counted."""
    return _without_chatter(caption) != one_line(caption[:_LONGEST_READ])


def has_opening(caption: str) -> bool:
    """True if a caption begins with "photo of", "this image shows" or the like."""
    return _OPENING.match(caption) is not None or _REMOVABLE_OPENING.match(caption) is not None


def without_thoughts(answer: str) -> str:
    """The answer without the blocks of a model's reasoning; one that is not closed takes the rest with it."""
    opened = _THOUGHT_BEGINS.search(answer)
    ends = [match.end() for match in _THOUGHT_ENDS.finditer(answer)]
    if not ends:
        return answer[: opened.start()] if opened else answer
    # Some chat templates send the closing mark only: all before it is reasoning.
    after = answer[ends[-1] :]
    reopened = _THOUGHT_BEGINS.search(after)
    after = after[: reopened.start()] if reopened else after
    start = answer[: opened.start()] if opened else ""
    return after if after.strip() else start


def one_line(text: str) -> str:
    """A line of text that can neither steer a terminal nor turn the text round it about."""
    return clean(unicodedata.normalize("NFC", _INVISIBLE.sub("", _ESCAPE_SEQUENCE.sub("", text))))


# The colours, titles and so on of terminals; what is left of others are control characters, which `clean` removes.
_ESCAPE_SEQUENCE = re.compile("(?:\x1b\\[|\x9b)[0-?]{0,64}[ -/]{0,8}[@-~]|\x1b\\][^\x07\x1b]{0,512}(?:\x07|\x1b\\\\)")
# Embeddings, overrides and isolates of bidirectional text, and spaces of no width.  Joiners stay: emoji and Persian
# words are made with them.
_INVISIBLE = re.compile("[\u202a-\u202e\u2066-\u2069\u200b\u2060\ufeff]")

_THOUGHT_BEGINS = re.compile(r"<(?:think|thinking|thought|reasoning)>|\u25c1think\u25b7|\[THINK\]", re.IGNORECASE)
_THOUGHT_ENDS = re.compile(r"</(?:think|thinking|thought|reasoning)>|\u25c1/think\u25b7|\[/THINK\]", re.IGNORECASE)


# What stands around a caption


def _without_chatter(answer: str) -> str:
    """One line: the first paragraph or proposal, without all that `has_chatter` finds."""
    text = without_thoughts(answer)[:_LONGEST_READ]
    text = _from_json(_FENCE.sub(" ", _TAG.sub("", text)))
    lines = [line.strip() for line in text.strip().splitlines()]
    is_numbered = any(re.match(r"2[.)]\s", line) for line in lines)  # a lone "1." may be the first of a name
    paragraph: list[str] = []
    for i, line in enumerate(lines):
        is_item = _BULLET.match(line) is not None or (is_numbered and _NUMBER.match(line) is not None)
        if paragraph and (not line or is_item):
            break  # further paragraphs and list items are comments and other proposals
        line = one_line(_plain_text(_NUMBER.sub("", line) if is_item and is_numbered else line))
        line = _LABEL.sub("", _FIRST_WORDS.sub("", line))
        if not paragraph and (_HEADING.fullmatch(line) or (line.endswith(":") and i + 1 < len(lines))):
            continue  # "Here are some captions:"
        if line:
            paragraph.append(line)
    return _without_hashtags(_AFTERWORD.sub("", " ".join(paragraph)))


def _from_json(text: str) -> str:
    if not text.lstrip().startswith("{"):
        return text
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return text
    values = (content.get(key) for key in ("caption", "description", "alt_text", "alt", "text", "answer"))
    return next((value for value in values if isinstance(value, str)), text)


def _plain_text(line: str) -> str:
    """A line of markdown as it would be shown."""
    line = _BULLET.sub("", re.sub(r"^(?:#{1,6}\s+|>\s+)+", "", line))
    line = re.sub(r"!?\[([^][]{1,200})\]\([^()\s]{1,300}\)", r"\1", line)  # [text](address)
    line = re.sub(r"`([^`]{1,400})`", r"\1", line)
    line = re.sub(r"(\*\*|__)(?=\S)([^*]{1,400}?)(?<=\S)\1", r"\2", line)
    line = re.sub(r"(?<![\w*])\*(?=[^\s*])([^*]{1,400})(?<=[^\s*])\*(?![\w*])", r"\1", line)
    return re.sub(r"^_([^_].*[^_])_$", r"\1", line)


def _without_hashtags(text: str) -> str:
    """Without the hashtags at the end, unless the sentence needs them: 'a banner that reads #MeToo'."""
    match = re.search(r"(?:(?<=\s)|^)#[^\W\d]\w{0,99}(?:[\s,]+#[^\W\d]\w{0,99})*[\s.]*$", text)
    if match is None:
        return text
    start = text[: match.start()].rstrip()
    return text if _NEEDS_A_WORD.search(start) else start


def _unquoted(text: str) -> str:
    for left, right in ('""', "''", "\u201c\u201d", "\u2018\u2019", "\u00ab\u00bb"):
        if len(text) > 1 and text.startswith(left) and text.endswith(right) and left not in text[1:-1]:
            return text[1:-1].strip()
    return text


def _shortened(text: str) -> str:
    """At most so many characters: whole sentences if one fits, else whole words."""
    if len(text) <= _LONGEST_CAPTION:
        return text
    start = text[:_LONGEST_CAPTION]
    return whole_sentences(text[: _LONGEST_CAPTION + 1]) or start.rpartition(" ")[0] or start


def whole_sentences(text: str) -> str:
    """Without the sentence at the end that is not finished; "" if that is the only one."""
    match = re.match(r".*[.!?\u3002](?=\s|$)", text)
    return match[0] if match else ""


_TAG = re.compile(  # marks of chat templates that reach the text, and tags that prompts ask for
    r"<\|[^<>|]{1,40}\|>|</?s>|<(?:bos|eos|pad|unk|(?:start|end)_of_turn|end_of_utterance)>"
    r"|</?(?:answer|caption|output|response|final)>",
    re.IGNORECASE,
)
_FENCE = re.compile(r"```(?:json|text|txt|markdown|md|plaintext)?(?![^\s{])|```", re.IGNORECASE)
_BULLET = re.compile(r"^[-*\u2022]\s+(?!.*\s[-*\u2022]$)")  # "- dog -" is no item of a list
_NUMBER = re.compile(r"^\d{1,2}[.)]\s+")

_KIND = r"(?:captions?|descriptions?|alt(?:ernative)?[- ]?text)"
_YES = r"(?:sure(?: thing)?|certainly|of course|absolutely|okay|ok|alright)"
_FIRST_WORDS = re.compile(
    rf"^(?:{_YES}\s?[!.](?:\s+|$))?"
    rf"(?:(?:{_YES}\s?[,:]?\s+)?here(?:['\u2019]s|\s+(?:is|are))\s+(?:[\w-]+\s+){{0,3}}"
    rf"(?:{_KIND}|sentences?|options?|suggestions?)(?:\s+(?:for|of|that|to|in|describing|based)\b[^:]{{0,60}})?:\s*"
    rf"|(?:an?|one|the)\s+(?:[\w-]+\s+){{0,2}}{_KIND}(?:\s+for\b[^:]{{0,60}}?)?\s+(?:could|would|might)\s+be\s*:?\s*)?",
    re.IGNORECASE,
)
_ADJECTIVE = r"(?:suggested|possible|proposed|short|brief|final|one-sentence|image|photo|picture|the|my)"
_HEADING = re.compile(rf"(?:{_ADJECTIVE}\s+){{0,3}}(?:{_KIND}|answer|response)\s*:?", re.IGNORECASE)
_LABEL = re.compile(rf"^(?:{_ADJECTIVE}\s+){{0,3}}(?:{_KIND}|answer|response)\s?:(?:\s+|$)", re.IGNORECASE)
_AFTERWORD = re.compile(
    r"(?<=[.!?\"'\u201d)])\s+\(?(?:let me know|i hope|hope this|would you like|do you want|feel free|is there anything"
    r"|please let me|if you(?:['\u2019]d| would) like|if you (?:need|want|have) (?:any|more|another|a different|me)"
    r"|note:|(?:please )?note that (?:i|this|the)\b|i(?: can(?:no|['\u2019])t| cannot|['\u2019]m (?:un|not )able)\b"
    r"|i(?:['\u2019]m| am) sorry).*$",
    re.IGNORECASE,
)
_NEEDS_A_WORD = re.compile(
    r"(?:^|\s)(?:reads?|reading|says?|saying|said|show(?:s|ing)|spell(?:s|ing)|written|writing|hashtags?|words?|text"
    r"|labell?ed|titled|called|named|wear(?:s|ing)|hold(?:s|ing)|and|or|with|without|by|for|of|on|in|at|to|from|under"
    r"|over|as|is|are|an?|the|this|that|number|no\.?|item|car|player):?$",
    re.IGNORECASE,
)


# Openings

_PHOTO = r"(?:photo(?:graph)?|picture|pic|image|graphic|snapshot)s?"
_MANNER = r"(?:(?:close[- ]?up|black[- ]and[- ]white|colou?r|old|vintage|blurry|stock|aerial|digital|nice)\s+)*"
_OPENING = re.compile(
    rf"\W*(?:(?:this|here|it|there|these|that)(?:\s+(?:is|are)|['\u2019]s)\s+)?(?:(?:an?|the|this|these|my|some)\s+)?{_MANNER}"
    rf"{_PHOTO}(?:\s+(?:that|which))?\s+(?:of|show(?:s|ing)?|depict(?:s|ing)?|featur(?:es|ing)|captur(?:es|ing)|displays?)\b"
    rf"|\W*in\s+(?:this|the)\s+{_PHOTO}(?:,|\s+(?:we|you|there|i)\b)"
    rf"|\W*{_PHOTO}\s*:",
    re.IGNORECASE,
)
_SHOWS = r"(?:show|depict|feature|capture|display|present|portray|showcase|illustrate|contain)s?"
# What can be taken off without losing anything: the words are about the photo as a whole, and a clause follows.
_REMOVABLE_OPENING = re.compile(
    rf"(?:(?:this|the|that|these)\s+)?(?:(?:provided|given|attached|uploaded)\s+)?{_PHOTO}"
    rf"(?:\s+(?:that\s+)?you(?:['\u2019]ve|\s+have)?\s+(?:shared|sent|provided|uploaded|attached)|\s+(?:provided|above))?"
    rf"\s+(?:(?:clearly|simply)\s+)?(?:{_SHOWS}(?!\s+(?:off|up|through)\b)\s*:?|is\s+of|is\s+an?\s+{_PHOTO}\s+of)\s+(?:that\s+)?"
    rf"|(?:this|it|that|here)(?:\s+is|['\u2019]s)\s+(?:an?|the)\s+{_PHOTO}\s+"
    rf"(?:of|showing|depicting|featuring|(?:that|which)\s+{_SHOWS})\s+"
    rf"|in\s+(?:this|the)\s+{_PHOTO}(?:,\s*|\s+(?=(?:we|you|i|there)\b))(?:(?:we|you|i)\s+(?:can\s+)?see\s+)?"
    rf"|(?:image|photo|picture)\s*:\s+",
    re.IGNORECASE,
)


def _without_opening(text: str) -> str:
    match = _REMOVABLE_OPENING.match(text)
    rest = text[match.end() :] if match else ""
    if not rest:
        return text
    return rest[0].upper() + rest[1:] if text[0].isupper() else rest


# Refusals

_SORRY = (
    r"(?:(?:(?:i(?:['\u2019]m| am)|we(?:['\u2019]re| are))\s+(?:(?:so|very|really|terribly)\s+)?(?:sorry|afraid)"
    r"|sorry|(?:my\s+|our\s+)?apologies|i\s+(?:sincerely\s+)?apologi[sz]e|unfortunately|regrettably)"
    r"(?:\s+for\s[^,.;:]{0,60})?[\s,.;:!\u2013\u2014-]*(?:(?:but|however|that)\b[\s,]*)?)"
)
_AS_AI = r"(?:as\s+an?\s+(?:ai|artificial|large\s+language|language|text-based)\b[^,.]{0,60},?\s*)"
_NOT_ABLE = (
    r"(?:i\s+(?:(?:really|simply|currently|also)\s+)?(?:can(?:\s?no|['\u2019])t|can\s+not|could(?:n['\u2019]t|\s+not)"
    r"|won['\u2019]t|will\s+not|would\s+(?:rather|prefer)\s+not(?:\s+to)?|shouldn['\u2019]t|should\s+not"
    r"|am\s+(?:unable|not\s+able|not\s+allowed|not\s+permitted)\s+to)"
    r"|i['\u2019]m\s+(?:(?:currently|also)\s+)?(?:unable|not\s+able|not\s+allowed|not\s+permitted)\s+to"
    r"|i['\u2019]d\s+rather\s+not)"
)
_DO = (
    r"(?:\s+(?:actually|directly|currently|really|reliably|accurately))?\s+(?:"
    r"(?:help|assist)(?=\s*(?:$|[.,!;:]|you\b|with\b|in\b|to\b|identify|describ|by\b))"
    r"|tell\s+(?:you\s+)?(?:what|who|if|whether)|make\s+out|do\s+(?:that|this|so)|look\s+at|engage|continue|comply"
    r"|(?:provide|describe|identify|caption|generate|create|write|see|view|process|analy[sz]e|fulfil+|answer|recogni[sz]e"
    r"|determine|comment|discuss|access|display|interpret|give|produce|offer|respond|open|load|verify|confirm|name)\b)"
)
_IMAGE = r"(?:images?|photos?|photographs?|pictures?|attachments?|files?)"
_REFUSAL = re.compile(
    rf"{_SORRY}?{_AS_AI}?{_NOT_ABLE}{_DO}"
    rf"|{_SORRY}?as\s+an\s+ai\b"
    r"|(?:i(?:['\u2019]m| am)\s+(?:so\s+|very\s+)?sorry|i\s+apologi[sz]e|my\s+apologies)\s*,?\s*but\b"
    rf"|{_SORRY}?i(?:['\u2019]m|\s+am)\s+(?:just\s+|only\s+)?an?\s+(?:ai\b|(?:large\s+)?language\s+model|text-(?:based|only))"
    rf"|{_SORRY}?i(?:['\u2019]m|\s+am)\s+not\s+comfortable\b"
    rf"|{_SORRY}?i\s+(?:do\s+not|don['\u2019]t)\s+(?:(?:actually\s+)?see\s+(?:any|an|the|your)\s+{_IMAGE}"
    r"|have\s+(?:the\s+(?:ability|capability)|access|enough\s+information|eyes))"
    rf"|{_SORRY}?i\s+(?:must|have\s+to|need\s+to|would\s+like\s+to)\s+(?:respectfully\s+|politely\s+)?(?:decline|refuse)\b"
    r"|i\s+(?:decline|refuse)\s+to\b"
    rf"|{_SORRY}?(?:it\s+(?:seems|looks|appears)(?:\s+(?:like|that|as\s+if))?\s+)?(?:there\s+(?:is|was)\s+)?no\s+{_IMAGE}\s+"
    r"(?:(?:is|was|were|has\s+been|have\s+been)\s+)?(?:provided|attached|uploaded|included|visible|found|shared|available)\b"
    rf"|it\s+(?:seems|looks|appears)(?:\s+(?:like|that|as\s+if))?\s+(?:you\b|the\s+{_IMAGE}|your\s+{_IMAGE})[^.]{{0,40}}"
    r"(?:forgot|did(?:n['\u2019]t|\s+not)|was(?:n['\u2019]t|\s+not)|has(?:n['\u2019]t|\s+not)|have(?:n['\u2019]t|\s+not)|missing)\b"
    rf"|(?:(?:could|can|would)\s+you\s+)?please\s+(?:provide|upload|attach|share|send)\s+(?:me\s+)?(?:the|an?|your)\s+{_IMAGE}"
    rf"|(?:this|the|your)\s+(?:request|prompt|content|{_IMAGE})\s+(?:(?:may|might)\s+)?"
    r"(?:violates?|goes\s+against|(?:was|has\s+been|is)\s+(?:blocked|rejected|flagged|refused)|(?:cannot|can['\u2019]t)\s+be\s+"
    r"(?:described|processed|captioned|analy[sz]ed))\b"
    rf"|(?:unable|not\s+able)\s+to\s+(?:process|describe|identify|view|see|analy[sz]e|caption|load|open|comply|provide)\b"
    # German, French, Spanish, Italian, Chinese
    r"|(?:es\s+)?tut\s+mir\s+leid,?\s+(?:aber\s+)?(?:ich|das|dabei)\b|(?:ich\s+kann\s+(?:dir|ihnen)?\s*(?:dabei|damit|diese))"
    r"|(?:je\s+suis\s+)?d\u00e9sol\u00e9e?,?\s+(?:mais\s+)?je\s+ne\b|lo\s+siento,?\s+(?:pero\s+)?no\s+puedo"
    r"|mi\s+dispiace,?\s+(?:ma\s+)?non\s+posso|(?:\u5f88)?\u62b1\u6b49[\uff0c,]?\s*\u6211|\u5bf9\u4e0d\u8d77[\uff0c,]?\s*\u6211",
    re.IGNORECASE,
)
