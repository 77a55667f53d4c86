# SPDX-License-Identifier: Apache-2.0
"""Files of users, asked of the Batch API on a disk and in a bucket."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from fastapi.middleware.gzip import GZipMiddleware
from fastapi.responses import JSONResponse

from airflow_provider_raybatch.batch_api.server import files as module
from airflow_provider_raybatch.batch_api.server.access import Caller
from airflow_provider_raybatch.batch_api.store.ids import new_file_id, owner_digest
from airflow_provider_raybatch.batch_api.store.records import FileRecord
from airflow_provider_raybatch.contract import layout
from airflow_provider_raybatch.storage.folder import Folder, LocalFolder
from tests.support.batch_api import created, stored
from tests.support.batch_server import LINE, BatchServer, batch_server, store_of_server

DAY = 86_400
EXPIRES_SOON = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}


def ids(answer: Any) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [one["id"] for one in answer.json()["data"]]


def output(pieces: dict[str, bytes], **fields: Any) -> FileRecord:
    """A file as a batch makes it, of parts of its dataset."""
    return stored(store_of_server(), pieces, purpose="batch_output", **fields)


def test_a_file_from_upload_to_deletion(api: BatchServer) -> None:
    content = LINE * 1000
    file = api.file(content, name="requests ü.jsonl")
    assert (file["bytes"], file["filename"], file["purpose"]) == (len(content), "requests ü.jsonl", "batch")
    assert file["expires_at"] - file["created_at"] == 30 * DAY
    assert api.get(f"/files/{file['id']}").json() == file
    assert api.get("/files").json()["data"] == [file]
    answer = api.get(f"/files/{file['id']}/content")
    assert answer.content == content
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-length"] == str(len(content))
    deleted = api.delete(f"/files/{file['id']}")
    assert deleted.json() == {"id": file["id"], "object": "file", "deleted": True}
    assert ids(api.get("/files")) == []
    for path in (f"/files/{file['id']}", f"/files/{file['id']}/content"):
        assert api.get(path).status_code == 404
    assert api.delete(f"/files/{file['id']}").status_code == 404
    assert store_of_server().root.list() == []


def test_files_of_others_are_not_there(api: BatchServer) -> None:
    """Not for an admin either: whose words are the same as about an id that never was."""
    file = api.file()
    path, unknown = f"/files/{file['id']}", f"/files/{new_file_id()}"
    for user in ("bob", "admin"):
        for method, below in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
            answer, other = api.ask(method, path + below, user), api.ask(method, unknown + below, user)
            assert answer.status_code == other.status_code == 404
            text = other.text.replace(unknown.rpartition("/")[2], file["id"])
            assert answer.text == text
        assert ids(api.get("/files", user)) == []
    assert api.get(path).status_code == 200


def test_expired_files_are_gone_before_they_are_deleted(api: BatchServer, folder: Folder) -> None:
    now = time.time()
    output({"batches/b/old": b"x"}, created_at=now - DAY, expires_at=now - 1)
    left = output({"batches/b/new": b"x"})
    [gone] = [one.id for one in store_of_server().files("ann") if one.id != left.id]
    assert ids(api.get("/files")) == [left.id]
    for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
        assert api.ask(method, f"/files/{gone}{path}").status_code == 404
    # A client that pages meanwhile goes on behind it.
    assert ids(api.get(f"/files?after={gone}")) == []
    assert ids(api.get(f"/files?after={gone}&order=asc")) == [left.id]


def test_listings_by_purpose_order_and_page(api: BatchServer, folder: Folder) -> None:
    uploads = [api.file()["id"] for _ in range(3)]
    made = output({"batches/b/part": b"x"}).id
    assert ids(api.get("/files")) == [made, *reversed(uploads)]
    assert ids(api.get("/files?order=asc&purpose=batch")) == uploads
    assert ids(api.get("/files?purpose=batch_output")) == [made]
    assert ids(api.get("/files?purpose=fine-tune")) == []
    first = api.get("/files?limit=2").json()
    assert (first["has_more"], first["first_id"], first["last_id"]) == (True, made, uploads[2])
    second = api.get(f"/files?limit=2&after={first['last_id']}").json()
    assert [one["id"] for one in second["data"]] == [uploads[1], uploads[0]]
    assert second["has_more"] is False
    for query in ("limit=0", "limit=10001", "order=up", f"after={new_file_id()}"):
        answer = api.get(f"/files?{query}")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, query.partition("=")[0])


def test_a_client_that_deletes_what_it_lists_sees_all(on_disk: BatchServer) -> None:
    uploads = [on_disk.file()["id"] for _ in range(5)]
    seen: list[str] = []
    page = on_disk.get("/files?limit=2").json()
    while page["data"]:
        for one in page["data"]:
            seen.append(one["id"])
            on_disk.delete(f"/files/{one['id']}")
        page = on_disk.get(f"/files?limit=2&after={seen[-1]}").json()
    assert seen == uploads[::-1]
    assert on_disk.get(f"/files?after={seen[-1]}", "bob").status_code == 400


def test_an_output_file_is_its_parts_in_order(api: BatchServer, folder: Folder) -> None:
    parts = {f"batches/b/dataset/data/c/part-{number}": b"%d\n" % number * 50_000 for number in range(4)}
    file = output(parts)
    answer = api.get(f"/files/{file.id}/content")
    assert answer.content == b"".join(parts.values())
    assert answer.headers["content-length"] == str(file.bytes)
    assert api.delete(f"/files/{file.id}").status_code == 200
    assert [entry.path for entry in folder.list("batches")] == []


@pytest.mark.parametrize(
    ("asked", "part"),
    [
        ("bytes=0-0", slice(1)), ("bytes=0-", slice(None)), ("bytes=1-9", slice(1, 10)),
        ("bytes=99990-", slice(99_990, None)), ("bytes=-7", slice(-7, None)), (" BYTES=5-5 ", slice(5, 6)),
        ("bytes=49999-150000", slice(49_999, 150_001)), ("bytes=-300000", slice(None)),
        ("bytes=100000-99999999", slice(100_000, None)),
        ("bytes=0-1,5-6", None), ("rows=0-1", None), ("bytes=-", None), ("bytes=a-b", None), ("0-1", None),
    ],
)  # fmt: skip
def test_a_range_of_a_file(on_disk: BatchServer, disk: Folder, asked: str, part: slice | None) -> None:
    """Of a file in parts, through the middleware of Airflow that compresses for those who take it."""
    parts = {f"batches/b/part-{number}": b"%d" % number * 50_000 for number in range(4)}
    file, content = output(parts), b"".join(parts.values())
    compressed = BatchServer(GZipMiddleware(on_disk.app, minimum_size=1024, compresslevel=5))
    answer = compressed.get(f"/files/{file.id}/content", headers={"Range": asked, "Accept-Encoding": "gzip"})
    wanted = content if part is None else content[part]
    assert (answer.status_code, answer.content) == (200 if part is None else 206, wanted)
    start, stop, _ = (part or slice(None)).indices(len(content))
    assert answer.headers.get("content-range") == (part and f"bytes {start}-{stop - 1}/{len(content)}")
    names = ("content-length", "content-encoding", "accept-ranges", "etag")
    assert [answer.headers[name] for name in names] == [
        str(len(wanted)), "identity", "bytes", f'"{file.id}"',
    ]  # fmt: skip


@pytest.mark.parametrize("path", ["/files", "/batches", f"/files?after={'x' * 2000}"])
def test_no_answer_is_compressed(on_disk: BatchServer, path: str) -> None:
    """Airflow's middleware would do that in the event loop."""
    for _ in range(4):
        created(store_of_server())
    compressed = BatchServer(GZipMiddleware(on_disk.app, minimum_size=100))
    answer = compressed.get(path, headers={"Accept-Encoding": "gzip"})
    assert len(answer.content) > 100
    assert answer.headers["content-encoding"] == "identity"


def test_a_range_of_another_version_is_the_whole(on_disk: BatchServer) -> None:
    path = f"/files/{on_disk.file()['id']}/content"
    tag = on_disk.get(path).headers["etag"]
    for given, status in ((tag, 206), ('"other"', 200), ("Sun, 06 Nov 1994 08:49:37 GMT", 200)):
        answer = on_disk.get(path, headers={"Range": "bytes=0-0", "If-Range": given})
        assert answer.status_code == status


@pytest.mark.parametrize("asked", [f"bytes={len(LINE)}-", "bytes=-0", "bytes=4-3"])
def test_a_range_of_no_byte_is_refused(on_disk: BatchServer, asked: str) -> None:
    answer = on_disk.get(f"/files/{on_disk.file()['id']}/content", headers={"Range": asked})
    assert (answer.status_code, answer.headers["content-range"]) == (416, f"bytes */{len(LINE)}")
    assert answer.json()["error"]["param"] == "Range"


def test_a_deleted_file_is_gone_at_another_server(api: BatchServer) -> None:
    file = api.file()
    other = BatchServer(api.app)  # the first one's caches are warm
    assert ids(api.get("/files")) == [file["id"]]
    store = store_of_server()
    record = store.file(file["id"])
    assert record is not None
    store.delete_file(record)
    assert ids(other.get("/files")) == []
    assert other.get(f"/files/{file['id']}").status_code == 404


def test_content_that_is_missing_is_no_defect(on_disk: BatchServer, disk: Folder) -> None:
    file = output({"batches/b/part": b"x"})
    disk.delete(["batches/b/part"])
    answer = on_disk.get(f"/files/{file.id}/content")
    assert answer.status_code == 503
    assert answer.json()["error"]["type"] == "server_error"
    assert "batches/b/part" not in answer.text


def test_names_of_files_can_not_end_a_header(on_disk: BatchServer, disk: Folder) -> None:
    name = 'a"\r\nSet-Cookie: x=1\r\n/../b\\c.jsonl'
    file = output({"batches/b/part": b"x"}, filename=name)
    headers = on_disk.get(f"/files/{file.id}/content").headers
    assert "set-cookie" not in headers
    assert headers["content-disposition"].startswith(
        f'attachment; filename="{file.id}.jsonl"; filename*=UTF-8'
    )
    assert not set(headers["content-disposition"]) & set("/\\\r\n")


def test_a_server_that_died_in_an_upload_lists_nothing(on_disk: BatchServer, disk: Folder) -> None:
    """Its content may be there, and the key in the index, but not the record."""
    file = on_disk.file()
    place = layout.file_folder(file["id"])
    disk.delete([f"{place}/{layout.SIGNED_RECORD}"])
    assert ids(on_disk.get("/files")) == []
    assert on_disk.get(f"/files/{file['id']}").status_code == 404


def test_a_damaged_record_hides_its_own_file_alone(on_disk: BatchServer, disk: Folder) -> None:
    bad, good = on_disk.file(), on_disk.file()
    disk.write(f"{layout.file_folder(bad['id'])}/{layout.SIGNED_RECORD}", b"{}")
    assert ids(on_disk.get("/files")) == [good["id"]]
    assert on_disk.get(f"/files/{bad['id']}").status_code == 503


def test_a_forged_key_shows_no_foreign_file(on_disk: BatchServer, disk: Folder) -> None:
    """Whoever may write to the bucket still can't list a file of another user as one's own."""
    on_disk.file(user="admin")
    [key] = disk.list(layout.user_index(owner_digest("admin"), layout.FILES))
    mine = layout.user_index(owner_digest("ann"), layout.FILES)
    disk.write(f"{mine}/{key.path.rpartition('/')[2]}", b"x")
    disk.write(f"{mine}/nonsense", b"x")
    assert ids(on_disk.get("/files")) == []


@pytest.fixture
def small(server: object, disk: Folder, monkeypatch: pytest.MonkeyPatch) -> BatchServer:
    """A server with narrow limits."""
    monkeypatch.setenv("AIRFLOW__RAYBATCH__BATCH_API_MAX_FILE_BYTES", "1000")
    monkeypatch.setenv("AIRFLOW__RAYBATCH__BATCH_API_MAX_USER_BYTES", "2500")
    return batch_server(monkeypatch, disk)


def test_an_upload_above_the_limit_leaves_nothing(small: BatchServer, disk: Folder) -> None:
    answer = small.upload(b"x" * 1001)
    assert (answer.status_code, answer.json()["error"]["code"]) != (413, "storage_limit_exceeded")
    assert answer.status_code == 413
    assert disk.list() == []
    small.file(b"x" * 1000)


def test_a_user_without_room_is_refused(small: BatchServer, disk: Folder) -> None:
    first, _ = small.file(b"x" * 1000), small.file(b"x" * 1000)
    for content in (b"x" * 501, b"x" * 1001):
        answer = small.upload(content)
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "storage_limit_exceeded")
    small.file(b"x" * 500)
    assert small.upload(b"x").status_code == 413
    small.file(b"x", user="bob")
    small.delete(f"/files/{first['id']}")
    small.file(b"x" * 1000)
    stored = [entry for entry in disk.list(layout.FILES) if entry.path.endswith(layout.CONTENT)]
    assert sum(entry.size for entry in stored) == 2501


def test_room_that_went_meanwhile_is_seen_at_the_end(
    small: BatchServer, disk: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another server stores a file while this one's upload comes in."""
    arrives = module.receive_upload

    async def receive(*given: Any) -> Any:
        output({"batches/b/part": b"x" * 2400})
        return await arrives(*given)

    monkeypatch.setattr(module, "receive_upload", receive)
    answer = small.upload(b"x" * 900)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "storage_limit_exceeded")
    assert disk.list(layout.FILES) == [
        entry for entry in disk.list(layout.FILES) if entry.path.endswith(layout.SIGNED_RECORD)
    ]


def test_a_user_who_asks_too_often_waits(
    server: object, disk: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__RAYBATCH__BATCH_API_REQUESTS_PER_MINUTE", "2")
    api = batch_server(monkeypatch, disk)
    answers = [api.get("/files") for _ in range(3)]
    assert [one.status_code for one in answers] == [200, 200, 429]
    assert int(answers[2].headers["retry-after"]) >= 1
    assert api.get("/files", "bob").status_code == 200


@pytest.mark.parametrize("linked", ["part-00000.jsonl", ""])
def test_a_link_to_a_file_of_the_server_is_not_followed(
    on_disk: BatchServer, disk: LocalFolder, tmp_path: Path, linked: str
) -> None:
    """A node that may write to a shared folder must not read by the API server's rights."""
    secret = tmp_path / "airflow" / "part-00000.jsonl"
    secret.parent.mkdir()
    secret.write_bytes(b"fernet_key")
    record = output({"batches/b/dataset/part-00000.jsonl": b"0123456789"})
    dataset = Path(disk.root, "batches/b/dataset")
    if linked:
        (dataset / linked).unlink()
        (dataset / linked).symlink_to(secret)
    else:
        shutil.rmtree(dataset)
        dataset.symlink_to(secret.parent)
    answer = on_disk.get(f"/files/{record.id}/content")
    assert answer.status_code == 503
    assert "fernet" not in answer.text


def test_an_administrator_may_link_a_folder_of_the_root(
    on_disk: BatchServer, disk: LocalFolder, tmp_path: Path
) -> None:
    file_id = on_disk.file()["id"]
    shutil.move(f"{disk.root}/files", tmp_path / "elsewhere")
    Path(disk.root, "files").symlink_to(tmp_path / "elsewhere")
    assert on_disk.get(f"/files/{file_id}/content").content == LINE


def test_refused_and_deleted_files_leave_no_folder(on_disk: BatchServer, disk: LocalFolder) -> None:
    assert on_disk.upload(name="a.txt").status_code == 400
    assert on_disk.delete(f"/files/{on_disk.file()['id']}").status_code == 200
    assert list(Path(disk.root, "files").iterdir()) == []


def test_a_file_that_is_deleted_while_it_is_read_is_gone(api: BatchServer, monkeypatch: Any) -> None:
    file_id = api.file()["id"]
    store = api.app.state.service.store()
    kind, read = type(store.root), type(store.root).read

    def deleted_before(root: Folder, path: str) -> bytes:
        store.root.delete([path])
        return read(root, path)

    monkeypatch.setattr(kind, "read", deleted_before)
    assert api.get(f"/files/{file_id}").status_code == 404


def test_the_next_page_after_a_file_that_has_expired(on_disk: BatchServer, monkeypatch: Any) -> None:
    files = [on_disk.file(**EXPIRES_SOON)["id"], *(on_disk.file()["id"] for _ in range(2))]
    now = time.time()
    monkeypatch.setattr(module.time, "time", lambda: now + 3700)
    assert ids(on_disk.get(f"/files?after={files[0]}&order=asc")) == files[1:]


def test_users_are_told_apart_in_what_was_deleted(on_disk: BatchServer) -> None:
    service = on_disk.app.state.service
    service.deleted_files.keep("ann/x/file", 1.0)  # of a user "ann/x"
    assert on_disk.get("/files?after=x/file").status_code == 400


async def test_the_text_of_a_listing_is_made_in_a_thread(on_disk: BatchServer) -> None:
    """A page may have 10,000 files, and the event loop is that of Airflow's own pages."""
    service, caller = on_disk.app.state.service, Caller("ann", "ann", frozenset(), "token")
    loop, rendered = threading.get_ident(), list[int]()

    class Noticed(JSONResponse):
        def render(self, content: Any) -> bytes:
            rendered.append(threading.get_ident())
            return super().render(content)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "JSONResponse", Noticed)
        await module.list_files(caller, service)
    assert len(rendered) == 1
    assert rendered[0] != loop
