# SPDX-License-Identifier: Apache-2.0
"""Creates: one batch for one call, whichever server dies when, and however often the call is repeated."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from airflow_provider_raybatch.batch_api.server.access import Caller
from airflow_provider_raybatch.batch_api.server.creating import BatchCreation, BatchCreator
from airflow_provider_raybatch.batch_api.server.limits import ApiLimits
from airflow_provider_raybatch.batch_api.server.new_batch import new_batch
from airflow_provider_raybatch.batch_api.server.objects import OpenAiError
from airflow_provider_raybatch.batch_api.server.runs import RunRefusedError
from airflow_provider_raybatch.batch_api.server.upkeep import run_after
from airflow_provider_raybatch.batch_api.store.creates import CreateCall
from airflow_provider_raybatch.batch_api.store.records import BatchState
from airflow_provider_raybatch.batch_api.store.store import BatchStore
from airflow_provider_raybatch.contract.layout import BATCHES
from airflow_provider_raybatch.storage.folder import Folder, LocalFolder
from tests.support.batch_api import DAY, DyingError, batches_of, dying, lines, uploaded
from tests.support.batch_runs import CHAT, RunsOfTests, models

SECRET = b"a secret of the tests, long enough"


class Client:
    """A user who creates batches, at any of several servers.

    :param folders: of each server its own view of the root.
    """

    def __init__(self, store: BatchStore, runs: RunsOfTests, user: str = "ann", token: str = "t1") -> None:
        self.store, self.runs = store, runs
        self.caller = Caller(user, user, frozenset({"user"}), token)
        self.models = models()
        self.limits = ApiLimits()

    def create(
        self,
        file_id: str,
        *,
        repeats: int = 0,
        key: str | None = None,
        arrived: float | None = None,
        store: BatchStore | None = None,
        **fields: Any,
    ) -> BatchState:
        given = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h", **fields}
        batch = new_batch(given)
        call = CreateCall(time.time() if arrived is None else arrived, repeats, batch.digest)
        creation = BatchCreation(self.caller, batch, call, key)
        creator = BatchCreator(self.models, self.limits, self.runs)
        return creator.created(store or self.store, creation)

    def dies(self, patch: pytest.MonkeyPatch, file_id: str, writes: int, **how: bool) -> bool:
        """Create at a server that dies when it has written some documents; ``False`` if it had no more."""
        with patch.context() as patched:
            dying(patched, self.store, writes, **how)
            try:
                self.create(file_id, metadata={"n": f"{writes}"}, store=BatchStore(self.store.root, SECRET))
            except DyingError:
                return True
        return False

    def batches(self) -> Sequence[str]:
        return batches_of(self.store, self.caller.id)


@pytest.fixture
def runs() -> RunsOfTests:
    return RunsOfTests()


@pytest.fixture
def store(folder: Folder) -> BatchStore:
    return BatchStore(folder, SECRET)


@pytest.fixture
def client(store: BatchStore, runs: RunsOfTests) -> Client:
    return Client(store, runs)


@pytest.fixture
def file_id(store: BatchStore) -> str:
    return uploaded(store, lines()).id


def refusal(call: Callable[[], Any]) -> OpenAiError:
    with pytest.raises(OpenAiError) as refused:
        call()
    return refused.value


def test_a_batch_is_recorded_and_has_its_run(client: Client, runs: RunsOfTests, file_id: str) -> None:
    state = client.create(file_id, metadata={"job": "x"}, completion_window="1h")
    record = state.record
    assert (state.status, state.triggered) == ("validating", True)
    assert (record.owner, record.model, record.dag_id, record.input_lines) == (
        "ann",
        "small",
        "batches_small",
        3,
    )
    assert record.expires_at == record.created_at + 3600
    assert record.metadata == {"job": "x"}
    assert runs.runs == {record.id: run_after(record.created_at, 3)}
    assert client.batches() == [record.id]
    assert client.store.state(record.id) == state


def test_a_batch_keeps_how_strict_its_server_is(client: Client, file_id: str) -> None:
    lenient = client.create(file_id)
    client.limits = ApiLimits(strict=True)
    assert (lenient.record.strict, client.create(file_id).record.strict) == (False, True)


def test_an_intended_second_run_is_a_second_batch(client: Client, file_id: str) -> None:
    assert client.create(file_id).record.id != client.create(file_id).record.id
    assert len(client.batches()) == 2


def test_a_repeated_call_means_the_same_batch(client: Client, file_id: str) -> None:
    first = client.create(file_id)
    assert client.create(file_id, repeats=1).record == first.record
    assert client.create(file_id, repeats=2).record == first.record
    assert client.batches() == [first.record.id]


@pytest.mark.parametrize("other", [{"metadata": {"a": "b"}}, {"completion_window": "1h"}])
def test_a_repeat_of_another_body_is_another_batch(
    client: Client, file_id: str, other: dict[str, Any]
) -> None:
    assert client.create(file_id, repeats=1, **other).record.id != client.create(file_id).record.id


@pytest.mark.parametrize(("user", "token"), [("ann", "t2"), ("bob", "t1")])
def test_a_repeat_by_another_token_is_another_batch(
    client: Client, runs: RunsOfTests, user: str, token: str
) -> None:
    theirs = uploaded(client.store, lines(), owner=user).id
    first = Client(client.store, runs, user, token).create(theirs)
    client.caller = Caller(user, user, frozenset(), "another")
    assert client.create(theirs, repeats=1).record.id != first.record.id


def test_a_repeat_after_a_quarter_of_an_hour_is_new(
    client: Client, file_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, now = client.create(file_id), time.time()
    monkeypatch.setattr(time, "time", lambda: now + 901)
    assert client.create(file_id, repeats=1).record.id != first.record.id


def test_a_first_call_that_its_repeat_overtook_means_the_same(client: Client, file_id: str) -> None:
    arrived = time.time() - 30
    repeated = client.create(file_id, repeats=1)
    assert client.create(file_id, arrived=arrived).record == repeated.record
    second_run = client.create(file_id)
    assert second_run.record.id != repeated.record.id
    assert client.create(file_id, arrived=arrived).record == repeated.record


@pytest.mark.parametrize("is_done", [False, True])
def test_a_server_that_dies_at_any_write_makes_no_second_batch(
    client: Client, runs: RunsOfTests, file_id: str, is_done: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    deaths = 0
    for lives_for in range(10):
        before = set(client.batches())
        deaths += client.dies(monkeypatch, file_id, lives_for, is_done=is_done)
        state = client.create(file_id, repeats=1, metadata={"n": f"{lives_for}"})
        assert set(client.batches()) - before == {state.record.id}
        assert state.triggered
    assert deaths == 4  # the entry, the record, the index, and the note of the run
    assert runs.runs.keys() == set(client.batches())


def test_a_lost_answer_of_airflow_makes_no_second_run(
    client: Client, runs: RunsOfTests, file_id: str
) -> None:
    runs.lost = True
    assert refusal(lambda: client.create(file_id)).status == 503
    runs.lost = False
    state = client.create(file_id, repeats=1)
    assert runs.runs.keys() == {state.record.id}
    assert client.batches() == [state.record.id]


def test_concurrent_repeats_at_two_servers_make_one_batch(
    client: Client, runs: RunsOfTests, file_id: str
) -> None:
    for number in range(5):
        stores = [BatchStore(client.store.root, SECRET) for _ in range(2)]
        together = threading.Barrier(6)

        def call(index: int, number: int = number, stores: Any = stores, together: Any = together) -> str:
            together.wait()
            options = {"store": stores[index % 2], "metadata": {"n": f"{number}"}}
            return client.create(file_id, repeats=1 + index, **options).record.id

        with ThreadPoolExecutor(6) as pool:
            assert len(set(pool.map(call, range(6)))) == 1
    assert len(client.batches()) == 5
    assert runs.runs.keys() == set(client.batches())


@pytest.mark.parametrize("by_header", [True, False])
def test_concurrent_creates_with_one_key_make_one_batch(
    client: Client, runs: RunsOfTests, file_id: str, by_header: bool
) -> None:
    given: dict[str, Any] = {"key": "k"} if by_header else {"metadata": {"idempotency_key": "k"}}
    together = threading.Barrier(8)

    def call(index: int) -> str:
        together.wait()
        return client.create(file_id, store=BatchStore(client.store.root, SECRET), **given).record.id

    with ThreadPoolExecutor(8) as pool:
        ids = set(pool.map(call, range(8)))
    assert len(ids) == 1
    assert ids == set(client.batches()) == runs.runs.keys()


def test_a_key_means_its_batch_for_as_long_as_it_is_kept(
    client: Client, file_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = client.create(file_id, key="k")
    client.caller = Caller("ann", "ann", frozenset(), "a token of the next day")
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 2 * DAY)
    assert client.create(file_id, key="k").record == first.record
    root = client.store.root
    root.delete([entry.path for entry in root.list(f"{BATCHES}/{first.record.id}")])
    assert client.create(file_id, key="k").record.id != first.record.id


def test_a_key_with_another_body_is_refused(client: Client, file_id: str) -> None:
    client.create(file_id, key="k")
    error = refusal(lambda: client.create(file_id, key="k", metadata={"a": "b"}))
    assert (error.status, error.code) == (400, "idempotency_error")
    assert client.create(file_id, key="other", metadata={"a": "b"}).status == "validating"


def test_a_key_in_metadata_belongs_to_its_file_and_user(
    client: Client, runs: RunsOfTests, file_id: str
) -> None:
    metadata = {"idempotency_key": "k"}
    other_file = uploaded(client.store, lines()).id
    bob = Client(client.store, runs, "bob")
    ids = {
        client.create(file_id, metadata=metadata).record.id,
        client.create(other_file, metadata=metadata).record.id,
        bob.create(uploaded(client.store, lines(), owner="bob").id, metadata=metadata).record.id,
    }
    assert len(ids) == 3


def test_what_airflow_refuses_beforehand_leaves_nothing(
    client: Client, runs: RunsOfTests, file_id: str
) -> None:
    runs.check_refusal = RunRefusedError(403, "model: Airflow does not let you.", param="model")
    assert refusal(lambda: client.create(file_id)).status == 403
    assert client.batches() == []
    assert client.store.root.list("creates") == []


def test_a_batch_whose_run_airflow_refuses_never_runs(
    client: Client, runs: RunsOfTests, file_id: str
) -> None:
    runs.refusal = RunRefusedError(503, "Model 'small' can't be used just now.", param="model")
    assert refusal(lambda: client.create(file_id)).status == 503
    [batch_id] = client.batches()
    state = client.store.state(batch_id)
    assert state is not None
    assert (state.status, state.is_over) == ("failed", True)
    runs.refusal = None
    repeated = client.create(file_id, repeats=1)
    assert repeated.record.id != batch_id
    assert runs.runs.keys() == {repeated.record.id}


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"owner": "bob"}, "is not a file of yours"),
        ({"expires_at": 1.0}, "is not a file of yours"),
        ({"purpose": "batch_output"}, "has the purpose 'batch_output'"),
        ({"expires_at": time.time() + 3600}, "before the window of the batch ends; upload it with a later"),
    ],
)
def test_a_file_that_cannot_be_asked_is_refused(client: Client, fields: dict[str, Any], why: str) -> None:
    file = uploaded(client.store, lines(), **fields)
    error = refusal(lambda: client.create(file.id))
    assert (error.status, error.param) == (400, "input_file_id")
    assert why in str(error)
    assert client.batches() == []


@pytest.mark.parametrize("file_id", [f"file-{'0' * 32}", "file-../../secret", "", "batch_1"])
def test_an_unknown_file_is_refused(client: Client, file_id: str) -> None:
    error = refusal(lambda: client.create(file_id))
    assert (error.status, error.param) == (400, "input_file_id")


@pytest.mark.parametrize("users", [None, ("bob",)])
def test_a_model_of_others_is_refused_like_an_unknown_one(client: Client, users: Any) -> None:
    client.models = models(users=users) if users else models(["large"])
    file = uploaded(client.store, lines())
    error = refusal(lambda: client.create(file.id))
    assert (error.status, error.param, error.code) == (404, "model", "model_not_found")
    assert "'small' does not exist or you do not have access" in str(error)


def test_an_endpoint_that_the_model_lacks_is_refused(client: Client, file_id: str) -> None:
    error = refusal(lambda: client.create(file_id, endpoint="/v1/embeddings"))
    assert (error.status, error.param) == (400, "endpoint")


def test_a_file_with_a_broken_first_line_gets_its_run(client: Client, runs: RunsOfTests) -> None:
    file = uploaded(client.store, b"{broken\n" + lines())
    state = client.create(file.id)
    assert state.status == "validating"
    assert runs.runs.keys() == {state.record.id}


@pytest.mark.parametrize("content", [b"", b"\n\n", b"{broken\nworse\n", b'{"custom_id": "a"}\n'])
def test_a_file_that_names_no_model_fails_without_a_run(
    client: Client, runs: RunsOfTests, content: bytes
) -> None:
    state = client.create(uploaded(client.store, content).id)
    assert state.status == "validating"
    found = client.store.state(state.record.id)
    assert found is not None
    assert found.ended is not None
    assert (found.status, bool(found.ended.errors)) == ("failed", True)
    assert runs.triggers == 0
    assert client.batches() == [state.record.id]


def test_an_invalid_file_fails_wherever_the_server_dies(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    file_id, deaths = uploaded(client.store, b"{broken\n").id, 0
    for lives_for in range(8):
        deaths += client.dies(monkeypatch, file_id, lives_for)
        client.create(file_id, repeats=1, metadata={"n": f"{lives_for}"})
    assert deaths == 5  # the entry, the decision, the record, the index, and the end
    states = [client.store.state(batch_id) for batch_id in client.batches()]
    assert [state.status for state in states if state is not None and state.is_over] == ["failed"] * 8


def test_a_user_has_so_many_batches_at_once(client: Client, runs: RunsOfTests, file_id: str) -> None:
    client.limits = ApiLimits(unfinished_batches=1)
    first = client.create(file_id)
    assert refusal(lambda: client.create(file_id)).status == 429
    assert client.create(file_id, repeats=1).record == first.record
    assert runs.runs.keys() == {first.record.id}


def test_no_token_is_stored(client: Client, file_id: str) -> None:
    client.caller = Caller("ann", "ann", frozenset(), "secret-token-of-ann")
    client.create(file_id)
    client.create(file_id, key="secret-key")
    root = client.store.root
    assert isinstance(root, LocalFolder) or root.uri.startswith("s3://")
    for entry in root.list():
        assert "secret-" not in entry.path
        assert b"secret-" not in root.read(entry.path)
