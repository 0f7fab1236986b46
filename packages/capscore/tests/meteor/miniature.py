"""METEOR's data in small: the files that pycocoevalcap brings, with a handful of entries."""

import gzip
import zipfile

FUNCTION_WORDS = ["the", "a", "of", "on", "in", "is", ",", "'s", "-"]
PREFIXES = "# abbreviations\nMr\nmr\nvs\n\nNo #NUMERIC_ONLY#\nno #NUMERIC_ONLY#\n"
SYNSETS = {
    "dog": "00000001 00000002",
    "hound": "00000002",
    "bicycle": "00000003",
    "bike": "00000003 00000004",
    "motorbike": "00000004",
    "person": "00000005",
    "man": "00000005 00000006",
    "adult_male": "00000006",
    "sit": "00000007",
    "rest": "00000007 00000008",
    "ride": "00000009",
    "box": "00000010",
    "carton": "00000010",
    "glasses": "00000011",
    "spectacles": "00000011",
    "glass": "00000012",
    "tumbler": "00000012",
    "grass": "00000013",
    "lawn": "00000013",
}
EXCEPTIONS = {"man": "men", "sit": "sat", "ride": "rode ridden", "adult_male": "guys"}
PARAPHRASES = [
    ("a group of people", "people"),
    ("in front of", "before"),
    ("people", "a group of people"),
    ("people", "persons"),
    ("the", "the the"),
    ("the dog", "dog"),
    ("the dog", "the hound"),
    ("top of", "on"),
    ("wood", "of wood"),
    ("wooden", "made of wood"),
    ("wooden", "of wood"),
]


def write(folder):
    """A folder laid out like pycocoevalcap's `meteor`."""
    (folder / "data").mkdir(parents=True)
    with zipfile.ZipFile(folder / "meteor-1.5.jar", "w") as jar:
        for name, text in members().items():
            jar.writestr(name, text)
    (folder / "data" / "paraphrase-en.gz").write_bytes(gzip.compress(paraphrases().encode()))
    return folder


def members():
    return {
        "synonym/english.synsets": "".join(f"{word}\n{numbers}\n" for word, numbers in SYNSETS.items()),
        "synonym/english.exceptions": "".join(f"{word}\n{forms}\n" for word, forms in EXCEPTIONS.items()),
        "function/english.words": "".join(f"{word}\n" for word in FUNCTION_WORDS),
        "nonbreaking/english.prefixes": PREFIXES,
    }


def paraphrases():
    return "".join(f"0.5\n{phrase}\n{paraphrase}\n" for phrase, paraphrase in PARAPHRASES)
