"""`tellapart check --plugin FILE`: ours pass the checks, and each way to be slightly wrong fails one that names it."""

from contextlib import ExitStack

import pytest

from tellapart.data.readers import READERS
from tellapart.metrics.measures import MEASURES
from tellapart.protocols import encoders, measures, readers, rewards
from tellapart.recipe import EncoderConfig
from tellapart.rewards.registry import REWARDS
from test_plugins import CAPTIONER, ENCODER, load  # noqa: F401


@pytest.fixture(scope="module")
def pool():
    with ExitStack() as held:
        yield rewards.pool(held)


def held_by_a_pool(name):
    return name not in ("objects", "hard_positives", "text_rank", "preference", "meteor")


@pytest.mark.parametrize("name", [*filter(held_by_a_pool, REWARDS)])
@pytest.mark.parametrize("check", rewards.CHECKS, ids=lambda check: check.__name__)
def test_our_rewards_keep_their_promise(name, check, pool):
    check(rewards.case_of(name, pool))


@pytest.mark.parametrize("name", [name for name in MEASURES if name not in ("SPICE", "METEOR", "SGF")])
def test_our_measures_keep_their_promise(name):
    for check in measures.CHECKS:
        check(measures.case(name))


@pytest.mark.parametrize("name", ["efficientnet_lite2_tuned", "patches"])
def test_our_encoders_keep_their_promise(name):
    for check in encoders.CHECKS:
        check(encoders.case(name, EncoderConfig(name=name, image_size=64, grid=2)))


@pytest.mark.parametrize("name", READERS)
def test_our_readers_keep_their_promise(name):
    for check in readers.CHECKS:
        check(readers.Case(name, None))
