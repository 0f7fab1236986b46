"""Taggers: what a photo shows, as words with probabilities.  The table of those there are."""

from __future__ import annotations

from tellapart.captioners import Entry

TAGGERS = {
    "tagger": Entry(
        "tellapart.taggers.tagger",
        "Tagger",
        "words of a photo: a noisy-OR over its regions (Fang et al., 2015); may tune the encoder's last blocks",
        ("forward",),
    ),
    "clip_tagger": Entry(
        "tellapart.taggers.clip_tagger",
        "ClipTagger",
        "words of a clip by convolutions over frames in time: GL-RG's encoders (Yan et al., 2022)",
        ("forward",),
    ),
}
