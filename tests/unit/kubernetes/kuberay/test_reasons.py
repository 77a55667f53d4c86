# SPDX-License-Identifier: Apache-2.0
"""Why a pod waits, and which reasons end the wait at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from airflow_provider_raybatch.contract.failures import FailureClass
from tests.support.approved import AssertSentences
from tests.support.kubernetes.judged import judged
from tests.support.kubernetes.seen import (  # noqa: F401 - messages.txt uses them, too
    CLUSTER,
    HEAD,
    IMAGE,
    JOB,
    NO_GPU,
    event,
    pod,
    unschedulable,
)

USER = FailureClass.USER_ERROR


@pytest.mark.parametrize("there", [(), (pod(node="n1", waiting=("ContainerCreating", "")),)])
def test_head_that_no_look_meets_is_known_by_its_event(there: Sequence[Mapping[str, Any]]) -> None:
    """KubeRay replaces a head that has ended within seconds, and each look may come in between."""
    said = (
        f"Deleted head Pod ml/{HEAD}; Pod status: Failed; Pod restart policy: Never; Ray container "
        "terminated status: &ContainerStateTerminated{ExitCode:127,Signal:0,Reason:Error,Message:,StartedAt:}"
    )
    found = judged(*there, events=[event("DeletedHeadPod", said, CLUSTER, "RayCluster")])
    assert (found.verdict, found.failure_class) == ("fails", USER)
    assert found.message.startswith(f"head pod {HEAD}: has ended: Pod status: Failed; ")
    assert found.message.endswith("ExitCode:127,Signal:0,Reason:Error,Message:; use an image that has Ray.")
    lost = judged(*there, events=[event("DeletedHeadPod", said.replace("127", "137"), CLUSTER, "RayCluster")])
    assert lost.verdict == "waiting"


PULL_EVENT = event(
    "Failed",
    f'Failed to pull image "{IMAGE}": rpc error: code = NotFound desc = failed to pull and unpack image '
    f'"{IMAGE}": failed to resolve reference "{IMAGE}": {IMAGE}: not found',
)
DENIED = (
    'failed to resolve reference "x": pull access denied, repository does not exist or may require '
    "authorization: server message: insufficient_scope: authorization failed"
)


def test_what_may_come_is_told_once(assert_sentences: AssertSentences) -> None:
    def told(of: dict[str, Any], events: list[dict[str, Any]]) -> str:
        found = judged(of, events=events)
        assert found.verdict == "waiting"
        (line,) = found.lines
        again = judged(of, events=events, state=found.state)
        assert again.lines == ()
        assert again.state.latest.startswith(line.rstrip("."))
        return line

    assert_sentences(told, head=HEAD)


def test_what_cannot_come_fails_at_once(assert_sentences: AssertSentences) -> None:
    def told(of: dict[str, Any], events: list[dict[str, Any]]) -> str:
        found = judged(of, events=events)
        assert found.verdict == "fails"
        assert found.failure_class is not None
        return f"[{found.failure_class.value}] {found.message}"

    assert_sentences(told, head=HEAD)


def test_another_address_is_no_other_reason() -> None:
    """A registry that does not answer is told of once, although each try has another port."""
    waiting = [
        pod(node="n1", waiting=(state, f"dial tcp 10.0.0.1:{port}: i/o timeout"))
        for port, state in enumerate(["ErrImagePull", "ImagePullBackOff", "ErrImagePull"], 41000)
    ]
    found = judged(waiting[0])
    assert len(found.lines) == 1
    for one in waiting[1:]:
        found = judged(one, state=found.state)
        assert (found.verdict, found.lines) == ("waiting", ())


def test_an_event_that_is_over_does_not_end_the_wait() -> None:
    """The scheduler found no claim at first, and now there is one."""
    over = event("FailedScheduling", 'persistentvolumeclaim "models" not found')
    scales = event("TriggeredScaleUp", "pod triggered scale-up: [{gpu 0->1 (max: 4)}]")
    found = judged(unschedulable(NO_GPU), events=[scales, over])
    assert found.verdict == "waiting"
    assert "models" not in found.lines[0]
    assert "scale-up" in found.lines[0]
