"""`tellapart check --plugin FILE`: ours pass the checks, and each way to be slightly wrong fails one that names it."""

from contextlib import ExitStack

import pytest

from capscore.measures import MEASURES
from tellapart.data.readers import READERS
from tellapart.protocols.parts import EncoderCase, MeasureCase, ReaderCase, RewardCase
from tellapart.protocols.parts import pool as album_pool
from tellapart.recipe import EncoderConfig
from tellapart.rewards.registry import REWARDS
from test_plugins import CAPTIONER, ENCODER, load  # noqa: F401


@pytest.fixture(scope="module")
def pool():
    with ExitStack() as held:
        yield album_pool(held)


def held_by_a_pool(name):
    return name not in ("objects", "hard_positives", "text_rank", "preference", "meteor")


@pytest.mark.parametrize("name", [*filter(held_by_a_pool, REWARDS)])
@pytest.mark.parametrize("check", RewardCase.checks())
def test_our_rewards_keep_their_promise(name, check, pool):
    getattr(RewardCase(name, pool), check)()


@pytest.mark.parametrize("name", [name for name in MEASURES if name not in ("SPICE", "METEOR", "SGF")])
def test_our_measures_keep_their_promise(name):
    assert MeasureCase(name).failures(MeasureCase.checks()) == []


@pytest.mark.parametrize("name", ["efficientnet_lite2_tuned", "patches"])
def test_our_encoders_keep_their_promise(name):
    case = EncoderCase(name, EncoderConfig(name=name, image_size=64, grid=2))
    assert case.failures(case.checks()) == []


@pytest.mark.parametrize("name", READERS)
def test_our_readers_keep_their_promise(name):
    ReaderCase(name, None).says_what_is_wrong()


GOOD = {
    "captioner": CAPTIONER,
    "encoder": ENCODER,
    "reward": """
import torch
from tellapart.rewards import Reward
from tellapart.rewards.registry import REWARDS, RewardEntry

def build(context):
    def reward(captions):
        lengths = [len(text.split()) for text in context.texts(captions)]
        return Reward(-torch.tensor(lengths).float())
    return reward

REWARDS["mine"] = RewardEntry("few words", build)
""",
    "measure": """
from capscore.measures import MEASURES
from capscore.measures import Measure, Score
from capscore.statistics import mean_of
MEASURES["Mine"] = Measure(
    (Score("Mine", "questions"),), lambda inputs: mean_of("Mine", [text.endswith("?") for text in inputs.texts]), ()
)
""",
    "reader": """
from tellapart.data.examples import DataSet, check
from capscore.caption_files import folder_of
from tellapart.data.readers import READERS, Entry
from capscore.files import read_text

def read(source, photos=None):
    captions = {}
    for line in read_text(source).splitlines():
        name, _, caption = line.partition("\\t")
        captions.setdefault(name, []).append(caption)
    records = ({"id": name, "file": name, "captions": own} for name, own in captions.items())
    examples, problems = check(records, source=source, folder=photos or folder_of(source))
    return DataSet(source.stem, examples, problems=problems)

READERS["mine"] = Entry(__name__, "pairs")
""",
}
WRONG = {  # of what: right, wrong, what is said
    "captioner": [
        ("return memory\n", "return (torch.zeros_like(memory[0]),)\n", "`step` says"),
        ("every = torch.stack", "every = outputs[-1] + torch.stack", "No word sees a later"),
        ("(self.photo(masked_mean", "(self.mix(masked_mean", "do not affect each other"),
        ("super().__init__()", "super().__init__(); self.idle = nn.Linear(2, 2)", "idle"),
        ("masked_mean(regions, mask)", "regions.mean(1)", "Padding of regions"),
        ("def start(", "def begin(", "no method 'start'"),
    ],
    "encoder": [
        ("Features(cells", "Features((cells - cells.mean(0))", "do not depend on the others"),
        ("Features(cells", "Features((cells + torch.rand_like(cells))", "same features again"),
        ("Features(cells", "Features((cells * 1e6)", "half precision"),
        ('config.identity | {"', '{"', "settings"),
    ],
    "reward": [
        ("lengths).float()", "lengths).float().sum()[None]", "(12,), not (1,)"),
        ("text.split()", "text.split()[0]", "IndexError"),
        ("(lengths)", "([*range(len(lengths))])", "order of the captions"),
        ("(lengths)", "(lengths) * torch.rand(1)", "same reward again"),
        ("(lengths)", "(lengths) + captions.words.shape[1]", "More places"),
    ],
    "measure": [
        ("[text.endswith", "[n * text.endswith", "order of the photos"),
        ('mean_of("Mine"', 'mean_of("Yours"', "names the scores Mine"),
    ],
    "reader": [("read_text(source)", "source.read_text()", "UnicodeDecodeError")],
}


@pytest.mark.parametrize("what", GOOD)
def test_a_plugin_that_is_right_passes(load, tellapart, tmp_path, what):  # noqa: F811
    load(GOOD[what])
    source = tmp_path / "pairs.tsv"
    source.write_text("a.jpg\ta dog\nb.jpg\ta cat\n")
    code, out, _ = tellapart("check", source)
    assert code == 0, out
    assert out.startswith(f"{what} ")
    assert "checks passed" in out


@pytest.mark.parametrize(
    ("what", "right", "wrong", "says"), [(what, *case) for what, cases in WRONG.items() for case in cases]
)
def test_a_wrong_plugin_fails_the_check_about_it(load, tellapart, tmp_path, what, right, wrong, says):  # noqa: F811
    code = GOOD[what].replace(right, wrong)
    assert code != GOOD[what]
    mix = "    def mix(self, x):\n        return self.photo(x) + self.photo(x).mean(0)\n\n"
    code = code.replace("    def encode(", mix + "    def encode(") if "self.mix" in code else code
    load(code.replace("for text in inputs.texts", "for n, text in enumerate(inputs.texts)"))
    (tmp_path / "pairs.tsv").write_text("a.jpg\ta dog\n")
    exit_code, out, err = tellapart("check", tmp_path / "pairs.tsv")
    assert exit_code == 1, out + err
    assert says in out
    assert "checks passed" not in out
    assert all(line.startswith(f"{what} ") for line in out.splitlines())


def test_a_reward_that_depends_on_its_batch_is_told_so(load, tellapart):  # noqa: F811
    load(GOOD["reward"].replace("(lengths).float()", "(lengths).float().softmax(0)"))
    code, out, _ = tellapart("check")
    assert code == 0
    assert "depends on the captions of its own photo alone" in out
