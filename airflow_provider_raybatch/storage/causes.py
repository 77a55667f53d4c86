# SPDX-License-Identifier: Apache-2.0
"""Refusals of S3 that have one cause and one remedy, and that no repetition of the call heals."""

from __future__ import annotations

import re
from dataclasses import dataclass

from airflow_provider_raybatch.contract.failures import FailureClass

_CODE = re.compile(r"<Code>(\w+)</Code>|\(code: (\w+)\)")
"""The second is obstore's, of a key in a deletion of many."""
_REGION = re.compile(r"<Region>([\w-]+)</Region>|expecting '([\w-]+)'")
_CERTIFICATE = re.compile(r"InvalidCertificate\(\s*(\w+)")
"""Only the part for developers of obstore's message has it."""


@dataclass(frozen=True)
class Cause:
    """What is wrong and what helps, as the end of a sentence.

    :param failure_class: ``storage`` where it may be another machine's or another hour's turn.
    """

    sentence: str
    failure_class: FailureClass = FailureClass.USER_ERROR


_EXPIRED = Cause(
    "the credentials have expired; a retry assumes a role again, but a session token that is stored must be "
    "replaced",
    FailureClass.STORAGE,
)
_BY_CODE = {
    "ExpiredToken": _EXPIRED,
    "TokenRefreshRequired": _EXPIRED,
    "RequestTimeTooSkewed": Cause(
        "the clock of this machine differs from that of S3 by more than 15 minutes; set it, by NTP for "
        "example",
        FailureClass.STORAGE,
    ),
}
_OTHER_REGION = {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}
_BY_CERTIFICATE = {
    "Expired": "its certificate has expired; renew it, or set the clock of this machine",
    "NotValidYet": "its certificate is not valid yet; set the clock of this machine",
    "NotValidForName": "its certificate is for another host; correct endpoint_url",
    "UnknownIssuer": (
        "its certificate is of an authority that this machine doesn't know; set verify in the extra of the "
        "aws connection to the authority's PEM file, or AWS_CA_BUNDLE in the environment"
    ),
}


def cause_of(text: str) -> Cause | None:
    """The cause of a refusal, ``None`` where it is none of these.

    :param text: obstore's whole message.
    """
    said = code(text)
    if said in _BY_CODE:
        return _BY_CODE[said]
    if said in _OTHER_REGION or "redirect without LOCATION" in text:
        found = _REGION.search(text)
        where = f" ({found[1] or found[2]})" if found else ""
        return Cause(
            f"its bucket lies in another region{where}; set region_name in the extra of the aws connection, "
            "or AWS_REGION in the environment"
        )
    if wrong := _CERTIFICATE.search(text):
        other = f"its certificate can't be used ({wrong[1]}); replace it"
        return Cause(_BY_CERTIFICATE.get(wrong[1].removesuffix("Context"), other))
    if "InvalidContentType" in text:  # what rustls makes of an answer that is not TLS
        return Cause("it speaks http and not https; correct endpoint_url")
    return None


def code(text: str) -> str | None:
    """S3's own code in obstore's message."""
    said = _CODE.search(text)
    return said and (said[1] or said[2])
