"""Shared by all tests."""

import os
import signal
import subprocess
import sys
from collections import Counter
from functools import partial

# Two threads in a test process cost more than they bring; set for child processes too, and before torch is loaded.
os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import pytest
import torch
from hypothesis import settings
from PIL import Image

from tellapart import telemetry

telemetry.turn_off()  # before a test imports onnxruntime by itself
torch.set_num_threads(1)

pytest_plugins = ["support.chat_server", "support.exports", "support.postgresql"]

# A first call may compile a kernel, and the machine may be busy: time says nothing of what is tested.
settings.register_profile("tellapart", deadline=None)
settings.load_profile("tellapart")


def pytest_collection_modifyitems(items):
    """Files with slow tests come first, so that at the end no process is left with one while the others wait."""
    for item in items:
        if "exported_model" in item.fixturenames:  # which takes longer than most tests
            item.add_marker("slow")
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])  # otherwise the order stays


@pytest.fixture(scope="session")
def small_model(tmp_path_factory):
    """A model folder with a real encoder and vocabulary and random weights: it says nonsense, and quickly."""
    from tellapart import models
    from tellapart.captioners.transformer import TINY
    from tellapart.data.tokenizers import WordTokenizer
    from tellapart.encoders.encoder import Encoder
    from tellapart.recipe import EncoderConfig

    folder = tmp_path_factory.mktemp("model")
    tokenizer = WordTokenizer(["a", "man", "riding", "wave", "red", "bus", "street", "cat", "on", "the", "bed"])
    encoder = Encoder(EncoderConfig(image_size=64, grid=2))
    torch.manual_seed(0)
    captioner = models.build_captioner(
        "transformer", TINY, vocab_size=len(tokenizer), feature_sizes={"regions": encoder.feature_size}
    )
    with torch.no_grad():
        captioner.word_bias[tokenizer.eos] = -3.0  # or it has nothing to say
    models.describe(folder, "transformer", captioner, tokenizer, {"regions": encoder.identity})
    models.save_weights(folder / "model.safetensors", captioner)
    return folder


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """A cache of the test's own: nothing is read from or left in that of whoever runs the tests."""
    monkeypatch.setenv("TELLAPART_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def small_retriever(tmp_path_factory):
    """A retriever's folder with a real encoder and vocabulary and random weights: no good judge, but a quick one."""
    from tellapart import models
    from tellapart.data.tokenizers import WordTokenizer
    from tellapart.encoders.encoder import Encoder
    from tellapart.recipe import EncoderConfig
    from tellapart.retrievers import RETRIEVERS
    from tellapart.retrievers.word_tower import TINY

    folder = tmp_path_factory.mktemp("listener")
    tokenizer = WordTokenizer(["a", "man", "riding", "wave", "red", "bus", "street", "cat", "on", "the", "bed", "dog"])
    encoder = Encoder(EncoderConfig(image_size=64, grid=2))
    torch.manual_seed(0)
    settings = TINY | {"vocab_size": len(tokenizer), "feature_size": encoder.feature_size}
    network = models.build(RETRIEVERS, "retriever", "word_tower", settings)
    models.describe(folder, "word_tower", network, tokenizer, {"regions": encoder.identity}, "retriever")
    models.save_weights(folder / "model.safetensors", network)
    return folder


@pytest.fixture
def photo_folder(tmp_path):
    """Six different small photos."""
    return six_small_photos(tmp_path / "photos")


@pytest.fixture(scope="session")
def six_photos(tmp_path_factory, small_retriever):
    """A pool of six photos, and what rewards must be by it."""
    from support import pools

    folder = tmp_path_factory.mktemp("pool")
    photos = six_small_photos(folder / "photos")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TELLAPART_CACHE", str(folder / "cache"))
        return pools.Expected(pools.make(folder, photos, small_retriever), photos, small_retriever)


def six_small_photos(folder):
    folder.mkdir()
    draw = np.random.default_rng(0)
    for i in range(6):
        pixels = draw.integers(0, 256, (4, 4, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((40 + i, 32), Image.Resampling.NEAREST).save(folder / f"{i}.png")
    return folder


@pytest.fixture
def tellapart(capfd):
    """Run a command in this process: exit code, stdout, stderr."""
    from tellapart.__main__ import main

    def run(*arguments):
        code = main([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        assert "Traceback" not in err
        return code, out, err

    return run


@pytest.fixture
def start_tellapart():
    """Start a command in a process of its own, to be killed."""
    running = []

    def start(*arguments, **options):
        command = [sys.executable, "-m", "tellapart", *map(str, arguments)]
        # A shell's background jobs ignore Ctrl-C, and so would what they start.
        heeds_ctrl_c = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
        options["preexec_fn"] = heeds_ctrl_c
        process = subprocess.Popen(command, **options)
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.communicate()
