# SPDX-License-Identifier: Apache-2.0
"""What rows may make the cluster read for their images, and whose failure it is."""

from __future__ import annotations

from ..mutant import by_file

MUTANTS = by_file({
    "job/media/allowed.py": {
        "escaped-dots-are-names": (
            'unquote(name).split("/")',
            'name.split("/")',
            "A reference leaves its root where something decodes it later.",
            "job/media/test_allowed.py::test_any_other_reference_is_refused",
        ),
        "hosts-by-their-end": (
            "host not in self.hosts",
            "not host.endswith(tuple(self.hosts))",
            "Rows read from any host whose name ends like an allowed one.",
            "job/media/test_allowed.py::test_any_other_reference_is_refused",
        ),
        "disks-are-roots": (
            'return "" if plain(folder) == "/" else folder',
            "return folder or '/'",
            "The rows of a source at the top of a disk read each file of the nodes.",
            "job/media/test_allowed.py::test_a_source_elsewhere_has_no_root",
        ),
    },
    "job/media/on_disk.py": {
        "links-lead-anywhere": (
            "    path = os.path.realpath(place.path)\n",
            "    path = place.path\n",
            "A link in an upload folder reads each file of the nodes, or links of images are not followed.",
            "job/media/test_on_disk.py::test_links_inside_of_the_root_are_followed",
        ),
        "links-made-late-are-followed": (
            "os.O_NOFOLLOW | os.O_NONBLOCK",
            "os.O_NONBLOCK",
            "A link that is made between check and open leads out of the root.",
            "job/media/test_on_disk.py::test_a_link_made_after_the_check_is_refused",
        ),
        "pipes-are-waited-for": (
            "os.O_NOFOLLOW | os.O_NONBLOCK",
            "os.O_NOFOLLOW",
            "A row that names a pipe holds a process for good.",
            "job/media/test_on_disk.py::test_a_pipe_is_refused",
        ),
    },
    "job/media/fetch.py": {
        "changed-images-are-taken": (
            'if image.version not in {"", version}:',
            "if False:",
            "A response about the new image is stored under the key of the old one.",
            "job/media/test_fetch.py::test_an_image_that_changed_since_its_version_is_refused",
        ),
    },
    "job/media/on_web.py": {
        "outages-fail-rows": (
            "if error.code in _OVERLOADED:",
            "if False:",
            "A host that is down for a minute costs the rows of that minute.",
            "job/media/test_on_web.py::test_an_overloaded_host_is_asked_again",
        ),
    },
    "job/media/decode.py": {
        "bombs-are-decoded": (
            "if width * height > most_pixels:",
            "if False:",
            "A few bytes of a row take gigabytes of a node's memory.",
            "job/media/test_decode.py::test_a_bomb_is_refused_by_its_header",
        ),
    },
    "job/input/guarded_http.py": {
        "rows-read-private-addresses": (
            "(req.is_after_public or req.bounds)",
            "req.is_after_public",
            "Rows read the cluster's own network through a name of an allowed host.",
            "job/media/test_on_web.py::test_a_private_address_is_refused_though_it_is_named",
        ),
        "redirects-leave-image-hosts": (
            "if req.bounds and not req.bounds.allow(newurl):",
            "if False:",
            "An allowed host with an open redirect lets rows read from any other.",
            "job/media/test_on_web.py::test_a_redirect_out_of_image_hosts_is_refused",
        ),
        "slow-servers-are-waited-for": (
            "self._sock.settimeout(self._bounds.seconds_left)",
            "self._sock.settimeout(30)",
            "A server that sends a byte now and then holds a task for hours.",
            "job/media/test_on_web.py::test_a_server_that_falls_silent_fails_the_row",
        ),
    },
})
