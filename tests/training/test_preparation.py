"""What is wrong with a request is said before photos are looked at, and leaves nothing behind."""

import json
import re
import shlex
from contextlib import suppress

import pytest
import torch

from capscore import meteor
from capscore.errors import UserError
from tellapart.captioners import CAPTIONERS
from tellapart.commands.train import parse
from tellapart.data.batches import CaptionedPhotos
from tellapart.data.tokenizers import WordTokenizer
from tellapart.protocols.captioners import sizes_of
from tellapart.retrievers import RETRIEVERS
from tellapart.rewards.context import RewardContext
from tellapart.rewards.registry import REWARDS, needs_of
from tellapart.rewards.words import WordView
from tellapart.training.build import run
from tellapart.training.preparation import _require_buildable, gather, sources_of, split

TAGGING = ["--objective.name", "tagging", "--validation.metric", "mAP", "--model", '{"words": 12}']
POLICY = ("--objective.name", "policy_gradient")


@pytest.fixture
def refused(tellapart, small_world, tmp_path):
    """What a wrong request is answered with: nothing was computed, and nothing is left."""

    def ask(*arguments, out=tmp_path / "runs" / "new" / "run"):
        before = sorted(tmp_path.rglob("*"))
        given = ("--out", out, "--data.features", tmp_path / "features")
        code, printed, err = tellapart("train", small_world / "recipe.yaml", *given, *arguments)
        assert (code, printed, err.count("\n")) == (2, "", 1), err
        assert sorted(tmp_path.rglob("*")) == before
        return err

    return ask


WRONG = {
    "--captioner parrot": "there is no captioner 'parrot'",
    "--retriever dog --objective.name info_nce": "there is no retriever 'dog'",
    "--model '{wings: 2}'": "model.wings: transformer has no such setting",
    "--model '{width: 30, heads: 4}'": "not 30 with 4 heads",
    "--model '{vocab_size: 7}'": "model.vocab_size: follows from the data",
    "--encoder.name eye": "there is no encoder 'eye'",
    "--init_from nowhere": "there is no model 'nowhere'",
    "--init_from plain": "init_from",
    "--device abacus": "device 'abacus' cannot be used here",
    "--validation.metric BLEU": "validation.metric: there is no 'BLEU' here",
    "--validation.metric length": "validation.metric: length is neither better nor worse",
    "--validation.judges [nowhere]": "there is no retriever 'nowhere'",
    "--data.val_split monday": "in the split 'monday'",
    "--data.train_split monday": "in the split 'monday'",
    "--data.min_count 100000": "data.min_count: no word",
    "policy weights={cidre: 1.0}": "there is no reward 'cidre'",
    "policy dataset_weights={cider_d: {nowhere: 2.0}}": "there is no data set 'nowhere'",
    "policy weights={geg_avg: 1.0} image_retriever=nowhere": "there is no retriever 'nowhere'",
    "policy weights={text_rank: 1.0} text_retriever=word": "text_retriever: word compares captions with photos",
    "policy weights={geg_avg: 1.0} look_alikes=nowhere.json": "nowhere.json: there is no such file",
    "--objective.sentence_weight 1": "objective.sentence_weight: only tagging predicts sentences",
    "tagging": "sentence_weight needs a run of retrievers/text",
    "tagging text_retriever=word": "objective.rewards.text_retriever: word compares captions with photos",
}


def arguments_of(text):
    """`policy` and `tagging` stand for the arguments of such a run, NAME=VALUE for its rewards."""
    kind, _, rest = text.partition(" ")
    if kind not in ("policy", "tagging"):
        return shlex.split(text)
    rewards = re.findall(r"(\w+)=(\{.*?\}+|\S+)", rest)
    tagging = [*TAGGING, "--objective.sentence_weight", "1"]
    return [*(POLICY if kind == "policy" else tagging), *(f"--objective.rewards.{n}={v}" for n, v in rewards)]


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_name_is_found_before_features_are_computed_and_leaves_no_folder(refused, text):
    assert WRONG[text] in refused(*arguments_of(text))


def test_a_second_data_file_that_is_not_there_is_found_before_photos_of_the_first_are_looked_at(refused, small_world):
    assert "nowhere.json: there is no such file" in refused(
        "--data", small_world / "toy" / "captions.json", "nowhere.json"
    )


def test_a_folder_that_holds_a_run_does_not_hide_what_is_wrong_with_a_request(
    refused, tellapart, small_world, uninterrupted
):
    assert "there is no captioner 'parrot'" in refused("--captioner", "parrot", out=uninterrupted)
    assert "holds a run already" in refused(out=uninterrupted)


def test_a_start_that_fails_late_takes_back_what_it_wrote(tmp_path):
    """That photos cannot be read is not known before somebody looks at them."""
    records = [
        {"id": i, "file": f"{i}.jpg", "split": split_, "captions": ["a dog runs"]}
        for i, split_ in enumerate(("train", "val"))
    ]
    (tmp_path / "data.json").write_text(json.dumps({"dataset": "gone", "images": records}))
    looks = ("--data.min_count=1", f"--data.features={tmp_path / 'features'}", "--encoder={image_size: 64, grid: 2}")
    recipe, _, _ = parse(["--data", str(tmp_path / "data.json"), *looks])
    with pytest.raises(UserError, match="no data file has a photo with captions and features in the split 'train'"):
        run(recipe, tmp_path / "runs" / "run")
    assert {path.name for path in tmp_path.iterdir()} == {"data.json", "features"}


def test_what_somebody_put_into_a_folder_stays_when_a_start_fails(refused, tmp_path):
    out = tmp_path / "mine"
    out.mkdir()
    (out / "recipe.yaml").write_text("epochs: 3  # my own\n")
    refused("--captioner", "parrot", out=out)
    assert (out / "recipe.yaml").read_text() == "epochs: 3  # my own\n"


@pytest.mark.parametrize("name", [*CAPTIONERS, *RETRIEVERS])
def test_every_network_can_be_tried_without_memory(name):
    recipe, _, _ = parse([f"--{'captioner' if name in CAPTIONERS else 'retriever'}={name}"])
    before = torch.get_rng_state()
    sizes = sizes_of(name) if name in CAPTIONERS else {"regions": 1280} if RETRIEVERS[name].sees == "photos" else {}
    _require_buildable(recipe, sizes)
    assert torch.get_rng_state().equal(before)  # the weights of a run do not depend on whether it was tried


@pytest.fixture(scope="module")
def photos(small_world):
    """Eight training photos with features, and a vocabulary."""
    recipe, _, _ = parse([str(small_world / "recipe.yaml")])
    sources, _ = gather(recipe, sources_of(recipe, torch.device("cpu")))
    return split(sources, "train", 8), WordTokenizer(["a", "ball", "red"])


@pytest.mark.parametrize(
    "more",
    [[], ["--objective.rewards.ld={qualify: contrast}"], ["--objective.rewards.weight_by_closeness=true"]],
    ids=["plain", "contrast", "per_photo"],
)
@pytest.mark.parametrize("name", REWARDS)
def test_a_reward_asks_the_listener_where_it_is_said_to(small_world, photos, tmp_path, name, more):
    """So that a listener that is not there is found in time."""
    if name == "meteor" and meteor.available() is not None:
        pytest.skip("METEOR's data are not installed")
    recipe, _, _ = parse([str(small_world / "recipe.yaml"), f"--objective.rewards.weights={{{name}: 1.0}}", *more])
    config, asked = recipe.objective.rewards, []

    def load(retriever):
        asked.append(retriever)
        raise UserError("this is as far as it goes")

    training, words = photos
    data, here = CaptionedPhotos(training, words, 20), torch.device("cpu")
    material = RewardContext(config, training, data, WordView(words, words), features=tmp_path, device=here, load=load)
    with suppress(UserError):
        REWARDS[name].build(material)
    assert (config.image_retriever in asked) == ("image_retriever" in needs_of(config))
