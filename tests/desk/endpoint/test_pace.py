"""How many requests are in flight.  The simulated servers know when each request ends; no clock is involved."""

import heapq
import threading
import time

import pytest

from support.chat_server import endpoint, say_colour
from tellapart.desk.endpoint.pace import Pace


def simulate(pace, requests, *, slots, seconds=lambda i: 1.0, limit=None):
    """Requests against a server that works on `slots` at a time.  Returns the levels, and how many were too late."""
    now, begun, levels, late = 0.0, 0, [], 0
    free = [0.0] * slots  # when each slot is free
    running = []  # (end, number, place, begin)
    while begun < requests or running:
        while begun < requests and pace.in_flight < pace.level:
            place = pace.enter(begun)
            begin = max(now, heapq.heappop(free))
            end = begin + seconds(begun)
            heapq.heappush(free, end)
            heapq.heappush(running, (end, begun, place, now))
            begun += 1
            levels.append(pace.in_flight)
        now, _, place, began = heapq.heappop(running)
        if limit is not None and now - began > limit:
            late += 1
            pace.overloaded(place)
        else:
            pace.answered(place, now - began)
        pace.leave()
    return levels, late


def test_the_first_request_is_alone():
    pace = Pace(8, 60)
    pace.enter(0)
    entered = threading.Event()
    threading.Thread(target=lambda: (pace.enter(1), entered.set()), daemon=True).start()
    assert not entered.wait(0.05)
    pace.leave()
    assert entered.wait(5)


def test_photos_that_were_begun_first_go_first():
    pace, entered = Pace(1, 60), []

    def enter(order):
        pace.enter(order)
        entered.append(order)
        pace.leave()

    pace.enter(0)
    threads = []
    for order in (5, 3, 9, 1):
        threads.append(threading.Thread(target=enter, args=[order]))
        threads[-1].start()
    while len(pace._waiting) < len(threads):
        time.sleep(0.001)
    pace.leave()
    for thread in threads:
        thread.join(5)
    assert entered == [1, 3, 5, 9]


def test_a_server_that_works_on_all_at_once_gets_all():
    levels, _ = simulate(Pace(4, 60), 60, slots=100)
    assert levels[:5] == [1] * 5
    assert levels[-1] == max(levels) == 4


def test_a_server_with_two_slots_gets_two():
    levels, _ = simulate(Pace(8, 60), 120, slots=2)
    assert max(levels) == 3  # tried, and given up
    assert sum(level <= 2 for level in levels) > 100


def test_a_server_that_takes_one_at_a_time_is_asked_one_at_a_time():
    levels, _ = simulate(Pace(4, 60), 200, slots=1)
    assert max(levels) == 2
    assert sum(level == 1 for level in levels) > 170


def test_a_slow_server_that_takes_one_at_a_time_never_runs_out_of_time():
    levels, late = simulate(Pace(4, 60), 60, slots=1, seconds=lambda i: 40.0, limit=60)
    assert (max(levels), late) == (1, 0)


def test_a_long_first_answer_does_not_count():
    """The model was loaded meanwhile: compared with that, anything is quick."""
    levels, _ = simulate(Pace(4, 60), 60, slots=1, seconds=lambda i: 50.0 if i == 0 else 1.0)
    assert max(levels) == 2
    levels, _ = simulate(Pace(4, 60), 60, slots=100, seconds=lambda i: 50.0 if i == 0 else 1.0)
    assert levels[-1] == 4


def test_short_and_long_requests_in_turn_do_not_mislead():
    levels, _ = simulate(Pace(4, 60), 100, slots=100, seconds=lambda i: 1.0 + 3.0 * (i % 2))
    assert levels[-1] == 4


def test_a_server_that_is_overloaded_gets_one_at_a_time_and_never_as_many_again():
    pace = Pace(4, 60)
    simulate(pace, 60, slots=100)
    assert pace.level == 4
    for place in [pace.enter(i) for i in range(4)]:  # all four fail
        pace.overloaded(place)
        pace.leave()
    assert pace.level == 1
    levels, _ = simulate(pace, 100, slots=100)
    assert levels[0] == 1
    assert max(levels) == 3


def test_who_waits_is_let_go_at_the_end():
    pace = Pace(1, 60)
    pace.enter(0)
    waiting = threading.Thread(target=pace.enter, args=[1])
    waiting.start()
    pace.stop()
    waiting.join(5)
    assert not waiting.is_alive()


# With a real server


def test_a_real_server_that_takes_one_at_a_time_is_hardly_asked_for_more(serve, coloured_photos):
    at_work = threading.Lock()

    def behave(request, colour):
        with at_work:
            time.sleep(0.03)
        return say_colour(request, colour)

    server = serve(behave)
    rows = list(endpoint(server, at_once=8).candidates_of([*coloured_photos.values()] * 4))
    assert not any(row.error for row in rows)
    assert server.most <= 3


def test_a_real_server_that_works_on_several_at_once_gets_several_but_no_more_than_allowed(serve, coloured_photos):
    def behave(request, colour):
        time.sleep(0.1)
        return say_colour(request, colour)

    server = serve(behave)
    rows = list(endpoint(server, at_once=3).candidates_of([*coloured_photos.values()] * 4))
    assert not any(row.error for row in rows)
    assert 2 <= server.most <= 3


def test_one_request_at_once_is_one(serve, coloured_photos):
    server = serve()
    assert len(list(endpoint(server, at_once=1, candidates=2).candidates_of(coloured_photos.values()))) == 6
    assert server.most == 1


@pytest.mark.slow
def test_slow_requests_that_waited_for_each_other_are_made_again_one_at_a_time(serve, coloured_photos):
    """Seven quick answers, then slow ones: two at once would be late."""
    at_work, count = threading.Lock(), iter(range(1000))

    def behave(request, colour):
        number = next(count)
        if number < 7:
            time.sleep(0.02)
        else:
            with at_work:
                time.sleep(0.3)
        return say_colour(request, colour)

    rows = list(
        endpoint(serve(behave), at_once=4, timeout=0.55, retries=2).candidates_of([*coloured_photos.values()] * 2)
    )
    assert [row.error for row in rows] == [""] * 12
