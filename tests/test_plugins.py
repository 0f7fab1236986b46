"""Plugins that are slightly wrong: one sentence that names the plugin, at once and not after a night of training."""

import json
import sys

import numpy as np
import pytest
import torch

import tellapart
from capscore.errors import UserError
from capscore.measures import MEASURES
from support.doc_pages import PHOTOS, ROOT, blocks
from tellapart import plugins
from tellapart.captioners import CAPTIONERS
from tellapart.data.readers import READERS
from tellapart.encoders import ENCODERS
from tellapart.encoders.loading import load as load_encoder
from tellapart.models.networks import build_captioner
from tellapart.recipe import EncoderConfig
from tellapart.rewards import Reward, SampledCaptions, of_term
from tellapart.rewards.registry import REWARDS

EXTENDING = ROOT / "docs" / "extending.md"  # whose examples are plugins that are right
TABLES = (CAPTIONERS, READERS, ENCODERS, MEASURES, REWARDS)

LATER = "from __future__ import annotations\n"  # a class whose name is changed may still be named by an annotation
EXAMPLES = {block.file: LATER + block.code for block in blocks(EXTENDING) if block.file}
CAPTIONER = EXAMPLES["my_captioner.py"].replace('CAPTIONERS["gru"]', 'CAPTIONERS["gru_of_a_plugin"]')
ENCODER = EXAMPLES["my_encoder.py"].replace('ENCODERS["colours"]', 'ENCODERS["mine"]')


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Load a plugin of this code; the tables are as before after the test."""
    monkeypatch.setattr(plugins, "loaded", [])
    for table in TABLES:
        monkeypatch.setattr(table, "_lines", dict(table._lines))
        monkeypatch.setattr(table, "added", dict(table.added))

    def load(code):
        (tmp_path / "mine.py").write_text(code)
        plugins.load(str(tmp_path / "mine.py"))

    yield load
    sys.modules.pop("tellapart_plugin_mine", None)
    MEASURES.__dict__.pop("home", None)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (
            "from tellapart.rewards.registry import REWARDS, RewardEntry\nREWARDS['cider_d'] = RewardEntry('', len)",
            "reward 'cider_d' already",
        ),
        ("from tellapart.rewards.registry import REWARDS\nREWARDS['mine'] = len", "must be a RewardEntry"),
        ("from capscore.measures import MEASURES as M\nM['BLEU'] = M['CIDEr']", "measure 'BLEU' already"),
        ("from tellapart.encoders import ENCODERS\nENCODERS['mine'] = len", "must be a Published or OnHub or Custom"),
    ],
)
def test_a_line_that_is_none_or_has_the_name_of_another_is_refused(load, line, says):
    with pytest.raises(UserError, match=rf"^mine\.py: .*{says}"):
        load(line)
    assert not isinstance(REWARDS["cider_d"].build, type(len))


def test_a_plugin_that_was_corrected_can_be_loaded_again(load):
    with pytest.raises(UserError):
        load(CAPTIONER + "1 / 0")
    load(CAPTIONER)
    assert "gru_of_a_plugin" in CAPTIONERS


@pytest.mark.parametrize(
    ("right", "wrong", "says"),
    [
        ("@dataclass\n", "", r"mine.py: GruConfig must be a dataclass"),
        ("vocab_size: int", "words: int", r"mine.py: GruConfig has no field 'vocab_size'"),
        ("def start(", "def begin(", r"mine.py: the captioner Gru has no method 'start'"),
        ('Entry(__name__, "Gru"', 'Entry(__name__, "Grus"', r"mine.py: defines no Grus"),
        ("class GruConfig", "class Settings", r"mine.py: defines no GruConfig"),
    ],
)
def test_a_captioner_that_lacks_something_is_named(load, right, wrong, says):
    load(CAPTIONER.replace(right, wrong))
    with pytest.raises(UserError, match=says):
        build_captioner("gru_of_a_plugin", {}, vocab_size=9, feature_sizes={"regions": 8})


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("return memory\n", "return (torch.zeros_like(memory[0]),)\n"), ("(output,)", "state")],
    ids=["it forgets the photo", "it keeps no state"],
)
def test_a_captioner_whose_step_is_not_its_forward_does_not_begin_to_learn(load, right, wrong, tmp_path):
    splits = ["train"] * 4 + ["val"] * 2
    images = [
        {"id": number, "file": str(photo.file), "split": split, "captions": photo.captions}
        for number, (photo, split) in enumerate(zip(PHOTOS, splits, strict=False))
    ]
    (tmp_path / "data.json").write_text(json.dumps({"dataset": "some", "images": images}))

    def begin(code, out):
        load(code)
        recipe = {
            "captioner": "gru_of_a_plugin",
            "encoder": {"name": "patches", "image_size": 64, "grid": 2},
            "data": {"min_count": 1, "features": str(tmp_path / "features")},
            "validation": {"metric": "loss", "every": 1},
            "batch_size": 2,
            "max_steps": 1,
        }
        return tellapart.train(recipe, data=tmp_path / "data.json", out=tmp_path / out)

    with pytest.raises(UserError, match=r"mine.py: the captioner 'gru_of_a_plugin': `step` and `forward`"):
        begin(CAPTIONER.replace(right, wrong), "wrong")
    sys.modules.pop("tellapart_plugin_mine")
    begin(CAPTIONER, "right")


READER = """
from tellapart.data.readers import READERS, Entry
def read(source, photos=None):
    return [str(source)]
READERS["mine"] = Entry(__name__, "mine")
"""


def test_a_reader_that_returns_no_data_set_is_named(load, tmp_path):
    load(READER)
    with pytest.raises(UserError, match=r"mine.py: `read` must return a DataSet of Examples, not a list"):
        READERS["mine"].load()(tmp_path)
    READERS["nothing"] = type(READERS["mine"])("tellapart_plugin_mine", "no read")
    del sys.modules["tellapart_plugin_mine"].read
    with pytest.raises(UserError, match=r"mine.py: defines no read"):
        READERS["nothing"].load()


@pytest.mark.parametrize(
    ("right", "wrong", "says"),
    [
        (".transpose(1, 2)", "", r"grid must have the shape \(3, 4, 3\).*not \(3, 3, 4\)"),
        ("images.mean((2, 3))", "images.mean(1)", r"pooled must have the shape \(3, 3\).*not \(3, 8, 8\)"),
        ("return Features(", "return slice(", "must give Features, not a slice"),
        ("self.identity =", "self.name =", "Colours has no 'identity'"),
    ],
)
def test_an_encoder_whose_features_are_not_what_it_declares_is_named(load, right, wrong, says):
    load(ENCODER.replace(right, wrong))
    with pytest.raises(UserError, match=rf"^mine\.py: the encoder 'mine'.*{says}"):
        load_encoder(EncoderConfig(name="mine", grid=2), torch.device("cpu"))(np.zeros((3, 8, 8, 3), np.uint8))


MEASURE = """
import numpy as np
from capscore.measures import MEASURES
from capscore.measures import Measure, Score
from capscore.statistics import mean_of
MEASURES["Mine"] = Measure((Score("Mine", "..."),), lambda inputs: GIVEN, needs=(), signature=())
"""


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("mean_of('Mine', [1, 0])", "gives 2 rows for 3 photos"),
        ("mean_of('Yours', [1, 0, 1])", "names the scores Mine, and its statistics are of Yours"),
        ("mean_of('Mine', [1, float('nan'), 1])", "not a finite number for photo 2 of 3"),
        ("[1, 0, 1]", "must give Statistics, not a list"),
    ],
)
def test_a_measure_that_gives_something_else_is_named(load, given, says):
    load(MEASURE.replace("GIVEN", given))
    with pytest.raises(UserError, match=rf"^mine\.py: the measure 'Mine' .*{says}"):
        tellapart.score(["a", "b", "c"], [["a"], ["b"], ["c"]], metrics="Mine")


SAMPLED = SampledCaptions(torch.ones(2, 3, dtype=torch.long), torch.ones(2, 3, dtype=torch.bool), torch.tensor([7, 8]))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (None, "must give a Reward, not a NoneType"),
        (torch.zeros(2), "must give a Reward, not a Tensor"),
        (Reward([0.0, 1.0]), "Reward.sentence must be a tensor of shape (2,), not a list"),
        (Reward(torch.zeros(2, 3)), "Reward.sentence must be a tensor of shape (2,), not (2, 3)"),
        (Reward(torch.zeros(2), torch.zeros(2, 2)), "Reward.words must be a tensor of shape (2, 3), not (2, 2)"),
        (Reward(torch.tensor([0.0, torch.nan])), "not a finite number for the photos at 8"),
    ],
    ids=lambda case: case if isinstance(case, str) else "",
)
def test_a_reward_that_is_none_is_named(given, says):
    with pytest.raises(UserError) as error:
        of_term(lambda sampled: given, SAMPLED, "mine")
    assert str(error.value).startswith("test_plugins.py: the reward 'mine'")
    assert says in str(error.value)
