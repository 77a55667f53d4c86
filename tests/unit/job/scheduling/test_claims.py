# SPDX-License-Identifier: Apache-2.0
"""Claims of requests: one process asks each at a time, and whoever waits is told or asks itself."""

from __future__ import annotations

import random

import pytest

from airflow_provider_raybatch.job.request.keys import as_array
from airflow_provider_raybatch.job.scheduling.claims import AnsweredKeys, Claims


def key(number: int) -> bytes:
    return number.to_bytes(4, "big") * 4


def keys(*numbers: int) -> list[bytes]:
    return [key(number) for number in numbers]


def test_the_first_asks_and_others_are_told() -> None:
    claims = Claims()
    assert claims.claim("a", keys(1, 2)) == [True, True]
    assert claims.claim("b", keys(2, 3)) == [False, True]
    assert (claims.is_awaited("a"), claims.is_awaited("b")) == (True, False)
    claims.answered("part", keys(1, 2))
    assert not claims.is_awaited("a")
    assert claims.news("b") == ((key(2), "part"),)
    assert claims.news("b") == ()
    assert claims.claim("c", keys(1, 3, 4)) == ["part", False, True]


def test_who_claims_a_request_of_a_lost_process_asks_it() -> None:
    claims = Claims()
    claims.claim("a", keys(1))
    claims.claim("b", keys(1))
    claims.claim("c", keys(1))
    claims.gone("a")
    assert claims.claim("d", keys(1)) == [True]
    assert claims.take_over("b", lambda: True) == ()
    claims.answered("part", keys(1))
    assert claims.news("b") == claims.news("c") == ((key(1), "part"),)


@pytest.mark.parametrize("given_back", [False, True])
def test_one_that_waits_asks_what_is_left(given_back: bool) -> None:
    claims = Claims()
    claims.claim("a", keys(1))
    claims.claim("b", keys(1))
    claims.claim("c", keys(1))
    if given_back:
        claims.release("a", keys(1, 7))
    else:
        claims.gone("a")
    assert not claims.is_awaited("a")
    assert claims.take_over("b", lambda: True) == (key(1),)
    assert claims.take_over("c", lambda: True) == ()
    assert claims.is_awaited("b")
    claims.gone("c")
    assert not claims.is_awaited("b")


def test_the_newest_place_of_a_key_counts() -> None:
    answered = AnsweredKeys()
    for place in range(100):
        answered.add(as_array(keys(place, place + 1, place + 1)), place)
    assert answered.places(keys(0, 50, 100, 101)).tolist() == [0, 50, 99, -1]


@pytest.mark.parametrize("seed", range(20))
def test_each_request_is_answered_once_whatever_ends(seed: int) -> None:
    """Processes claim, answer, give back and end at random; each row of a process that ends is another's."""
    chance, claims = random.Random(seed), Claims()
    rows = [(row, row % 7) for row in range(60)]
    asked: dict[int, str] = {}
    waits: dict[str, list[tuple[int, int]]] = {}
    answered: set[int] = set()
    done: set[int] = set()
    names = iter(f"p{number}" for number in range(10_000))
    living = [next(names) for _ in range(3)]
    while len(done) < 60:
        name = chance.choice(living)
        for given, place in claims.news(name):
            done |= {row for row, one in waits.get(name, []) if key(one) == given}
            waits[name] = [one for one in waits.get(name, []) if key(one[1]) != given]
            assert place == "part"
        all_are_given_out = not rows
        for given in claims.take_over(name, lambda: all_are_given_out):  # noqa: B023 - called at once
            own = next(one for one in waits[name] if key(one[1]) == given)
            assert own[1] not in asked
            asked[own[1]] = name
        act = chance.random()
        mine = [one for one, owner in asked.items() if owner == name]
        if act < 0.5 and rows:
            row, number = rows.pop(chance.randrange(len(rows)))
            (answer,) = (
                claims.claim(name, keys(number))
                if not any(one == number for _, one in waits.get(name, []))
                else [False]
            )
            if answer is True:
                assert number not in asked
                assert number not in answered
                asked[number] = name
            if answer == "part":
                done.add(row)
            else:
                waits.setdefault(name, []).append((row, number))
        elif act < 0.8 and mine:
            number = chance.choice(mine)
            claims.answered("part", keys(number))
            del asked[number]
            answered.add(number)
            done |= {row for row, one in waits[name] if one == number}
            waits[name] = [one for one in waits[name] if one[1] != number]
        elif act < 0.85:
            claims.gone(name)
            rows += waits.pop(name, [])
            for number in mine:
                del asked[number]
            living[living.index(name)] = next(names)
    assert not asked


def test_claims_wait_until_earlier_answers_are_known() -> None:
    claims = Claims()
    claims.hold()
    assert claims.claim("a", keys(1, 2, 3)) == [False] * 3
    assert claims.claim("b", keys(1, 2)) == [False] * 2
    claims.gone("c")
    claims.know("part", as_array(keys(1)))
    assert (claims.news("a"), claims.take_over("a", lambda: True)) == ((), ())
    claims.go_on()
    assert claims.news("a") == claims.news("b") == ((key(1), "part"),)
    assert claims.take_over("b", lambda: True) == ()
    assert claims.take_over("a", lambda: False) == tuple(keys(2, 3))
    assert claims.is_awaited("a")
    claims.answered("other", keys(2))
    assert claims.news("b") == ((key(2), "other"),)
    assert claims.claim("b", keys(3, 4)) == [False, True]
