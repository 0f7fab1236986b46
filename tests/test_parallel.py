import threading
import time

import pytest

from tellapart.parallel import batched, ordered_map


def test_results_come_in_the_order_of_the_input_whoever_is_first():
    def slow_if_even(i):
        time.sleep(0.01 * (i % 2 == 0))
        return i * i

    assert list(ordered_map(slow_if_even, range(20))) == [i * i for i in range(20)]


def test_an_endless_input_is_read_only_a_little_ahead():
    read, threads = [], set(threading.enumerate())

    def endless():
        i = 0
        while True:
            read.append(i)
            yield i
            i += 1

    results = ordered_map(lambda i: i, endless(), ahead=5)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    results.close()
    assert len(read) <= 8
    assert set(threading.enumerate()) <= threads  # none is left


def test_an_error_reaches_the_caller():
    with pytest.raises(ZeroDivisionError):
        list(ordered_map(lambda i: 1 // i, [1, 0]))


@pytest.mark.parametrize(("count", "sizes"), [(0, []), (3, [3]), (4, [4]), (9, [4, 4, 1])])
def test_batches_hold_everything_once(count, sizes):
    batches = list(batched(range(count), 4))
    assert [len(batch) for batch in batches] == sizes
    assert [item for batch in batches for item in batch] == list(range(count))
