"""Two streams, a language model with sub-words, and clips by two encoders: each does all that the others do."""

import json
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from capscore.errors import UserError
from support.subwords import byte_pairs
from tellapart.captioners import CAPTIONERS
from tellapart.data import examples, tokenizers
from tellapart.data.tokenizers import SubwordTokenizer
from tellapart.encoders import ENCODERS
from training.runs import assert_same_tensors, tensors_of, train
from training.test_distributed import two_processes

PLUGIN = Path(__file__).parents[1] / "support" / "tenants.py"
SETTINGS = (
    "--optim.schedule=constant",
    "--optim.accumulate=1",
    "--optim.warmup=0",
    "--objective.scheduled_sampling.start=-1",
    "--data.limit=24",
    "--max_steps=6",
    "--validation.every=50",
    "--validation.photos=4",
    "--validation.metric=last",
)


@pytest.fixture(scope="module", autouse=True)
def registered():
    """In the table while this module runs."""
    sys.path.insert(0, str(PLUGIN.parent))
    import tenants

    yield tenants
    for name in ("two_streams", "language_model"):
        CAPTIONERS.pop(name)
    for name in ("frames", "motion"):
        ENCODERS.pop(name)
    sys.modules.pop("tenants")
    sys.path.remove(str(PLUGIN.parent))


@pytest.fixture(scope="module")
def language_model(small_world):
    """A language model as transformers saves it, with its tokenizer; padding is its end."""
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = small_world / "lm"
    told = examples.read(small_world / "toy" / "captions.json").examples
    tokenizer = byte_pairs([text for example in told for text in example.captions], vocab_size=300)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    ids = {"eos_token_id": tokenizer.eos, "bos_token_id": tokenizer.eos, "pad_token_id": tokenizer.eos}
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), max_position_embeddings=128, tie_word_embeddings=True, **sizes, **ids
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer._tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def without_encoder(small_world):
    """The small world's recipe, but for what makes its features."""
    recipe = yaml.safe_load((small_world / "recipe.yaml").read_text())
    del recipe["encoder"], recipe["model"]
    file = small_world / "tenants.yaml"
    file.write_text(yaml.safe_dump(recipe))
    return file


@pytest.fixture(scope="module")
def clips(small_world):
    """Two dozen clips of a dot that moves, with uneven times; a data file."""
    folder, draw, records = small_world / "clips", np.random.default_rng(0), []
    folder.mkdir()
    for number in range(24):
        frames = np.zeros((9, 16, 16, 3), np.uint8)
        colour, right = number % 3, number % 2
        for moment in range(9):
            across = moment + 3 if right else 12 - moment
            frames[moment, 4:12, across : across + 3, colour] = 255
        np.savez(folder / f"{number}.clip", frames=frames, times=np.sort(draw.random(9)))
        (folder / f"{number}.clip.npz").rename(folder / f"{number}.clip")
        text = f"a {('red', 'green', 'blue')[colour]} dot moves to the {'right' if right else 'left'}"
        captions = [text, text.replace("a ", "the ", 1), text.replace("moves", "goes")]
        split = "val" if number >= 20 else "train"
        records.append({"id": number, "file": f"{number}.clip", "split": split, "captions": captions})
    (folder / "clips.json").write_text(json.dumps({"dataset": "dots", "videos": records}))
    return folder / "clips.json"


@pytest.fixture(scope="module", params=["two_streams", "language_model", "clipcap", "clips"])
def tenant(request, without_encoder, language_model, clips):
    """The recipe's arguments of one of them."""
    name, looks, network = request.param, {"image_size": 64, "grid": 2}, {"width": 32}
    inputs, more = {"regions": looks}, []
    if name == "clipcap":  # ours: a frozen language model with LoRA, which the user lets models read
        network = {"language_model": str(language_model), "mapper": "transformer", "image_tokens": 0, "lora_rank": 2}
        network |= {"prefix": 2, "mapper_layers": 1, "mapper_heads": 2}
        more = ["--data.max_words=24", "--data.by_length=true"]
    elif name == "clips":
        inputs, more = {"regions": {"name": "frames"}, "attributes": {"name": "motion"}}, [f"--data={clips}"]
    elif name == "two_streams":
        inputs["attributes"] = {"name": "efficientnet_lite0", "image_size": 64, "grid": 1}
    else:
        more = [f"--data.tokenizer={language_model}", "--data.max_words=24"]
    captioner = "two_streams" if name == "clips" else name
    given = [f"--captioner={captioner}", f"--model={network}", f"--inputs={inputs}", *SETTINGS, *more]
    with pytest.MonkeyPatch.context() as patch:
        if name == "clipcap":
            patch.setenv("TELLAPART_ENCODERS", str(language_model))
        yield [str(without_encoder), *given]


@pytest.fixture(scope="module")
def trained(tenant, tmp_path_factory):
    return train(*at(tenant, tmp_path_factory.mktemp("tenant") / "run")).folder


def at(tenant, out):
    """The recipe, the folder and the changes of a tenant's run."""
    return tenant[0], out, *tenant[1:]


def test_a_run_that_stopped_goes_on_exactly(tenant, trained, tmp_path):
    train(*at(tenant, tmp_path / "run"), "--max_steps=3")
    train(*at(tenant, tmp_path / "run"), resume=True)
    assert_same_tensors(trained, tmp_path / "run", ["last"])
    assert not {"lm.model.embed_tokens.weight", "lm.lm_head.weight"} <= tensors_of(trained, "best").keys()  # tied


@pytest.mark.slow
@pytest.mark.parametrize("tenant", ["language_model"], indirect=True)  # all are stopped in the test before
def test_a_run_that_was_killed_goes_on_exactly(tenant, trained, tmp_path, start_tellapart):
    command = ["train", *tenant, "--out", tmp_path / "run", "--resume", "--plugin", PLUGIN]
    process = start_tellapart(*command)
    log = tmp_path / "run" / "log.jsonl"
    while process.poll() is None and not (log.exists() and log.read_bytes().count(b"\n") >= 2):
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    train(*at(tenant, tmp_path / "run"), resume=True)
    assert_same_tensors(trained, tmp_path / "run", ["last"])


@pytest.mark.slow
@pytest.mark.parametrize("tenant", ["clipcap", "clips"], indirect=True)  # a frozen part; two streams
def test_two_processes_are_one(tenant, trained, tmp_path):
    arguments = ("-m", "tellapart", "train", *tenant, f"--out={tmp_path / 'run'}", "--plugin", PLUGIN)
    for code, _, err in two_processes(*arguments):
        assert code == 0, err
    alone, together = tensors_of(trained), tensors_of(tmp_path / "run")
    for name in alone:
        if name.startswith("model/"):
            torch.testing.assert_close(together[name], alone[name], atol=1e-4, rtol=0)


@pytest.fixture(scope="module")
def listener(tenant, without_encoder, clips, small_retriever, tmp_path_factory):
    """A retriever of the tenant's items: of photos, or of clips."""
    if f"--data={clips}" not in tenant:
        return small_retriever
    out = tmp_path_factory.mktemp("listener") / "run"
    given = ["--retriever=word_tower", "--model={size: 16, word_size: 16, channels: 16}", "--encoder.name=frames"]
    given += [f"--data={clips}", "--objective.name=info_nce", "--validation.metric=R@1", "--max_steps=6"]
    return train(without_encoder, out, *given).folder


def items_of(tenant, clips, small_world):
    if f"--data={clips}" in tenant:
        return sorted(clips.parent.glob("*.clip"))[:6]
    return sorted((small_world / "toy").rglob("*.png"))[:6]


def test_rewards_of_words_and_of_retrievers_teach_it(tenant, trained, listener, tmp_path):
    names = "cider_d ld ld_diff gd geg_avg reference_gap faithful repetition different"
    terms = dict.fromkeys(names.split(), 1.0)
    outcome = train(
        *at(tenant, tmp_path / "run"),
        f"--init_from={trained}",
        "--objective.name=policy_gradient",
        f"--objective.rewards.weights={terms}",
        f"--objective.rewards.image_retriever={listener}",
        "--objective.policy={samples: 3, references: 1}",
        "--max_steps=2",
    )
    assert outcome.position.step == 2
    before, after = tensors_of(trained), tensors_of(tmp_path / "run")
    assert any(not after[name].equal(before[name]) for name in after if name.startswith("model/"))


def test_it_captions_photos_alone_among_others_and_together_with_itself(
    tenant, trained, small_world, clips, listener, tellapart, own_cache
):
    photos = items_of(tenant, clips, small_world)
    alone = tellapart("caption", *photos, "--model", trained, "--device", "cpu")
    assert alone[0] == 0
    captions = [line.split("\t")[1] for line in alone[1].splitlines()]
    assert len(captions) == 6
    together = tellapart("caption", *photos, "--model", f"{trained}+{trained}", "--device", "cpu")
    assert together[1] == alone[1]
    among = tellapart("caption", *photos, "--model", trained, "--among", *photos, "--retriever", listener)
    assert among[0] == 0, among[2]
    assert len(among[1].splitlines()) == 6


def test_the_padding_of_a_language_model_may_be_its_end(language_model):
    tokenizer = tokenizers.of_language_model(language_model)
    assert isinstance(tokenizer, SubwordTokenizer)
    assert tokenizer.pad == tokenizer.eos


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--captioner=up_down", "--inputs={regions: {}, colours: {}}"], "up_down takes no such stream"),
        (["--captioner=two_streams", "--inputs={regions: {}}"], "takes a stream 'attributes' too"),
        (["--inputs={regions: {}}", "--encoder.grid=4"], "encoder is short for inputs"),
        (["--data.tokenizer=nowhere"], "there is no folder nowhere"),
        (["--encoder.name=frames"], "has photos; this recipe's encoders take clips"),
    ],
    ids=str,
)
def test_wrong_inputs_are_one_sentence(without_encoder, tmp_path, arguments, said):
    with pytest.raises(UserError, match=said):
        train(without_encoder, tmp_path / "run", *arguments)
