import json

import numpy as np
import pytest

from capscore.errors import UserError
from tellapart.neighbours import mining
from tellapart.neighbours.groups import Other, Photo, Rule, load, save
from tellapart.neighbours.mining import Captions, mine


def photos_of(count, *, splits=("test",), sha256=None):
    return [
        Photo(f"/photos/{i}.jpg", sha256[i] if sha256 else f"hash {i}", i, splits[i % len(splits)])
        for i in range(count)
    ]


def at(*degrees):
    """Unit vectors in a plane."""
    angles = np.deg2rad(np.array(degrees, float))
    return np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32)


def cosine(*degrees):
    return np.cos(np.deg2rad(np.array(degrees, float)))


def test_a_hand_made_collection():
    """0 and 3 have the same bytes; 1 is 5 degrees away from them, which is nearly the same; the others look alike."""
    vectors = at(0, 5, 40, 0, 90)
    groups = mine(photos_of(5, sha256=["a", "b", "c", "a", "d"]), vectors, Rule(k=2, duplicates_above=0.99))
    assert groups.indices.tolist() == [[2, 4], [2, 4], [1, 4], [2, 4], [2, 1]]  # of a set only the nearest
    np.testing.assert_allclose(groups.scores[0], cosine(40, 90), atol=1e-6)
    assert groups.copies == {0: [3], 3: [0]}
    assert {p: [other for other, _ in near] for p, near in groups.near_duplicates.items()} == {0: [1], 1: [0], 3: [1]}
    assert groups.near_duplicates[0][0][1] == pytest.approx(cosine(5)[0], abs=1e-6)


def test_a_group_names_files():
    groups = mine(photos_of(3), at(0, 30, 90), Rule(k=1))
    first = next(iter(groups))
    assert (first.file, first.near_duplicates, first.copies) == ("/photos/0.jpg", [], [])
    assert first.look_alikes == [Other("/photos/1.jpg", pytest.approx(cosine(30)[0], abs=1e-6))]


def test_by_caption_a_photo_is_as_near_as_its_best_caption():
    """Photo 1 has one caption that fits photo 0 perfectly and one that does not; photo 2 has two fair ones."""
    photos, vectors = photos_of(4), at(0, 80, 120, 300)
    captions = Captions(at(3, 80, 0, 120, 20, 25), np.array([0, 0, 1, 1, 2, 2]))  # photo 3 has none
    groups = mine(photos, vectors, Rule(by="caption", k=3), captions)
    assert groups.indices[0].tolist() == [1, 2, -1]  # its own perfect caption does not count, nor does photo 3
    np.testing.assert_allclose(groups.scores[0, :2], cosine(0, 20), atol=1e-6)
    assert groups.indices[3].tolist() == [1, 0, 2]
    np.testing.assert_allclose(groups.scores[3], cosine(60, 63, 80), atol=1e-6)


def test_captions_that_say_nothing_and_photos_known_by_none():
    vectors = at(0, 100, 200)
    vectors[2] = 0
    captions = Captions(np.concatenate([np.zeros((1, 2), np.float32), at(100)]), np.array([0, 1]))
    groups = mine(photos_of(3), vectors, Rule(by="caption", k=2), captions)
    assert groups.indices.tolist() == [[1, -1], [-1, -1], [-1, -1]]
    np.testing.assert_allclose(groups.scores[0], [*cosine(100), 0], atol=1e-6)


def naive(photos, vectors, rule, captions=None):
    """Position -> look-alikes and near-duplicates, by loops over all pairs in double precision."""

    def similar(a, b):
        a, b = a.astype(float), b.astype(float)
        return float(a @ b / np.sqrt((a @ a) * (b @ b)))

    result, near = {}, {}
    for p, photo in enumerate(photos):
        done, others = {photo.sha256}, []
        for q, other in enumerate(photos):
            if other.split != photo.split or other.sha256 in done:
                continue
            done.add(other.sha256)
            if similar(vectors[p], vectors[q]) > rule.duplicates_above:
                near.setdefault(p, []).append(q)
                continue
            if rule.by == "caption":
                same = [i for i, o in enumerate(photos) if (o.sha256, o.split) == (other.sha256, other.split)]
                fits = [similar(vectors[p], v) for v, of in zip(*captions, strict=True) if of in same]
                others += [(-max(fits), q)] if fits else []
            elif rule.metric == "euclidean":
                others.append((float(np.linalg.norm(vectors[p] - vectors[q])), q))
            else:
                others.append((-similar(vectors[p], vectors[q]), q))
        result[p] = [q for _, q in sorted(others)]
    for p, others in result.items():  # nothing of the photo's own set, and one of each other set
        passed, chosen = set_of(p, near), []
        for q in others:
            if q not in passed:
                chosen.append(q)
                passed |= set_of(q, near)
        result[p] = chosen[: rule.k]
    return result, near


def set_of(photo, near):
    members, waiting = {photo}, [photo]
    while waiting:
        new = set(near.get(waiting.pop(), [])) - members
        members |= new
        waiting += new
    return members


@pytest.mark.parametrize(
    "rule",
    [Rule(k=4, duplicates_above=0.9), Rule(metric="euclidean", k=4, duplicates_above=0.9), Rule("caption", k=4)],
    ids=["cosine", "euclidean", "caption"],
)
def test_groups_are_those_of_a_loop(rule):
    draw = np.random.default_rng(5)
    photos = photos_of(
        60, splits=("train", "val", "train"), sha256=[f"{i - i % 9 if i % 9 == 3 else i}" for i in range(60)]
    )
    vectors = draw.standard_normal((60, 6)).astype(np.float32)
    vectors[20:30] = vectors[10:20] + 0.05 * draw.standard_normal((10, 6)).astype(np.float32)
    for p, photo in enumerate(photos):  # the same bytes, the same vector
        vectors[p] = vectors[int(photo.sha256)]
    captions = None
    if rule.by == "caption":
        captions = Captions(draw.standard_normal((90, 6)).astype(np.float32), np.sort(draw.integers(0, 60, 90)))
    groups = mine(photos, vectors, rule, captions)
    result, near = naive(photos, vectors, rule, captions and (captions.vectors, captions.photo))
    assert {p: [q for q in row if q >= 0] for p, row in enumerate(groups.indices.tolist())} == result
    assert {p: sorted(q for q, _ in others) for p, others in groups.near_duplicates.items()} == near
    assert rule.by == "caption" or near


def test_photos_of_another_split_never_appear():
    vectors = np.random.default_rng(0).standard_normal((40, 3)).astype(np.float32)
    vectors[20:] = vectors[:20]  # the nearest is always in the other split
    photos = [Photo(f"{i}.jpg", f"{i % 20}", i, "train" if i < 20 else "test") for i in range(40)]
    groups = mine(photos, vectors, Rule(k=30))
    assert not groups.copies
    for p, row in enumerate(groups.indices):
        others = row[row >= 0]
        assert len(others) == 19
        assert {photos[q].split for q in others} == {photos[p].split}


def test_more_near_duplicates_than_were_looked_for_at_first():
    vectors = at(*np.linspace(0, 1, 60), 60, 70, 80)
    groups = mine(photos_of(63), vectors, Rule(k=2, duplicates_above=0.99))
    assert [len(groups.near_duplicates[p]) for p in range(60)] == [59] * 60
    assert groups.indices[:60].tolist() == [[60, 61]] * 60


@pytest.mark.parametrize("rule", [Rule(k=5, duplicates_above=0.9), Rule(metric="euclidean", k=5), Rule("caption", k=5)])
def test_one_photo_and_photos_that_are_all_the_same_have_no_look_alikes(rule):
    for count in (0, 1, 4):
        captions = Captions(at(*[0] * count), np.arange(count)) if rule.by == "caption" else None
        groups = mine(photos_of(count, sha256=["same"] * count), at(*[0] * count), rule, captions)
        assert groups.indices.shape == (count, 5)
        assert (groups.indices == -1).all()
        assert len(groups.copies) == (count if count > 1 else 0)


def test_a_vector_that_is_not_finite_names_its_photo():
    vectors = at(0, 10, 20)
    vectors[1, 0] = np.nan
    with pytest.raises(UserError, match=r"/photos/1\.jpg"):
        mine(photos_of(3), vectors, Rule())


def test_an_index_takes_over_where_there_are_very_many(monkeypatch):
    draw = np.random.default_rng(0)
    centres = draw.standard_normal((60, 16)) * 3
    vectors = (centres[draw.integers(0, 60, 3000)] + draw.standard_normal((3000, 16))).astype(np.float32)
    exact = mine(photos_of(3000), vectors, Rule(k=5))
    assert exact.recall is None
    monkeypatch.setattr(mining, "LARGE", 1000)
    groups = mine(photos_of(3000), vectors, Rule(k=5))
    agree = np.mean(
        [len(set(a) & set(b)) / 5 for a, b in zip(exact.indices.tolist(), groups.indices.tolist(), strict=True)]
    )
    assert groups.recall >= 0.95
    assert agree == pytest.approx(groups.recall, abs=0.03)
    monkeypatch.setattr(mining, "has_index", lambda: False)  # faiss is installed apart
    assert mine(photos_of(3000), vectors, Rule(k=5)).indices.tolist() == exact.indices.tolist()


# The file


@pytest.fixture
def groups():
    rule = Rule(k=2, duplicates_above=0.99, retriever="word", retriever_sha256="12ab")
    result = mine(photos_of(5, sha256=["a", "b", "c", "a", "d"]), at(0, 5, 40, 0, 90), rule)
    result.failed = {"/photos/bad.jpg": "the file is empty"}
    return result


@pytest.mark.parametrize("name", ["groups.json", "groups.json.gz"])
def test_what_is_saved_is_what_is_loaded(groups, tmp_path, name):
    save(groups, tmp_path / name)
    again = load(tmp_path / name)
    for part in ("rule", "photos", "copies", "failed"):
        assert getattr(again, part) == getattr(groups, part)
    np.testing.assert_array_equal(again.indices, groups.indices)
    np.testing.assert_allclose(again.scores, groups.scores, atol=1e-6)
    assert again.near_duplicates.keys() == groups.near_duplicates.keys()
    assert again.sets() == groups.sets()
    assert (tmp_path / name).read_bytes().startswith(b"\x1f\x8b") == name.endswith(".gz")


def test_photos_beside_the_file_move_with_it(tmp_path):
    before = mine([Photo(str(tmp_path / "old" / f"{i}.jpg"), f"{i}", i) for i in range(2)], at(0, 50), Rule())
    save(before, tmp_path / "old" / "groups.json")
    (tmp_path / "old").rename(tmp_path / "new")
    assert [photo.file for photo in load(tmp_path / "new" / "groups.json").photos] == [
        str(tmp_path / "new" / f"{i}.jpg") for i in range(2)
    ]


def change(content, path, value):
    *way, last = path
    for step in way:
        content = content[step]
    content[last] = value


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["photos", 1, "sha256"], "other", "not those that were mined"),
        (["photos", 1, "id"], 7, "not those that were mined"),
        (["count"], 4, "not those that were mined"),
        (["photos", 1], "text", "photo number 2 is damaged"),
        (["photos", 1, "file"], None, "photo number 2 is damaged"),
        (["photos", 1, "look_alikes"], [[5, 0.5]], "photo number 2 .* damaged look-alikes"),
        (["photos", 1, "look_alikes"], [[-1, 0.5]], "damaged look-alikes"),
        (["photos", 1, "look_alikes"], [[0, float("nan")]], "damaged look-alikes"),
        (["photos", 1, "look_alikes"], [[0, "x"]], "damaged look-alikes"),
        (["photos", 1, "look_alikes"], [[0, 0.1], [2, 0.1], [4, 0.1]], "damaged look-alikes"),
        (["photos", 1, "look_alikes"], 3, "damaged look-alikes"),
        (["photos", 1, "near_duplicates"], [[0]], "damaged look-alikes"),
        (["photos", 1, "copies"], [1.5], "damaged look-alikes"),
        (["rule", "k"], "two", '"k" of the rule'),
        (["rule", "k"], 0, "does not know"),
        (["rule", "by"], "smell", "does not know"),
        (["rule", "alike_above"], "high", '"alike_above" of the rule'),
        (["rule", "alike_above"], float("nan"), '"alike_above" of the rule'),
        (["rule"], [], "not a groups file"),
        (["photos"], {}, "not a groups file"),
        (["format"], 99, "format 99"),
        (["failed"], [], '"failed" is missing'),
        (["photos", 1, "id"], True, "photo number 2 is damaged"),
    ],
)
def test_damage_is_one_sentence(groups, tmp_path, path, value, message):
    file = tmp_path / "groups.json"
    save(groups, file)
    content = json.loads(file.read_text())
    change(content, path, value)
    file.write_text(json.dumps(content))
    with pytest.raises(UserError, match=message):
        load(file)


def test_near_duplicates_are_known_by_their_looks_and_not_by_what_they_are_about():
    """Two different bathrooms are about the same; a photo that was saved anew looks the same."""
    about = np.array([[1, 0], [1, 0.01], [0.9, 0.1], [0, 1]], np.float32)
    looks = np.array([[1, 0, 0], [0, 1, 0], [0.999, 0.01, 0], [0, 0, 1]], np.float32)
    photos = [Photo(str(i), str(i), i, "") for i in range(4)]
    groups = mine(photos, about, Rule("image", "cosine", 2, 0.95), appearance=looks)
    first = next(iter(groups))
    assert [other.file for other in first.near_duplicates] == ["2"]
    assert [other.file for other in first.look_alikes] == ["1", "3"]


def test_sets_are_what_is_joined_by_copies_and_near_duplicates():
    """0 and 3 are copies, 1 is near them and 4 near 1; 2 and 6 are copies and nothing else; 5 is alone."""
    groups = mine(
        photos_of(7, sha256=["a", "b", "c", "a", "d", "e", "c"]),
        at(0, 5, 90, 0, 10, 180, 90),
        Rule(k=2, duplicates_above=cosine(6)[0]),
    )
    assert [(one.positions, one.exact, one.kind) for one in groups.sets()] == [
        ([0, 1, 3, 4], False, "near-duplicates"),
        ([2, 6], True, "exact copies"),
    ]
    assert groups.rows() == [[0, 1, 3, 4], [2, 6], [5]]
    row = groups.rows()[0]
    assert groups.near_duplicate_of(3, row) is None
    assert groups.near_duplicate_of(4, row) == pytest.approx(cosine(5)[0], abs=1e-6)  # of 1: it is none of the first
    assert groups.indices[0].tolist() == [2, 5]
    assert groups.indices[5].tolist() == [2, 4]


def test_only_what_is_similar_enough_stays():
    groups = mine(photos_of(4), at(0, 30, 70, 170), Rule(k=3))
    groups.keep_above(float(cosine(45)[0]))
    assert groups.indices.tolist() == [[1, -1, -1], [0, 2, -1], [1, -1, -1], [-1, -1, -1]]
    assert groups.rule.alike_above == pytest.approx(cosine(45)[0])
    assert [len(group.look_alikes) for group in groups] == [1, 2, 1, 0]
