# SPDX-License-Identifier: Apache-2.0
"""S3 that requires keys (moto's server: the real API over HTTP)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch
from urllib.parse import parse_qsl, quote, urlencode

import requests
from moto.iam.access_control import IAMRequestBase

from tests.support.s3_server import S3Server, serving

from .rest import AirflowApi

BUCKET = "lake"


class Lake(S3Server):
    """An S3 server and a valid key."""

    def connect(self, api: AirflowApi, conn_id: str) -> None:
        """Add a connection with this key to Airflow."""
        api.connection(conn_id, "aws", **self.connection())

    def write_rows(self, key: str, rows: Iterable[dict[str, Any]]) -> None:
        body = "".join(json.dumps(row) + "\n" for row in rows)
        self.client().put_object(Bucket=BUCKET, Key=key, Body=body.encode())

    def document(self, uri: str) -> Any:
        """Return a JSON object by its ``s3://`` uri."""
        key = uri.removeprefix(f"s3://{BUCKET}/")
        return json.loads(self.client().get_object(Bucket=BUCKET, Key=key)["Body"].read())

    def contents(self, prefix: str) -> dict[str, bytes]:
        """Return all objects of the bucket below `prefix`, by key."""
        return self.objects(BUCKET, prefix)


def _as_sent(request: Any) -> Any:
    """A request whose query is encoded as signatures have it: moto's check takes it as the client sent it,
    while S3 decodes it first. Rust's clients send `~` and spaces in another way than they sign them.
    """
    where, _, query = request.url.partition("?")
    if query:
        decoded = parse_qsl(query, keep_blank_values=True)
        request.url = f"{where}?{urlencode(decoded, quote_via=quote, safe='')}"
    return request


@contextmanager
def _signatures_of_decoded_queries() -> Iterator[None]:
    read = IAMRequestBase._create_aws_request
    with patch.object(IAMRequestBase, "_create_aws_request", lambda self: _as_sent(read(self))):
        yield


@contextmanager
def locked_lake(for_a_session: bool = False) -> Iterator[Lake]:
    """Serve a bucket ``lake``, with 403 for every other key.

    :param for_a_session: whether the key is a role's short-lived key with a session token.
    """
    with serving() as server, _signatures_of_decoded_queries():
        open_door = Lake(server.url, "anybody", "anything")
        try:
            lake = _role(open_door) if for_a_session else _user(open_door)
            # From here on, moto checks keys and signatures in all servers of this process.
            requests.post(f"{lake.url}/moto-api/reset-auth", data=b"0", timeout=10).raise_for_status()
            lake.client().create_bucket(Bucket=BUCKET)
            yield lake
        finally:
            requests.post(
                f"{open_door.url}/moto-api/reset-auth", data=b"Infinity", timeout=10
            ).raise_for_status()
            requests.post(f"{open_door.url}/moto-api/reset", timeout=10).raise_for_status()


def _user(lake: Lake) -> Lake:
    iam = lake.client("iam")
    iam.create_user(UserName="lake")
    iam.put_user_policy(UserName="lake", PolicyName="all", PolicyDocument=_allowing("s3:*"))
    key = iam.create_access_key(UserName="lake")["AccessKey"]
    return replace(lake, key_id=key["AccessKeyId"], secret=key["SecretAccessKey"])


def _role(lake: Lake) -> Lake:
    iam = lake.client("iam")
    trust = json.dumps({"Version": "2012-10-17", "Statement": []})
    role = iam.create_role(RoleName="nightly", AssumeRolePolicyDocument=trust)["Role"]["Arn"]
    iam.put_role_policy(RoleName="nightly", PolicyName="all", PolicyDocument=_allowing("s3:*"))
    found = lake.client("sts").assume_role(RoleArn=role, RoleSessionName="night")["Credentials"]
    return replace(
        lake,
        key_id=found["AccessKeyId"],
        secret=found["SecretAccessKey"],
        session_token=found["SessionToken"],
    )


def _allowing(action: str) -> str:
    allowed = {"Effect": "Allow", "Action": action, "Resource": "*"}
    return json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
