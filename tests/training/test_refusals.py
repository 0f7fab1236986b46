"""Wrong requests to `tellapart train`: exit code 2, one line that names the field or file, and nothing written."""

import pytest

from detectors import tiny_yolox
from tellapart.training.validation import RETRIEVAL_METRICS

SINGLE = ["--objective.policy={samples: 1, baseline: greedy}", "--objective.rewards.balance=true"]
RUNS = {  # what is begun, before the mistake
    "captioner": [],
    "policy": ["--objective.name=policy_gradient", "--validation.metric=last"],
    **{
        name: [f"--retriever={name}", "--objective.name=info_nce", "--validation.metric=R@1", "--model={}"]
        for name in ("word_tower", "text_tower", "vse", "dual", "parrot")
    },
}
RUNS["text_tower"].append("--data.captions_per_photo=2")
MISTAKES = [
    # fields, their values and ranges
    ("captioner", ["--nonsense", "1"], "nonsense"),
    ("captioner", ["--optim.nonsense", "1"], "nonsense"),
    ("captioner", ["--optim.lr", "quick"], "optim.lr"),
    ("captioner", ["--batch_size", "2.5"], "batch_size"),
    ("captioner", ["--optim.schedule", "zigzag"], "optim.schedule"),
    ("captioner", ["--batch_size", "0"], "batch_size must be at least 1, not 0"),
    ("captioner", ["--epochs", "0"], "epochs must be at least 1, not 0"),
    ("captioner", ["--log_steps", "0"], "log_steps must be at least 1"),
    ("captioner", ["--optim.accumulate", "0"], "optim.accumulate must be at least 1"),
    ("captioner", ["--data.captions_per_photo", "0"], "data.captions_per_photo must be at least 1"),
    ("captioner", ["--seed", "-1"], "seed must be at least 0, not -1"),
    ("captioner", ["--seed=9223372036854775808"], "seed must be at most 9223372036854775807, not 9223372036854775808."),
    ("captioner", ["--objective.label_smoothing=1.5"], "objective.label_smoothing must be at most 1, not 1.5."),
    ("captioner", ["--optim.lr=-1"], "optim.lr must be at least 0, not -1.0."),
    ("captioner", ["--optim.betas=[2, 3]"], "optim.betas must be at most 1, not 2.0."),
    ("captioner", ["--optim.final_lr_ratio=1.5"], "optim.final_lr_ratio must be at most 1, not 1.5."),
    ("captioner", ["--optim.warmup=-3"], "optim.warmup must be at least 0, not -3."),
    ("captioner", ["--data.limit=-5"], "data.limit must be at least 0, not -5."),
    ("captioner", ["--data.views=-1"], "data.views must be at least 0, not -1."),
    ("captioner", ["--validation.photos=-1"], "validation.photos must be at least 0, not -1."),
    ("captioner", ["--validation.every=-1"], "validation.every must be at least 0, not -1.0."),
    ("captioner", ["--validation.watch.unusual_order=2"], "validation.watch.unusual_order must be at most 1, not 2.0."),
    # networks
    ("captioner", ["--captioner", "parrot"], "there is no captioner 'parrot'; there are transformer"),
    ("captioner", ["--model", "{wings: 2}"], "model.wings: transformer has no such setting; it has "),
    ("captioner", ["--model", "{width: 30, heads: 4}"], "model: transformer cannot be built with these settings"),
    ("captioner", ["--model", "{heads: 0}"], "model.heads must be a whole number from 1 to 65536, not 0."),
    ("captioner", ["--model", "{width: -4}"], "model.width must be a whole number from 1 to 65536, not -4."),
    ("captioner", ["--model", "{dropout: 2}"], "model.dropout must be a number from 0 to 1, not 2."),
    ("captioner", ["--encoder.name", "eye"], "there is no encoder 'eye'"),
    ("captioner", ["--init_from", "nowhere"], "there is no model 'nowhere'"),
    ("captioner", ["--device", "abacus"], "device 'abacus' cannot be used here"),
    ("captioner", ["--device", "meta"], "device 'meta' cannot be used here"),
    ("parrot", [], "there is no retriever 'parrot'; there are word_tower, dual, vse, text_tower."),
    ("vse", ["--model={wings: 2}"], "model.wings: vse has no such setting; it has linear_captions, size, word_size."),
    ("dual", ["--model={wings: 2}"], "model.wings: dual has no such setting; it has dropout, hidden, size."),
    ("vse", ["--model={size: large}"], "model.size must be a whole number from 1 to 65536, not 'large'."),
    ("vse", ["--model={vocab_size: 7}"], "model.vocab_size: follows from the data and cannot be set."),
    ("text_tower", ["--model={feature_size: 7}"], "model.feature_size: follows from the data and cannot be set."),
    ("dual", ["--model={sentence_size: 7}"], "model.sentence_size: follows from the data and cannot be set."),
    ("vse", ["--init_from=somewhere"], "init_from: a retriever starts from fresh weights."),
    # data
    ("captioner", ["--data", "nowhere.json"], "nowhere.json: there is no such file"),
    ("captioner", ["--data.files", "[]"], "names no data"),
    ("captioner", ["--data.train_split", "monday"], "'monday'"),
    ("captioner", ["--data.val_split", "monday"], "'monday'"),
    ("captioner", ["--data.min_count", "100000"], "data.min_count: no word"),
    ("vse", ["--data.exclude=[nowhere.json]"], "nowhere.json: there is no such file."),
    ("vse", ["--data.val_split=train"], "data.train_split and data.val_split"),
    ("vse", ["--data.train_split=train+val"], "data.train_split and data.val_split"),
    ("text_tower", ["--data.captions_per_photo=3"], "data.captions_per_photo must be 2: text_tower brings two"),
    # objectives
    (
        "captioner",
        ["--objective.name=info_nce"],
        "a captioner learns by cross_entropy or policy_gradient, not by info_nce.",
    ),
    ("vse", ["--objective.name=cross_entropy"], "learns by info_nce or max_violation, not by cross_entropy."),
    ("vse", ["--objective.margin=-0.1"], "objective.margin must be at least 0, not -0.1."),
    ("captioner", ["--objective.distillation", "0.1"], "objective.distillation: the teacher is a running mean"),
    ("captioner", ["--validation.metric", "BLEU"], "validation.metric: there is no 'BLEU' here; there are loss"),
    ("captioner", ["--validation.metric=R@1"], "validation.metric: there is no 'R@1' here; there are loss, "),
    (
        "vse",
        ["--validation.metric=CIDEr-D"],
        f"there is no 'CIDEr-D' here; there are {', '.join(RETRIEVAL_METRICS)}, last.",
    ),
    # policy gradients
    ("policy", ["--objective.rewards.weights", "{cidre: 1.0}"], "there is no reward 'cidre'; there are cider_d"),
    ("policy", ["--objective.rewards.weights", "{}"], "names no reward"),
    ("policy", ["--objective.rewards.weights", "{text_rank: 1.0}"], "text_retriever: a reward needs a retriever"),
    ("policy", ["--objective.rewards.weights", "{objects: 1.0}"], "objects needs a detector, which --detector names"),
    (
        "policy",
        ["--objective.rewards.weights", "{objects: 1.0}", "--detector", "FEW"],
        "few.onnx: knows 3 classes, and objects are checked by 80.",
    ),
    (
        "policy",
        ["--objective.rewards.unbalanced", "[repetitoin]"],
        "unbalanced: there is no reward 'repetitoin'; there are",
    ),
    ("policy", ["--objective.rewards.dataset_weights", "{gd: {toy: 2.0}}"], "'gd' is none of the terms cider_d."),
    (
        "policy",
        ["--objective.rewards.dataset_weights", "{cider_d: {elsewhere: 2.0}}"],
        "no data set 'elsewhere'; there are toy_world.  For none: --objective.rewards.dataset_weights '{}'.",
    ),
    ("policy", ["--objective.policy.samples", "1"], "leave_one_out compares the captions of a photo"),
    (
        "policy",
        ["--objective.policy.sampler", "greedy"],
        "objective.policy.samples must be 1 where captions are greedy",
    ),
    ("policy", SINGLE, "objective.rewards.balance goes by how much captions of a photo differ"),
    ("policy", ["--objective.policy={baseline: best, top_q: 9}"], "a photo has 5 captions, not 9"),
    ("policy", ["--objective.policy.baseline", "greedyy"], "greedyy"),
    ("policy", ["--objective.policy.temperature", "0"], "objective.policy.temperature must be at least 0.001"),
    ("policy", ["--objective.policy={passes: two, no_repeat: 1}"], "in one pass"),
    (
        "policy",
        ["--objective.rewards.weights={geg_avg: 1.0}", "--objective.rewards.image_retriever=nowhere"],
        "no retriever",
    ),
    ("policy", ["--validation.metric", "R@1[judge]"], "there is no 'R@1[judge]' here"),
    ("policy", ["--validation.judges", "[nowhere]"], "there is no retriever 'nowhere'"),
]


@pytest.mark.parametrize(
    ("run", "mistake", "answer"), MISTAKES, ids=lambda value: " ".join(value) if isinstance(value, list) else None
)
def test_a_wrong_request_is_answered_in_one_line(tellapart, small_world, tmp_path, run, mistake, answer):
    few = tmp_path / "few.onnx"
    if "FEW" in mistake:
        tiny_yolox.write(few, tiny_yolox.nothing(classes=3))
    arguments = [*RUNS[run], *(str(few) if word == "FEW" else word for word in mistake)]
    code, printed, err = tellapart("train", small_world / "recipe.yaml", "--out", tmp_path / "run", *arguments)
    assert (code, printed) == (2, "")
    *_, last = err.splitlines()
    assert last.startswith("tellapart train: ")
    assert answer in last
    assert not list(tmp_path.glob("run/*.safetensors"))
