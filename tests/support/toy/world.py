"""A toy world whose captions have a known truth: it shows in seconds whether distinctive training works.

A scene is one salient object in a place, beside one to three smaller companions.  Scenes come in look-alike groups
that share the salient object and its colour and differ in the rest.  References mostly name only the salient object,
as people do, so a captioner trained by plain cross-entropy says "a red ball" for a whole group; one in five mentions
a detail, so the words that would tell the group apart can be learnt.  Whether a caption is true is read from the
scene's facts, with no model in between.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from PIL import Image

from capscore.errors import UserError
from support.toy.drawing import COLOURS, draw_scene
from tellapart.data.examples import DataSet, Example, write

NOUNS = ("ball", "house", "tree", "car", "boat", "star", "fish", "cup", "cat", "kite")
COMPANIONS = ("box", "bottle", "heart", "mushroom", "flag")  # never salient, so a word tells which object it is about
PLACES = {
    "grass": "on the grass",
    "sand": "on the sand",
    "snow": "in the snow",
    "water": "in the water",
    "road": "on the road",
    "floor": "on the floor",
}
NUMBERS = {1: "a", 2: "two", 3: "three"}
SPLITS: Mapping[str, float] = {"train": 0.7, "val": 0.1, "test": 0.2}

Detail = Literal["colour", "place", "companion", "companion_colour", "count"]
DETAILS: tuple[Detail, ...] = get_args(Detail)
PLAIN: tuple[Detail, ...] = ("colour",)


@dataclass(frozen=True)
class Scene:
    """The facts of one picture."""

    noun: str
    colour: str
    place: str
    companion: str
    companion_colour: str
    count: int  # of companions


VALUES: dict[str, tuple[str | int, ...]] = {
    "noun": NOUNS,
    "colour": tuple(COLOURS),
    "place": tuple(PLACES),
    "companion": COMPANIONS,
    "companion_colour": tuple(COLOURS),
    "count": tuple(NUMBERS),
}
VARIED = ("place", "companion", "companion_colour", "count")  # what look-alikes differ in


def render(scene: Scene, size: int = 96, seed: int | Sequence[int] = 0) -> Image.Image:
    """A photo of the scene; another seed is another shot: other positions, sizes, tilts and light."""
    salient, companion = (scene.noun, scene.colour), (scene.companion, scene.companion_colour)
    return draw_scene(salient, scene.place, companion, scene.count, size, np.random.default_rng(seed))


# --- captions ---------------------------------------------------------------------------------------------------------

_TEMPLATES = {  # by (mentions the place, mentions the companions); `describe` takes the first, people vary
    (False, False): ("{thing}", "{thing}", "there is {thing}", "this is {thing}", "a picture of {thing}"),
    (True, False): ("{thing} {place}", "there is {thing} {place}"),
    (False, True): (
        "{thing} next to {companions}",
        "{thing} and {companions}",
        "{thing} with {companions}",
        "{companions} next to {thing}",
    ),
    (True, True): ("{thing} {place} next to {companions}", "{thing} and {companions} {place}"),
}
_MENTIONED: tuple[tuple[Detail, ...], ...] = (  # what a reference with a detail adds to the salient object
    ("place",),
    ("companion", "companion_colour", "count"),
    ("companion", "companion_colour"),
    ("place", "companion", "companion_colour", "count"),
)


def describe(scene: Scene, details: Collection[Detail] = PLAIN) -> str:
    """A true caption that states these details: "a red ball", or with DETAILS everything there is to say."""
    return _fill(_templates(details)[0], scene, details)


def references(scene: Scene, rng: random.Random, count: int = 5) -> list[str]:
    """What people would write: about four of five name only the salient object."""
    captions = []
    for _ in range(count):
        details: tuple[Detail, ...] = rng.choice(_MENTIONED) if rng.random() < 0.2 else ()
        if rng.random() < 0.7:
            details = ("colour", *details)
        captions.append(_fill(rng.choice(_templates(details)), scene, details))
    return captions


def _templates(details: Collection[Detail]) -> tuple[str, ...]:
    return _TEMPLATES["place" in details, not {"companion", "companion_colour", "count"}.isdisjoint(details)]


def _fill(template: str, scene: Scene, details: Collection[Detail]) -> str:
    thing = ("a", scene.colour if "colour" in details else "", scene.noun)
    companions = (
        NUMBERS[scene.count] if "count" in details or scene.count == 1 else "",  # English counts to one by itself
        scene.companion_colour if "companion_colour" in details else "",
        scene.companion if scene.count == 1 else _plural(scene.companion),
    )
    return template.format(
        thing=" ".join(filter(None, thing)), place=PLACES[scene.place], companions=" ".join(filter(None, companions))
    )


def _plural(noun: str) -> str:
    return noun + ("es" if noun.endswith(("x", "sh")) else "s")


# --- truth ------------------------------------------------------------------------------------------------------------


class Claim(NamedTuple):
    """One thing a caption says: an aspect of the scene and the value it gives it."""

    aspect: str  # a field of Scene, or "noun_count" or "place_colour", of which a scene has one and none
    value: str


@dataclass(frozen=True)
class Truth:
    """What a caption states about a scene, sorted into right and wrong, each in order of mention and once."""

    right: tuple[Claim, ...]
    wrong: tuple[Claim, ...]

    @property
    def holds(self) -> bool:
        """Nothing the caption says is wrong.  A caption that says nothing holds, of every scene."""
        return not self.wrong

    @property
    def names_object(self) -> bool:
        """The salient object is named, and no other in its stead."""
        return "noun" in (c.aspect for c in self.right) and "noun" not in (c.aspect for c in self.wrong)

    @property
    def details_right(self) -> tuple[Claim, ...]:
        return tuple(claim for claim in self.right if claim.aspect != "noun")

    @property
    def details_wrong(self) -> tuple[Claim, ...]:
        return tuple(claim for claim in self.wrong if claim.aspect != "noun")


_SEVERAL = "several"  # "some boxes", "boxes": more than one, not counted
_MODIFIED = {
    "noun": ("colour", "noun_count"),
    "companion": ("companion_colour", "count"),
    "place": ("place_colour", ""),
}
_LEXICON: dict[str, tuple[str, str]] = {  # word → kind, value; other words are ignored
    **{colour: ("colour", colour) for colour in COLOURS},
    **{noun: ("noun", noun) for noun in NOUNS},
    **{companion: ("companion", companion) for companion in COMPANIONS},
    **{place: ("place", place) for place in PLACES},
    **{_plural(noun): ("noun", noun) for noun in NOUNS},
    **{_plural(companion): ("companion", companion) for companion in COMPANIONS},
    **{word: ("number", str(n)) for n, word in enumerate(("no", "one", "two", "three", "four", "five", "six"))},
    **dict.fromkeys(("some", "several", "many"), ("number", _SEVERAL)),
    **dict.fromkeys(("a", "an"), ("number", "a")),
    **dict.fromkeys(("the", "on", "in", "at", "by", "near", "next", "beside", "with", "behind", "."), ("break", "")),
}
_PLURALS = {_plural(noun) for noun in (*NOUNS, *COMPANIONS)}


def claims(caption: str) -> list[Claim]:
    """What a caption states, in any grammar.

    Colours and numbers belong to the next object or place ("two blue boxes").  If a new phrase or the end comes first,
    they belong to the object before them ("the ball on the grass is red"), and to the salient one if there was none.
    """
    found: list[Claim] = []
    last_object, colours, number = "noun", list[str](), ""

    def modify(owner: str, count: str) -> None:
        of_colour, of_count = _MODIFIED[owner]
        found.extend(Claim(of_colour, colour) for colour in colours)
        if count and of_count and not (owner == "noun" and count == "1"):  # "a ball" counts nothing
            found.append(Claim(of_count, count))

    for word in [*re.findall(r"[a-z]+|[0-9]+|\.", caption.lower()), "."]:
        kind, value = ("number", word) if word.isdigit() else _LEXICON.get(word, ("", ""))
        if kind == "colour":
            colours.append(value)
        elif kind in _MODIFIED:
            found.append(Claim(kind, value))
            modify(kind, "1" if number == "a" else number or (_SEVERAL if word in _PLURALS else ""))
            last_object = last_object if kind == "place" else kind
            colours, number = [], ""
        elif kind:  # a number or a break begins a new phrase
            modify(last_object, "" if number == "a" else number)
            colours, number = [], value
    return list(dict.fromkeys(found))


def truth_of(caption: str, scene: Scene) -> Truth:
    """Which of a caption's claims are right and which wrong.  Two claims about one aspect are judged one by one."""
    facts = {key: str(value) for key, value in asdict(scene).items()} | {"noun_count": "1"}

    def is_right(claim: Claim) -> bool:
        counted_loosely = claim == Claim("count", _SEVERAL) and scene.count > 1
        return counted_loosely or facts.get(claim.aspect) == claim.value

    stated = claims(caption)
    return Truth(tuple(c for c in stated if is_right(c)), tuple(c for c in stated if not is_right(c)))


def tells_apart(caption: str, scene: Scene, others: Collection[Scene]) -> bool:
    """True of the scene and of none of the others: a listener who believes the caption picks the right picture."""
    return truth_of(caption, scene).holds and not any(truth_of(caption, other).holds for other in others)


def finds(caption: str, scene: Scene, others: Collection[Scene]) -> bool:
    """More of what it says is right of the scene, less what is wrong, than of any of the others."""

    def fit(picture: Scene) -> int:
        truth = truth_of(caption, picture)
        return len(truth.right) - len(truth.wrong)

    return all(fit(scene) > fit(other) for other in others)


def measure(captions: Sequence[str], examples: Sequence[Example]) -> dict[str, float]:
    """How good a captioner is, one caption per example; look-alikes are those of the same group, so give whole groups.

    object        share of captions that name the salient object and no other
    details       details stated per caption (colours, numbers, place, companions)
    details_true  share of the stated details that are right; 1 if none is stated
    true          share of captions without a wrong claim
    tells_apart   share of captions that are true of their scene and of no look-alike
    found         share of captions that find their scene among its look-alikes (R@1 in the group): a listener counts
                  right claims less wrong ones, and a tie counts against the caption
    """
    scenes = [scene_of(example) for example in examples]
    names = [example.extra["group"] for example in examples]
    groups = defaultdict(set)
    for name, scene in zip(names, scenes, strict=True):
        groups[name].add(scene)
    truths = [truth_of(caption, scene) for caption, scene in zip(captions, scenes, strict=True)]
    apart = [tells_apart(c, scene, groups[n] - {scene}) for c, scene, n in zip(captions, scenes, names, strict=True)]
    found = [finds(c, scene, groups[n] - {scene}) for c, scene, n in zip(captions, scenes, names, strict=True)]
    right = sum(len(truth.details_right) for truth in truths)
    wrong = sum(len(truth.details_wrong) for truth in truths)
    return {
        "object": sum(truth.names_object for truth in truths) / len(truths),
        "details": (right + wrong) / len(truths),
        "details_true": right / (right + wrong) if right + wrong else 1.0,
        "true": sum(truth.holds for truth in truths) / len(truths),
        "tells_apart": sum(apart) / len(apart),
        "found": sum(found) / len(found),
    }


# --- data set ---------------------------------------------------------------------------------------------------------


def make(
    folder: Path | str,
    *,
    groups: int = 400,
    group_size: tuple[int, int] = (4, 6),
    seed: int = 0,
    splits: Mapping[str, float] = SPLITS,
    size: int = 96,
) -> DataSet:
    """Draw a data set: `folder/captions.json` and `folder/photos/*.png`, the same bytes for the same seed.

    `group_size` is the least and the most scenes in a group; `splits` are shares of the groups.  No scene occurs
    twice, so none of the test is in the training set.
    """
    # Of 32,400 possible scenes: beyond that, new look-alikes become hard to find.
    assert groups * group_size[1] <= 10_000
    folder = Path(folder).resolve()
    (folder / "photos").mkdir(parents=True, exist_ok=True)
    rng = random.Random(f"toy world {seed}")
    ends = [round(groups * share) for share in accumulate(splits.values())]
    examples: list[Example] = []
    for number, group in enumerate(look_alike_groups(groups, group_size, rng)):
        split = next(name for name, end in zip(splits, ends, strict=True) if number < end)
        for scene in group:
            file = folder / "photos" / f"{len(examples):05d}.png"
            render(scene, size, seed=(seed, len(examples))).save(file, compress_level=1)
            extra = {"group": number, "scene": asdict(scene)}
            examples.append(Example(len(examples), file, split, tuple(references(scene, rng)), extra))
    dataset = DataSet("toy_world", examples)
    write(dataset, folder / "captions.json")
    return dataset


def look_alike_groups(groups: int, group_size: tuple[int, int], rng: random.Random) -> Iterator[list[Scene]]:
    """Groups that share noun and colour.  No scene is given twice, in any group.

    Every scene changes one to three details of the group's first, so that no single kind of detail tells all apart:
    one neighbour stands in another place, the next has the same place and one box more.
    """
    seen: set[Scene] = set()
    nouns, colours = _decks(NOUNS, rng), _decks(tuple(COLOURS), rng)
    for _ in range(groups):
        noun, colour = next(nouns), next(colours)
        group: list[Scene] = []
        wanted = rng.randint(*group_size)
        while len(group) < wanted:
            scene = _look_alike(group[0], rng) if group else _any_scene(noun, colour, rng)
            if scene not in seen:
                seen.add(scene)
                group.append(scene)
        yield group


def scene_of(example: Example) -> Scene:
    """The facts behind an example that `make` wrote."""
    return Scene(**{key: example.extra["scene"][key] for key in VALUES})


def _any_scene(noun: str, colour: str, rng: random.Random) -> Scene:
    details: dict[str, Any] = {key: rng.choice(VALUES[key]) for key in VARIED}
    return Scene(noun, colour, **details)


def _look_alike(scene: Scene, rng: random.Random) -> Scene:
    facts = asdict(scene)
    for key in rng.sample(VARIED, rng.randint(1, 3)):
        facts[key] = rng.choice([value for value in VALUES[key] if value != facts[key]])
    return Scene(**facts)


def _decks(values: Sequence[str], rng: random.Random) -> Iterator[str]:
    """Values for ever, in shuffled rounds, so that even a small world has every noun and every colour equally often."""
    while True:
        yield from rng.sample(values, len(values))


if __name__ == "__main__":  # PYTHONPATH=tests python -m support.toy.world FOLDER
    import sys

    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit("usage: PYTHONPATH=tests python -m support.toy.world FOLDER")
    try:
        print(f"{sys.argv[1]}/captions.json: {len(make(sys.argv[1]).examples)} scenes")
    except UserError as error:
        sys.exit(f"toy_world: {error}")
