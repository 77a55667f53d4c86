# SPDX-License-Identifier: Apache-2.0
"""Datasets of the Hugging Face hub as a source, against a hub of this process over TLS."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import SecretStr

from airflow_provider_raybatch.contract.arguments.data import InputArguments
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.job.input import hub as hub_module
from airflow_provider_raybatch.job.input.listing import Listing, resolve
from airflow_provider_raybatch.job.input.reader import Reader
from airflow_provider_raybatch.job.input.survey import cut, survey
from airflow_provider_raybatch.job.preflight.input_check import source_notes
from airflow_provider_raybatch.storage.errors import StorageError
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.dataset_hub import DatasetHub, serving
from tests.support.http_server import OUT_OF_REACH, out_of_reach
from tests.support.hub import serving as serving_models
from tests.support.reading import ROWS, WRITERS, as_jsonl, packed, read_all
from tests.support.saved_dataset import save_to_disk
from tests.support.sources import look_at_source
from tests.support.specs import spec

NAME = "acme/reviews"
TOKEN = SecretStr("hf_member")
FILES = {
    "README.md": b"---\nlicense: mit\n---\n",
    "data/test-00000-of-00001.parquet": WRITERS["parquet"](ROWS[:50]),
    "data/train-00000-of-00002.parquet": WRITERS["parquet"](ROWS[:300]),
    "data/train-00001-of-00002.parquet": WRITERS["parquet"](ROWS[300:]),
    "small/odd name #1.jsonl": as_jsonl(ROWS[:3]),
    "small/more.jsonl.gz": packed(as_jsonl(ROWS[3:40]), "gz"),
}
TRAIN = f"hf://datasets/{NAME}@main/data/train-*.parquet"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DatasetHub]:
    with serving(tmp_path_factory.mktemp("hub")) as hub:
        yield hub


@pytest.fixture
def hub(server: DatasetHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> DatasetHub:
    """A hub with one dataset; this machine has no token of its own."""
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setenv("SSL_CERT_FILE", str(server.authority))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    for name in ("HF_HUB_OFFLINE", "HF_TOKEN", "HF_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(hub_module.time, "sleep", lambda seconds: None)
    server.branches.clear()
    server.commits.clear()
    server.asked.clear()
    server.troubles.clear()
    server.tokens, server.is_gated = None, False
    server.push(NAME, FILES)
    return server


def listed(*source: str, token: SecretStr | None = None, **fields: Any) -> Listing:
    return resolve(InputArguments(source=list(source), **fields), None, token=token)


def refused(source: str, token: SecretStr | None = None) -> str:
    with pytest.raises(RaybatchError) as error:
        listed(source, token=token)
    assert error.value.failure_class is FailureClass.USER_ERROR
    return str(error.value)


def test_files_of_a_glob_are_read_at_one_commit(hub: DatasetHub) -> None:
    """The branch moves after the listing, and the files of the old commit are read."""
    commit = hub.branches[NAME, "main"]
    listing = listed(TRAIN)
    chunks = cut(survey(listing, None), 40, None)
    hub.push(NAME, {**FILES, "data/train-00000-of-00002.parquet": WRITERS["parquet"](ROWS[::-1])})
    reader = Reader(listing, ["id"], None)
    read = [reader.read(chunk) for chunk in chunks]
    assert [row["id"] for rows in read for row in rows.rows] == list(range(500))  # type: ignore[call-overload]
    assert [row for rows in read for row in rows.columns().to_pylist()] == ROWS
    assert [file.uri for file in listing.files] == [
        f"hf://datasets/{NAME}@main/data/train-0000{number}-of-00002.parquet" for number in (0, 1)
    ]
    assert {file.place.partition("@")[2][:40] for file in listing.files} == {commit}
    assert listing.commits == [f"hf://datasets/{NAME}@main is read at commit {commit}"]


def test_the_token_reaches_the_hub_alone(hub: DatasetHub) -> None:
    hub.tokens = {"hf_member"}
    listing = listed(TRAIN, token=TOKEN)
    _, rows, _ = read_all(listing)
    assert len(rows) == 500
    assert {(one.server, one.login) for one in hub.asked} == {("hub", "Bearer hf_member"), ("cdn", "")}
    assert "hf_member" not in repr(listing)


@pytest.mark.parametrize("variable", ["HF_TOKEN", "HF_TOKEN_PATH", "HF_HOME"])
def test_the_token_of_the_machine_is_used(
    hub: DatasetHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    hub.tokens = {"hf_member"}
    (tmp_path / "token").write_text("hf_member\n")
    values = {"HF_TOKEN": "hf_member", "HF_TOKEN_PATH": str(tmp_path / "token"), "HF_HOME": str(tmp_path)}
    monkeypatch.setenv(variable, values[variable])
    assert len(listed(TRAIN).files) == 2


def test_a_moved_branch_is_another_input_where_files_changed(hub: DatasetHub) -> None:
    """A new text of the dataset's card changes nothing, so that a retry goes on."""
    first = listed(TRAIN)
    hub.push(NAME, {**FILES, "README.md": b"# Reviews"})
    card = listed(TRAIN)
    hub.push(NAME, {**FILES, "data/train-00001-of-00002.parquet": WRITERS["parquet"](ROWS[301:])})
    moved = listed(TRAIN)
    assert first.digest == card.digest != moved.digest
    assert first.files[0].place != card.files[0].place


@pytest.mark.parametrize(
    ("revision", "written"),
    [
        ("main", ""),
        ("v1.0", "@v1.0"),
        ("refs/convert/parquet", "@refs/convert/parquet"),
        ("refs/convert/parquet", "@refs%2Fconvert%2Fparquet"),
        ("refs/pr/7", "@refs/pr/7"),
    ],
)
def test_revisions(hub: DatasetHub, revision: str, written: str) -> None:
    commit = hub.push(NAME, {"split/0.parquet": WRITERS["parquet"](ROWS)}, revision)
    for path in ("", "/", "/split", "/split/", "/split/0.parquet", "/**/*.parquet"):
        (file,) = listed(f"hf://datasets/{NAME}{written}{path}").files
        assert file.place == f"hf://datasets/{NAME}@{commit}/split/0.parquet"
        assert file.uri == f"hf://datasets/{NAME}{written}/split/0.parquet"
    assert len(listed(f"hf://datasets/{NAME}@{commit}/split").files) == 1


def test_text_and_packed_files(hub: DatasetHub) -> None:
    listing = listed(f"hf://datasets/{NAME}/small/odd name #1.jsonl", f"hf://datasets/{NAME}/small/*.gz")
    _, rows, _ = read_all(listing)
    assert rows == ROWS[:40]


def test_a_saved_dataset_on_the_hub(hub: DatasetHub, tmp_path: Path) -> None:
    save_to_disk(LocalFolder(str(tmp_path)), "ds", [pa.table({"n": range(900)}), pa.table({"n": [900]})])
    hub.push(NAME, {f"ds/{path.name}": path.read_bytes() for path in (tmp_path / "ds").iterdir()})
    _, rows, _ = read_all(listed(f"hf://datasets/{NAME}/ds"))
    assert [row["n"] for row in rows if isinstance(row, dict)] == list(range(901))


def test_partitions_come_from_folders_of_the_repository(hub: DatasetHub) -> None:
    hub.push(NAME, {"day=2026-01-01/x.jsonl": b'{"a": 1}\n'}, "x=1")
    _, rows, _ = read_all(listed(f"hf://datasets/{NAME}@x=1"))
    assert [str(row) for row in rows] == ["{'a': 1, 'day': datetime.date(2026, 1, 1)}"]


@pytest.mark.parametrize(
    "troubles",
    [
        [(429, {"RateLimit": '"api";r=0;t=55'}, b""), (503, {"Retry-After": "1"}, b""), (500, {}, b"")],
        [(502, {}, b"<html>"), (200, {"Content-Length": "99"}, b"cut")],
    ],
)
def test_what_passes_is_waited_for(hub: DatasetHub, troubles: list[Any]) -> None:
    hub.troubles.extend(troubles)
    listing = listed(TRAIN)
    hub.troubles.extend(troubles)
    assert len(read_all(listing)[1]) == 500


def test_a_hub_that_stays_away_is_an_error_of_storage(
    hub: DatasetHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "_LONGEST", 0)
    hub.troubles.append((503, {}, b""))
    with pytest.raises(StorageError, match="can't be read, the server answered 503, tried for 0 s;") as error:
        listed(TRAIN)
    assert error.value.failure_class is FailureClass.STORAGE


@pytest.mark.parametrize("revision", ["main", "a" * 40])
@pytest.mark.parametrize("kind", OUT_OF_REACH)
def test_a_hub_out_of_reach_is_refused(monkeypatch: pytest.MonkeyPatch, kind: str, revision: str) -> None:
    """Without the retries of a hub that has answered."""
    monkeypatch.setattr(hub_module, "_SILENCE", 0.3, raising=False)
    monkeypatch.setattr(hub_module.time, "sleep", lambda seconds: None)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    source = f"hf://datasets/{NAME}@{revision}"
    with out_of_reach(kind) as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        with pytest.raises(StorageError) as error:
            listed(f"{source}/data")
    said = str(error.value)
    assert said.startswith(f"source: {source} is on the hub at {url}, which can't be reached from the ")
    assert said.endswith("HF_ENDPOINT to a mirror, on its nodes, or copy the files into a bucket.")
    assert error.value.failure_class is FailureClass.STORAGE


def test_any_answer_shows_that_the_hub_is_in_reach(hub: DatasetHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one by a proxy, or of a server whose certificate is not trusted."""
    hub_module.ping(hub.url)
    monkeypatch.delenv("SSL_CERT_FILE")
    hub_module.ping(hub.url)
    with serving_models() as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        hub_module.ping("http://no-such-host.invalid")
    assert proxy.pings == 1


def test_a_hub_is_asked_once_whether_it_answers(hub: DatasetHub) -> None:
    files = [file.uri for file in listed(TRAIN).files]
    hub.pings = 0
    assert len(listed(*files).files) == len(files) > 1
    assert hub.pings == 1


def test_a_commit_that_is_gone_is_listed_anew_by_a_retry(hub: DatasetHub) -> None:
    listing = listed(TRAIN)
    hub.commits.clear()
    with pytest.raises(StorageError, match="is gone from the hub, as after a rewritten history") as error:
        survey(listing, None)
    assert error.value.failure_class is FailureClass.STORAGE


def test_what_the_hub_refuses_is_one_sentence(hub: DatasetHub, monkeypatch: pytest.MonkeyPatch) -> None:
    no_path = f"hf://datasets/{NAME}@main/data/gone.parquet"
    assert refused(no_path).startswith(f"source: nothing is at {no_path}; check the path")
    assert refused(f"hf://datasets/{NAME}@v2/data") == (
        f"source: dataset {NAME} has no revision 'v2'; name a branch, a tag or a commit."
    )
    missing = "source: the hub shows no dataset acme/{} {}; check its name, and where it is private name a "
    assert refused("hf://datasets/acme/revews").startswith(missing.format("revews", "without a token"))
    hub.tokens = {"hf_member"}
    assert refused(TRAIN).startswith(missing.format("reviews", "without a token"))
    assert refused(TRAIN, SecretStr("hf_other")).startswith(
        missing.format("reviews", "to the holder of this token")
    )
    assert refused(TRAIN, SecretStr("expired")) == (
        "source: the hub refuses the token; put a new one into the connection of hf_conn_id."
    )
    hub.is_gated = True
    with pytest.raises(StorageError) as error:
        survey(listed(TRAIN), None)
    assert str(error.value) == (
        f"source: dataset {NAME} is gated; accept its terms at {hub.url}/datasets/{NAME}, and name a "
        "connection with that account's token in hf_conn_id."
    )
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "HF_HUB_OFFLINE is set on the cluster; unset it" in refused(TRAIN)


def test_another_server_is_noticed(hub: DatasetHub) -> None:
    hub.troubles.append((200, {}, b"<html>"))
    assert "does not answer as the Hugging Face hub does; check HF_ENDPOINT." in refused(TRAIN)


JSONL, INFO = as_jsonl(ROWS[:3]), b'{"default": {}}'


@pytest.mark.parametrize(
    ("files", "kept"),
    [
        ({"a.jsonl": JSONL, "dataset_infos.json": INFO, "meta/stats.json": INFO}, {"a.jsonl"}),
        ({"a.parquet": FILES["data/test-00000-of-00001.parquet"], "stats.json": INFO}, {"a.parquet"}),
        ({"a.csv": b"x", "b.csv": b"x", "c.jsonl": JSONL, "config.json": INFO}, {"a.csv", "b.csv"}),
        ({"a.json": JSONL, "b.json.gz": packed(JSONL, "gz"), "README.md": b"#"}, {"a.json", "b.json.gz"}),
    ],
)
def test_files_beside_the_data_are_no_rows(hub: DatasetHub, files: dict[str, bytes], kept: set[str]) -> None:
    hub.push(NAME, files)
    listing = listed(f"hf://datasets/{NAME}")
    at = f"hf://datasets/{NAME}/"
    assert {file.uri.removeprefix(at) for file in listing.files} == kept
    known = {one for one in files if one != "README.md"}  # it has no extension of data
    assert {one.removeprefix(at) for one in listing.left_out} == known - kept


def test_files_beside_the_data_are_read_where_they_are_named(hub: DatasetHub) -> None:
    hub.push(NAME, {"a.json": JSONL, "x/dataset_infos.json": INFO, "README.md": b"#"})
    for path in ("x/dataset_infos.json", "*/dataset_infos.json"):
        assert len(listed(f"hf://datasets/{NAME}/{path}").files) == 1
    assert [file.uri[-6:] for file in listed(f"hf://datasets/{NAME}/**").files] == ["a.json"]
    listing = listed(f"hf://datasets/{NAME}", format="jsonl")
    assert [file.uri[-6:] for file in listing.files] == ["a.json"]
    hub.push(NAME, {"dataset_infos.json": INFO, "0.png": b""})
    assert "no Parquet, JSONL, CSV or Arrow file is in" in refused(f"hf://datasets/{NAME}")


def test_splits_that_are_joined_are_told(hub: DatasetHub) -> None:
    hub.push(NAME, {**FILES, "dataset_infos.json": INFO})
    asking = spec(source=[f"hf://datasets/{NAME}/data"], prompt="{row.id}")
    source = look_at_source(asking)
    assert source.rows == 550
    assert source_notes(source)[-1] == (
        "source: its files are of several splits, which are read together: test (50 rows), train (500 rows); "
        "to read one, name its files."
    )
    assert len(source_notes(look_at_source(spec(source=[TRAIN], prompt="{row.id}")))) == 1
