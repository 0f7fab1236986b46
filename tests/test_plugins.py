"""Plugins that are slightly wrong: one sentence that names the plugin, at once and not after a night of training."""

import json
import sys

import numpy as np
import pytest
import torch

import tellapart
from capscore.errors import UserError
from capscore.measures import MEASURES
from support.doc_pages import PHOTOS
from tellapart import plugins
from tellapart.captioners import CAPTIONERS
from tellapart.data.readers import READERS
from tellapart.encoders import ENCODERS
from tellapart.encoders.loading import load as load_encoder
from tellapart.models.networks import build_captioner
from tellapart.recipe import EncoderConfig
from tellapart.rewards import Reward, SampledCaptions, of_term
from tellapart.rewards.registry import REWARDS

TABLES = (CAPTIONERS, READERS, ENCODERS, MEASURES, REWARDS)

CAPTIONER = """
from dataclasses import dataclass
import torch
from torch import nn
from tellapart.captioners import CAPTIONERS, Entry
from tellapart.captioners.layers import captions_of, masked_mean

@dataclass
class GruConfig:
    vocab_size: int
    feature_size: int = 1280
    width: int = 8

TINY = {"width": 8}

class Gru(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.photo = nn.Linear(config.feature_size, config.width)
        self.embed = nn.Embedding(config.vocab_size, config.width)
        self.cell = nn.GRUCell(config.width, config.width)
        self.word = nn.Linear(config.width, config.vocab_size)

    def encode(self, inputs):
        return (self.photo(masked_mean(*inputs["regions"])).tanh(),)

    def start(self, memory):
        return memory

    def step(self, token, state, memory):
        output = self.cell(self.embed(token), state[0])
        return self.word(output), (output,)

    def forward(self, tokens, memory, token_mask=None):
        output, outputs = captions_of(memory[0], len(tokens)), []
        for token in tokens.unbind(1):
            output = self.cell(self.embed(token), output)
            outputs.append(output)
        every = torch.stack(outputs, 1)
        return self.word(every if token_mask is None else every[token_mask])

CAPTIONERS["gru_of_a_plugin"] = Entry(__name__, "Gru", "a GRU")
"""


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


ENCODER = """
import torch
from tellapart.data.media import photos
from tellapart.encoders import ENCODERS, Custom
from tellapart.encoders.encoder import Features

class Mine:
    fit, weights_sha256, regions, feature_size, pooled_size = photos.SQUEEZE, "0", 4, 6, 6

    def __init__(self, config):
        self.config = config
        self.identity = config.identity | {"weights_sha256": "0"}

    def __call__(self, pixels):
        grid = torch.as_tensor(pixels)[:, :2, :2].flatten(1, 2).float().repeat(1, 1, 2)
        return Features(grid, grid.mean(1))

ENCODERS["mine"] = Custom(lambda config, device: Mine(config), "pixels")
"""


@pytest.mark.parametrize(
    ("right", "wrong", "says"),
    [
        ("Features(grid,", "Features(grid.transpose(1, 2),", r"grid must have the shape \(3, 4, 6\).*not \(3, 6, 4\)"),
        ("grid.mean(1))", "grid.mean(2))", r"pooled must have the shape \(3, 6\).*not \(3, 4\)"),
        ("Features(grid, grid.mean(1))", "grid", "must give Features, not a Tensor"),
        ("self.identity =", "self.name =", "Mine has no 'identity'"),
    ],
)
def test_an_encoder_whose_features_are_not_what_it_declares_is_named(load, right, wrong, says):
    load(ENCODER.replace(right, wrong))
    with pytest.raises(UserError, match=rf"^mine\.py: the encoder 'mine'.*{says}"):
        load_encoder(EncoderConfig(name="mine"), torch.device("cpu"))(np.zeros((3, 8, 8, 3), np.uint8))


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
