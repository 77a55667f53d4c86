# SPDX-License-Identifier: Apache-2.0
"""Where a source may lead, and which version of it is read."""

from __future__ import annotations

from ..mutant import by_file

MUTANTS = by_file({
    "job/input/addresses.py": {
        "link-local-is-private": (
            "    if ip.is_link_local or ip in _METADATA:\n",
            "    if ip in _METADATA:\n",
            "A source reads the credentials of the node.",
            "job/input/test_guarded_http.py::test_a_link_local_address_is_never_read",
        ),
        "addresses-inside-of-ipv6-are-not-seen": (
            'ip = _carried(ipaddress.ip_address(address.partition("%")[0]))',
            'ip = ipaddress.ip_address(address.partition("%")[0])',
            "An address of IPv4 written as one of IPv6 is read, wherever it leads.",
            "job/input/test_addresses.py",
        ),
    },
    "job/input/guarded_http.py": {
        "a-public-host-leads-anywhere": (
            "request.is_after_public = req.is_public",
            "request.is_after_public = False",
            "Whoever serves a source reads files of the cluster's own network by a redirect.",
            "job/input/test_guarded_http.py::test_a_public_host_does_not_lead_to_a_private_one",
        ),
        "connects-by-name": (
            "self.sock = _connected(self.addresses, self.timeout)",
            "self.sock = socket.create_connection((self.host, self.port), self.timeout)",
            "A name that means another address a moment later leads past the check.",
            "job/input/test_guarded_http.py::test_a_name_is_read_at_the_address_that_was_checked",
        ),
        "headers-go-along": (
            "        request.named = here\n",
            "        request.named = here\n        request.headers.update(req.headers)\n",
            "The login of a proxy goes to the next host.",
            "job/input/test_guarded_http.py::test_what_belongs_to_a_host_is_not_sent_to_the_next",
        ),
        "login-goes-along": (
            'GuardedRequest(newurl, req.span, req.login if is_same else "", req.bounds)',
            "GuardedRequest(newurl, req.span, req.login, req.bounds)",
            "The token for the Hugging Face hub goes to the servers that have its files.",
            "job/input/test_hub.py::test_the_token_reaches_the_hub_alone",
        ),
        "from-https-to-http": (
            '        if new.scheme not in {"https", urlsplit(here).scheme}:\n',
            '        if new.scheme not in {"https", "http"}:\n',
            "Rows come over a line that anyone may change.",
            "job/input/test_guarded_http.py::test_other_redirects_are_not_followed",
        ),
    },
    "job/input/listing.py": {
        "a-branch-is-read-as-it-moves": (
            "return replace(found, pinned=place.pinned(entry.path), token=place.token)",
            "return replace(found, token=place.token)",
            "Rows of two versions of a dataset come out as those of one.",
            "job/input/test_hub.py::test_files_of_a_glob_are_read_at_one_commit",
        ),
    },
    "job/input/saved_datasets.py": {
        "any-file-counts": (
            "    return [there[name] for name in names]\n",
            "    return None\n",
            "Rows of an earlier save, and of caches, come out as those of the dataset.",
            "job/input/test_saved_datasets.py::test_rows_are_those_of_the_last_save",
        ),
    },
    "job/input/http.py": {
        "any-version-will-do": (
            "return _version(answer) == version and size in (0, copied)",
            "return size in (0, copied)",
            "Rows of a changed file come out as those of the listed one.",
            "job/input/test_http.py::test_a_file_that_changes_is_noticed",
        ),
        "any-length-will-do": (
            "return _version(answer) == version and size in (0, copied)",
            "return _version(answer) == version",
            "Rows of a file that grew under its old tag come out as those of the listed one.",
            "job/input/test_http.py::test_a_file_that_changes_is_noticed",
        ),
        "a-second-is-long-enough": (
            "_STRONG = timedelta(seconds=60)",
            "_STRONG = timedelta(seconds=0)",
            "A file that changes twice within a second is taken for unchanged.",
            "job/input/test_http.py::test_a_file_without_a_version_is_read_as_it_was_listed",
        ),
    },
    "job/output/cleanup.py": {
        "copies-of-others-are-deleted": (
            "(copy.run in claimed or copy.began < oldest)",
            "True",
            "A run that waits for nodes loses the source that it has read.",
            "job/output/test_cleanup.py::test_copies_of_sources_stay_until_their_run_has_ended",
        ),
    },
    "job/input/opening.py": {
        "copies-have-names": (
            "spool = tempfile.TemporaryFile()",
            "spool = tempfile.NamedTemporaryFile()",
            "A killed replica leaves whole copies of the input on the node.",
            "job/input/test_opening.py::test_a_process_that_is_killed_leaves_no_copy",
        ),
    },
})
