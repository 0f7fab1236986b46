"""Wrong requests to `tellapart train`: exit code 2 and one line, before photos are looked at, and nothing is left."""

import json
import shlex
from contextlib import suppress

import pytest
import torch

from capscore import meteor
from capscore.errors import UserError
from detectors import tiny_yolox
from rewards.captions import context
from tellapart.captioners import CAPTIONERS
from tellapart.data.tokenizers import WordTokenizer
from tellapart.protocols.captioners import sizes_of
from tellapart.retrievers import RETRIEVERS
from tellapart.rewards.registry import REWARDS, needs_of
from tellapart.training.preparation import _require_buildable, sources_of, split
from tellapart.training.validation import RETRIEVAL_METRICS
from training.runs import asked, gathered, train

RUNS = {  # what is begun, before the mistake
    "captioner": "",
    "policy": "--objective.name=policy_gradient --validation.metric=last ",
    "tagging": "--objective.name=tagging --validation.metric=mAP --model='{words: 12}' --objective.sentence_weight=1 ",
    **{
        name: f"--retriever={name} --objective.name=info_nce --validation.metric=R@1 --model={{}} "
        for name in ("word_tower", "text_tower", "vse", "dual", "parrot")
    },
}
RUNS["text_tower"] += "--data.captions_per_photo=2 "
REWARDED, POLICY = "--objective.rewards.weights=", "--objective.policy"
MISTAKES = {
    "captioner": {
        # fields, their values and ranges
        "--nonsense 1": "nonsense",
        "--optim.nonsense 1": "nonsense",
        "--optim.lr quick": "optim.lr",
        "--batch_size 2.5": "batch_size",
        "--optim.schedule zigzag": "optim.schedule",
        "--batch_size 0": "batch_size must be at least 1, not 0",
        "--seed -1": "seed must be at least 0, not -1",
        "--seed=9223372036854775808": "seed must be at most 9223372036854775807, not 9223372036854775808.",
        "--objective.label_smoothing=1.5": "objective.label_smoothing must be at most 1, not 1.5.",
        "--optim.lr=-1": "optim.lr must be at least 0, not -1.0.",
        "--optim.betas='[2, 3]'": "optim.betas must be at most 1, not 2.0.",
        "--optim.warmup=-3": "optim.warmup must be at least 0, not -3.",
        # networks
        "--captioner parrot": "there is no captioner 'parrot'; there are transformer",
        "--model '{wings: 2}'": "model.wings: transformer has no such setting; it has ",
        "--model '{width: 30, heads: 4}'": "model: transformer cannot be built with these settings",
        "--model '{heads: 0}'": "model.heads must be a whole number from 1 to 65536, not 0.",
        "--model '{width: -4}'": "model.width must be a whole number from 1 to 65536, not -4.",
        "--model '{dropout: 2}'": "model.dropout must be a number from 0 to 1, not 2.",
        "--model '{vocab_size: 7}'": "model.vocab_size: follows from the data and cannot be set.",
        "--encoder.name eye": "there is no encoder 'eye'",
        "--init_from nowhere": "there is no model 'nowhere'",
        "--init_from plain": "init_from",
        "--device abacus": "device 'abacus' cannot be used here",
        "--device meta": "device 'meta' cannot be used here",
        # data
        "--data nowhere.json": "nowhere.json: there is no such file",
        "--data WORLD nowhere.json": "nowhere.json: there is no such file",
        "--data.files '[]'": "names no data",
        "--data.train_split monday": "in the split 'monday'",
        "--data.val_split monday": "in the split 'monday'",
        "--data.val_split train": "data.train_split and data.val_split share 'train'",
        "--data.min_count 100000": "data.min_count: no word",
        "--data.repeat='{elsewhere: 3}'": "data.repeat: no data set is called 'elsewhere'; there are 'toy_world'.",
        # objectives and validation
        "--objective.name=info_nce": "a captioner learns by cross_entropy or policy_gradient, not by info_nce.",
        "--objective.distillation 0.1": "objective.distillation: the teacher is a running mean",
        "--objective.sentence_weight 1": "objective.sentence_weight: only tagging predicts sentences",
        "--validation.metric BLEU": "validation.metric: there is no 'BLEU' here; there are loss, accuracy, CIDEr-D",
        "--validation.metric=R@1": "validation.metric: there is no 'R@1' here; there are loss, ",
        "--validation.metric mBLEU": "there is no 'mBLEU' here",  # it compares several captions of a photo
        "--validation.metric Novel": "there is no 'Novel' here",  # it needs those of the training
        "--validation.metric length": "validation.metric: length is neither better nor worse",
        "--validation.metric AvgLen": "AvgLen is neither better nor worse when it grows",
        "--validation.judges '[nowhere]'": "there is no retriever 'nowhere'",
    },
    # retrievers
    "parrot": {"": "there is no retriever 'parrot'; there are word_tower, dual, vse, text_tower."},
    "vse": {
        "--model='{wings: 2}'": "model.wings: vse has no such setting; it has linear_captions, size, word_size.",
        "--model='{size: large}'": "model.size must be a whole number from 1 to 65536, not 'large'.",
        "--init_from=somewhere": "init_from: a retriever starts from fresh weights.",
        "--data.exclude='[nowhere.json]'": "nowhere.json: there is no such file.",
        "--data.train_split=train+val": "data.train_split and data.val_split",
        "--objective.name=cross_entropy": "learns by info_nce or max_violation, not by cross_entropy.",
        "--validation.metric=CIDEr-D": f"there is no 'CIDEr-D' here; there are {', '.join(RETRIEVAL_METRICS)}, last.",
    },
    "dual": {
        "--model='{wings: 2}'": "model.wings: dual has no such setting; it has dropout, hidden, size.",
        "--model='{sentence_size: 7}'": "model.sentence_size: follows from the data and cannot be set.",
    },
    "text_tower": {
        "--model='{feature_size: 7}'": "model.feature_size: follows from the data and cannot be set.",
        "--data.captions_per_photo=3": "data.captions_per_photo must be 2: text_tower brings two",
    },
    # rewards and policies
    "policy": {
        f"{REWARDED}'{{cidre: 1.0}}'": "there is no reward 'cidre'; there are cider_d",
        f"{REWARDED}'{{}}'": "names no reward",
        f"{REWARDED}'{{text_rank: 1.0}}'": "text_retriever: a reward needs a retriever",
        f"{REWARDED}'{{text_rank: 1.0}}' --objective.rewards.text_retriever=word": "word compares captions with photos",
        f"{REWARDED}'{{geg_avg: 1.0}}' --objective.rewards.image_retriever=nowhere": "there is no retriever 'nowhere'",
        f"{REWARDED}'{{geg_avg: 1.0}}' --objective.rewards.look_alikes=nowhere.json": "nowhere.json: there is no such",
        f"{REWARDED}'{{objects: 1.0}}'": "objects needs a detector, which --detector names",
        f"{REWARDED}'{{objects: 1.0}}' --detector FEW": "few.onnx: knows 3 classes, and objects are checked by 80.",
        "--objective.rewards.unbalanced '[repetitoin]'": "unbalanced: there is no reward 'repetitoin'; there are",
        "--objective.rewards.dataset_weights '{gd: {toy: 2.0}}'": "'gd' is none of the terms cider_d.",
        "--objective.rewards.dataset_weights '{cider_d: {elsewhere: 2.0}}'": (
            "no data set 'elsewhere'; there are toy_world.  For none: --objective.rewards.dataset_weights '{}'."
        ),
        f"{POLICY}.samples 1": "leave_one_out compares the captions of a photo",
        f"{POLICY}.sampler greedy": "objective.policy.samples must be 1 where captions are greedy",
        f"{POLICY}='{{samples: 1, baseline: greedy}}' --objective.rewards.balance=true": "samples must be 2 or more",
        f"{POLICY}='{{baseline: best, top_q: 9}}'": "a photo has 5 captions, not 9",
        f"{POLICY}.baseline greedyy": "greedyy",
        f"{POLICY}.temperature 0": "objective.policy.temperature must be at least 0.001",
        f"{POLICY}='{{passes: two, no_repeat: 1}}'": "in one pass",
        "--validation.metric 'R@1[judge]'": "there is no 'R@1[judge]' here",
    },
    "tagging": {
        "": "sentence_weight needs a run of retrievers/text",
        "--objective.rewards.text_retriever=word": "text_retriever: word compares captions with photos",
    },
}


@pytest.mark.parametrize(
    ("run", "mistake"), [(run, mistake) for run, mistakes in MISTAKES.items() for mistake in mistakes]
)
def test_a_wrong_request_is_answered_in_one_line(refused, small_world, tmp_path, run, mistake):
    words = {"WORLD": small_world / "toy" / "captions.json", "FEW": tmp_path / "few.onnx"}
    if "FEW" in mistake:
        tiny_yolox.write(words["FEW"], tiny_yolox.nothing(classes=3))
    assert MISTAKES[run][mistake] in refused(*(words.get(word, word) for word in shlex.split(RUNS[run] + mistake)))


def test_retrievers_of_the_wrong_kind_give_no_reward(refused, retrievers):
    listener, reader = retrievers
    policy = ("--objective.name=policy_gradient", f"{REWARDED}{{geg_avg: 1.0, text_rank: 1.0}}")
    of = "--objective.rewards"
    reads = refused(*policy, f"{of}.image_retriever={reader}", f"{of}.text_retriever={reader}")
    assert "knows photos by their references only" in reads
    sees = refused(*policy, f"{of}.image_retriever={listener}", f"{of}.text_retriever={listener}")
    assert "it must compare them with references" in sees


def test_a_folder_that_holds_a_run_does_not_hide_what_is_wrong_with_a_request(refused, uninterrupted):
    assert "there is no captioner 'parrot'" in refused("--captioner", "parrot", out=uninterrupted)
    assert "holds a run already" in refused(out=uninterrupted)


@pytest.mark.parametrize(
    ("dataset", "problem"),
    [
        ({"id": 1909, "split": "train", "captions": "a dog"}, 'image 1909: "captions" must be a list of strings'),
        ({"id": 1, "split": "test", "captions": ["a dog"]}, "'train' and 'val' (its splits: test)"),
    ],
)
def test_a_data_file_that_gives_nothing_to_learn_says_why(refused, tmp_path, dataset, problem):
    (tmp_path / "data.json").write_text(json.dumps({"images": [{"file": "a.jpg", **dataset}]}))
    assert problem in refused("--data", tmp_path / "data.json")


def test_a_start_that_fails_late_takes_back_what_it_wrote(tmp_path):
    """That photos cannot be read is not known before somebody looks at them."""
    records = [
        {"id": i, "file": f"{i}.jpg", "split": split_, "captions": ["a dog runs"]}
        for i, split_ in enumerate(("train", "val"))
    ]
    (tmp_path / "data.json").write_text(json.dumps({"dataset": "gone", "images": records}))
    (tmp_path / "recipe.yaml").write_text("data: {min_count: 1}\nencoder: {image_size: 64, grid: 2}\n")
    changes = (f"--data={tmp_path / 'data.json'}", f"--data.features={tmp_path / 'features'}")
    with pytest.raises(UserError, match="no data file has a photo with captions and features in the split 'train'"):
        train(tmp_path / "recipe.yaml", tmp_path / "runs" / "run", *changes)
    assert {path.name for path in tmp_path.iterdir()} == {"data.json", "features", "recipe.yaml"}


def test_what_somebody_put_into_a_folder_stays_when_a_start_fails(refused, tmp_path):
    out = tmp_path / "mine"
    out.mkdir()
    (out / "recipe.yaml").write_text("epochs: 3  # my own\n")
    refused("--captioner", "parrot", out=out)
    assert (out / "recipe.yaml").read_text() == "epochs: 3  # my own\n"


@pytest.mark.parametrize("name", [*CAPTIONERS, *RETRIEVERS])
def test_every_network_can_be_tried_without_memory(recipe, name):
    tried = asked(recipe, f"--{'captioner' if name in CAPTIONERS else 'retriever'}={name}", "--model={}")
    before = torch.get_rng_state()
    sizes = sizes_of(name) if name in CAPTIONERS else {"regions": 1280} if RETRIEVERS[name].sees == "photos" else {}
    _require_buildable(tried, sizes)
    assert torch.get_rng_state().equal(before)  # the weights of a run do not depend on whether it was tried


@pytest.fixture(scope="module")
def photos(recipe):
    """Eight training photos with features, and a vocabulary."""
    sources, _ = gathered(asked(recipe), sources_of(asked(recipe), torch.device("cpu")))
    return split(sources, "train", 8), WordTokenizer(["a", "ball", "red"])


@pytest.mark.parametrize(
    "more",
    [[], ["--objective.rewards.ld={qualify: contrast}"], ["--objective.rewards.weight_by_closeness=true"]],
    ids=["plain", "contrast", "per_photo"],
)
@pytest.mark.parametrize("name", REWARDS)
def test_a_reward_asks_the_listener_where_it_is_said_to(recipe, photos, tmp_path, name, more):
    """So that a listener that is not there is found in time."""
    if name == "meteor" and meteor.available() is not None:
        pytest.skip("METEOR's data are not installed")
    config, wanted = asked(recipe, f"{REWARDED}{{{name}: 1.0}}", *more).objective.rewards, []

    def load(retriever):
        wanted.append(retriever)
        raise UserError("this is as far as it goes")

    with suppress(UserError):
        REWARDS[name].build(context(config, *photos, features=tmp_path, load=load))
    assert (config.image_retriever in wanted) == ("image_retriever" in needs_of(config))
