# SPDX-License-Identifier: Apache-2.0
"""For how long replicas hold their GPUs: from their placement until they are gone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_raybatch.job.monitor.money import HeldGpus
from airflow_provider_raybatch.job.monitor.replica_progress import ReplicaProgress
from airflow_provider_raybatch.job.replica.membership import Membership

BEGAN = 10_000.0
TYPES = {"a": "H100", "b": "L4"}


def held(gpus: float = 4, **others: object) -> HeldGpus:
    return HeldGpus(gpus, BEGAN, lambda node: TYPES.get(node, ""), **others)  # type: ignore[arg-type]


def replica(node: str = "a", placed: float = BEGAN, seen: float = 0.0, **others: object) -> ReplicaProgress:
    return ReplicaProgress(f"{node}-{placed}", node, placed=placed, seen=seen, **others)  # type: ignore[arg-type]


def seconds(now: float, *reports: ReplicaProgress, gpus: float = 4) -> dict[str, float]:
    one = held(gpus)
    one.look([replace(report, seen=report.seen or now) for report in reports], now)
    return one.seconds


def test_each_replica_counts_from_its_placement() -> None:
    """One found room at once, and its process took six seconds to start; the other's node came later."""
    found = seconds(BEGAN + 100, replica("a", BEGAN + 6), replica("b", BEGAN + 60))
    assert found == {"H100": 4 * 100, "L4": 4 * 40}


def test_a_replica_with_room_counts_while_its_process_starts() -> None:
    """That takes long where Ray makes a new environment; a restart of its process is no new replica."""
    one = held(at_once=2)
    begun = [("x-1-aa", 40), ("x-2-bb", 60), ("y-3-cc", 70), ("z-4-dd", 90)]
    reports = [ReplicaProgress(name, "a", placed=BEGAN + at, seen=BEGAN + 100) for name, at in begun]
    one.look([reports[0].gone(), *reports[1:]], BEGAN + 100)
    assert one.seconds == {"H100": 4 * (100 + (100 - 60) + 100 + (100 - 90))}


def test_a_replica_that_waits_for_others_holds_nothing() -> None:
    """Jobs that begin at once see the same idle GPUs, and one of them gets those only when others end."""
    one = held(at_once=1)
    one.look([replica(placed=BEGAN + 3600, seen=BEGAN + 3610)], BEGAN + 3610)
    assert one.seconds == {"H100": 4 * 10}


def test_a_warm_engine_counts_by_the_node_of_its_gpus() -> None:
    """Its replica may be on a node without GPUs, and knows the engine's only when that has begun."""
    one = held()
    begins = replica("cpu-only", is_warm=True, seen=BEGAN + 2)
    one.look([begins], BEGAN + 2)
    assert one.seconds == {}
    one.look([replace(begins, nodes=["a"] * 4, seen=BEGAN + 10)], BEGAN + 10)
    assert one.seconds == {"H100": 4 * 10}


@pytest.mark.parametrize("state", ["starting", "ready", "drained", "ended"])
def test_an_engine_of_its_own_counts_in_each_state(state: str) -> None:
    """While it loads, and as long as Ray Data keeps the actor of one that has nothing to do."""
    assert seconds(BEGAN + 100, replica(state=state)) == {"H100": 400}


def test_planned_replicas_that_have_no_room_do_not_count() -> None:
    assert seconds(BEGAN + 100) == {}
    assert seconds(BEGAN + 100, replica(placed=0.0, is_warm=True, state="waiting")) == {}


def test_replicas_on_cpus_hold_nothing() -> None:
    assert seconds(BEGAN + 100, replica(), gpus=0) == {}


def test_a_share_of_a_gpu_counts_as_a_share() -> None:
    """Two on one GPU hold it once; one beside a warm engine's holds a half."""
    both = [ReplicaProgress(name, "a", placed=BEGAN + 60, seen=BEGAN + 100) for name in ("x-1-a", "y-2-b")]
    assert seconds(BEGAN + 100, *both, gpus=0.5) == {"H100": 40}
    one = held(0.5)
    one.look([replica("cpu-only", is_warm=True, seen=BEGAN + 10, nodes=["a"])], BEGAN + 10)
    assert (one.seconds, one.now) == ({"H100": 5}, {"H100": 0.5})


def test_a_silent_replica_counts_until_its_last_report() -> None:
    """Its node has died. One that was only not heard counts as if nothing had been, once it is again."""
    one = held()
    for now, seen, found in ((60, 10, 60), (71, 10, 10), (80, 80, 80)):
        one.look([replica(seen=BEGAN + seen)], BEGAN + now)
        assert one.seconds == {"H100": 4 * found}


def test_one_that_has_left_counts_until_its_actor_ends() -> None:
    left = replica(state="ended", seen=BEGAN + 50)
    assert seconds(BEGAN + 54, left) == {"H100": 4 * 54}
    assert seconds(BEGAN + 56, left) == {"H100": 4 * 50}


def test_gpus_on_several_nodes_count_by_the_type_of_each() -> None:
    assert seconds(BEGAN + 10, replica(nodes=["a", "b", "b"])) == {"H100": 10, "L4": 20}
    assert seconds(BEGAN + 10, replica("elsewhere")) == {"": 40}


def test_replicas_that_do_not_report_count_as_planned() -> None:
    one = held(unseen={"H100": 8})
    one.look([], BEGAN + 10)
    assert (one.seconds, one.now) == ({"H100": 80}, {"H100": 8})


def test_all_are_gone_at_the_end() -> None:
    """Replicas drain for longer than a silence may last, and nothing is heard of them meanwhile."""
    one = held()
    one.look([replica(seen=BEGAN + 10), replica("b", held_until=BEGAN + 5, seen=BEGAN + 9)], BEGAN + 10)
    assert one.now == {"H100": 4}
    one.end(BEGAN + 200)
    assert (one.seconds, one.now) == ({"H100": 4 * 200, "L4": 4 * 5}, {})


class TestReports:
    """What the coordinator makes of them."""

    def test_a_warm_engine_counts_while_the_replica_has_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        membership = Membership()
        clock = iter([10.0, 20.0, 30.0, 40.0, 50.0])
        monkeypatch.setattr("time.time", lambda: next(clock))
        report = ReplicaProgress("p", "n", is_warm=True)
        times = []
        for state in ("waiting", "starting", "ready", "ended", "ended"):
            membership.hear(replace(report, state=state))
            (known,) = membership.snapshot()
            times.append((known.placed, known.held_until))
        assert times == [(0, 0), (20, 0), (20, 0), (20, 40), (20, 40)]

    def test_one_that_came_with_parts_is_timed_as_the_others(self) -> None:
        """Else a replica that has just written would hold nothing."""
        known = ReplicaProgress("p", "n", rows=1).heard(None, 70.0)
        further = ReplicaProgress("p", "n", rows=2).timed_as(known)
        assert (further.rows, further.placed, further.seen, further.held_until) == (2, 70.0, 70.0, 0.0)

    def test_a_process_that_is_gone_counts_until_its_last_report(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        membership = Membership()
        monkeypatch.setattr("time.time", lambda: 70.0)
        membership.start("actor", "p")
        membership.hear(ReplicaProgress("p", "n"))
        membership.end("p")
        (known,) = membership.snapshot()
        assert (known.state, known.placed, known.held_until) == ("ended", 70.0, 70.0)
