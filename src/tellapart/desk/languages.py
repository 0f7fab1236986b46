"""Names of languages and their tags (BCP 47), as files of captions and XMP have them."""

from __future__ import annotations

import re

_TAG = re.compile(r"[A-Za-z]{2,3}(?:-[A-Za-z0-9]{2,8})*")
_TAGS = """
af Afrikaans; am Amharic; ar Arabic; az Azerbaijani; be Belarusian; bg Bulgarian; bn Bengali; bs Bosnian; ca Catalan,
Català; cs Czech, Čeština; cy Welsh, Cymraeg; da Danish, Dansk; de German, Deutsch; el Greek; en English; eo Esperanto;
es Spanish, Español; et Estonian, Eesti; eu Basque, Euskara; fa Persian, Farsi; fi Finnish, Suomi; fr French, Français;
ga Irish, Gaeilge; gl Galician, Galego; gu Gujarati; he Hebrew; hi Hindi; hr Croatian, Hrvatski; hu Hungarian, Magyar;
hy Armenian; id Indonesian; is Icelandic, Íslenska; it Italian, Italiano; ja Japanese; ka Georgian; kk Kazakh; km Khmer;
kn Kannada; ko Korean; la Latin; lb Luxembourgish; lo Lao; lt Lithuanian, Lietuvių; lv Latvian, Latviešu; mk Macedonian;
ml Malayalam; mn Mongolian; mr Marathi; ms Malay; mt Maltese; my Burmese; nb Norwegian, Bokmål, Norsk; ne Nepali;
nl Dutch, Nederlands; nn Nynorsk; pa Punjabi; pl Polish, Polski; ps Pashto; pt Portuguese, Português; pt-BR Brazilian
Portuguese; ro Romanian, Română; ru Russian; si Sinhala; sk Slovak, Slovenčina; sl Slovenian, Slovene, Slovenščina;
sq Albanian, Shqip; sr Serbian, Srpski; sv Swedish, Svenska; sw Swahili; ta Tamil; te Telugu; th Thai; tl Tagalog,
Filipino; tr Turkish, Türkçe; uk Ukrainian; ur Urdu; uz Uzbek; vi Vietnamese; xh Xhosa; yi Yiddish; zh Chinese,
Mandarin; zh-Hans Simplified Chinese; zh-Hant Traditional Chinese; zu Zulu
"""
_TAG_OF = {
    name.strip().casefold(): tag
    for tag, _, names in (entry.strip().partition(" ") for entry in " ".join(_TAGS.split()).split(";"))
    for name in names.split(",")
}


def tag_of(language: str) -> str:
    """Nothing if it is not known.

    >>> tag_of("German"), tag_of("pt-BR"), tag_of("Klingon")
    ('de', 'pt-BR', '')
    """
    if tag := _TAG_OF.get(language.casefold()):
        return tag
    primary = language.partition("-")[0].lower()
    return language if _TAG.fullmatch(language) and primary in {tag[:2] for tag in _TAG_OF.values()} else ""
