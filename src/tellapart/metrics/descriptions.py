"""Descriptions of scores by their names: those of capscore, of retrieval, of objects, and of training."""

from __future__ import annotations

from dataclasses import replace

from capscore.measures import MEASURES, Score
from tellapart.metrics import objects, retrieval

# What training and adapting report beside these
VALIDATION = (
    Score("Preference", "Chance that people prefer the caption to one that they liked, by the feedback they gave."),
    Score("loss", "Cross-entropy of people's captions of held-out photos.", False, percent=False),
    Score("accuracy", "Next words of people's captions that the model expects most."),
    Score("unique", "Different captions, as a share of all."),
    Score("length", "Words in a caption, on average.", None, percent=False),
    *(Score(f"R@{k}", f"Held-out captions whose photo is among the first {k}.") for k in (1, 5, 10)),
    Score("recall", "The mean of R@1, R@5 and R@10."),
    Score("mAP", "Average precision of a tagger's words on held-out photos, the mean over words."),
    Score("mAP[Fang]", "The same as Fang et al. weigh it: by how many captions of a photo have the word."),
)


def of(name: str) -> Score | None:
    """Description of a score by its name, `R@5[judge]` too; none for a name that no measure has.

    >>> of("GEG-Avg[judge]").description
    'By how much a caption fits its photo better than its look-alikes on average, by judge.'
    >>> of("Rep").higher_is_better
    False
    """
    if (parts := objects.parse(name)) is not None:
        score = objects.SCORES[parts[0]]
        return replace(score, name=name, description=score.description.replace("{by}", parts[1]))
    parsed = retrieval.parse(name)
    if parsed is None:
        return MEASURES.score(name) or next((score for score in VALIDATION if score.name == name), None)
    score, place = retrieval.SCORES[parsed.kind], "first" if parsed.k == 1 else f"among the first {parsed.k}"
    filled = {"{place}": place, "{k}": str(parsed.k), "{by}": parsed.retriever}  # the name last: it may be any text
    text = score.description
    for gap, value in filled.items():
        text = text.replace(gap, value)
    return replace(score, name=name, description=text)


def lower_is_better(name: str) -> bool:
    """Is the lowest of some figures of this name the best one?"""
    score = of(name)
    return score is not None and score.higher_is_better is False


def explained(name: str) -> str:
    """A score in a sentence or two, with the way it gets better; nothing of a name that no measure has."""
    score = of(name)
    if score is None:
        return ""
    return f"{score.description} {score.direction.capitalize()}." if score.direction else score.description
