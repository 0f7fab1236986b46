import threading

import pytest

from capscore.compiled import compiled, over_cores


def test_a_kernel_that_cannot_be_kept_on_disk_works_all_the_same():
    space = {}
    exec("def twice(number):\n    return 2 * number", space)  # a function without a file has nowhere to be kept
    assert compiled(space["twice"])(21) == 42


@pytest.mark.parametrize("count", [0, 1, 511, 512, 5000])
def test_stretches_cover_everything_once(count):
    done, lock = [], threading.Lock()

    def work(start, stop):
        with lock:
            done.extend(range(start, stop))

    over_cores(work, count)
    assert sorted(done) == list(range(count))


def test_an_error_in_a_stretch_is_not_lost():
    def work(start, stop):
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        over_cores(work, 5000)
