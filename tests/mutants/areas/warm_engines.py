# SPDX-License-Identifier: Apache-2.0
"""Engines that outlive their jobs: whose they are, and when they end."""

from __future__ import annotations

from ..mutant import by_file

_ENGINE_KEY_TESTS = "job/warm_engines/test_engine_key.py"
_LEASE_TESTS = "job/warm_engines/test_lease.py"
_DEMAND_TESTS = "job/warm_engines/test_demand.py"
_ACTOR_TESTS = "job/warm_engines/test_actor.py"
_ACTOR_END_TESTS = "job/warm_engines/test_actor_ends.py"
_POOL_TESTS = "job/warm_engines/test_pool.py"
_REPLICA_TESTS = "job/warm_engines/test_warm_replica.py"

MUTANTS = by_file({
    "job/warm_engines/engine_key.py": {
        "warm-for-another-airflow": (
            '        task.namespace if task is not None else "",\n',
            "",
            "A task is answered by an engine of another Airflow.",
            f"{_ENGINE_KEY_TESTS}::test_what_decides_the_engine_and_its_owner_counts",
        ),
        "warm-with-anothers-token": (
            "        {name: value.get_secret_value() for name, value in environment.items()},\n",
            "",
            "A task uses a model that another one's Hugging Face token has loaded.",
            f"{_ENGINE_KEY_TESTS}::test_what_decides_the_engine_and_its_owner_counts",
        ),
    },
    "job/warm_engines/lease.py": {
        "warm-while-others-wait": (
            "gives_way or now >= self._ends_at",
            "now >= self._ends_at",
            "A job waits for the GPUs of an engine that no job uses.",
            f"{_LEASE_TESTS}::test_each_phase_has_its_longest",
        ),
        "gone-before-its-like-could-take-it": (
            "is_wanted and now - self._since >= SHORTEST_REST",
            "is_wanted",
            "A job that waits for a warm engine makes it end.",
            f"{_LEASE_TESTS}::test_each_phase_has_its_longest",
        ),
        "warm-for-a-dead-holder": (
            'return "kill" if now - self._heard > (LONGEST_START if self._waits else SILENT) else "stay"',
            'return "stay"',
            "An engine whose job was killed holds its GPUs without end.",
            f"{_LEASE_TESTS}::test_each_phase_has_its_longest",
        ),
        "warm-though-its-return-hangs": (
            'return "kill" if now - self._heard > self._longest_return else "stay"',
            'return "stay"',
            "An engine that does not come to rest holds its GPUs without end.",
            f"{_LEASE_TESTS}::test_each_phase_has_its_longest",
        ),
        "taken-before-it-rests": (
            'self._phase, self._holder = "returned", None',
            'self._phase, self._holder = "free", None',
            "Requests of a job are cancelled as another's that had the engine before.",
            f"{_LEASE_TESTS}::test_one_holder_at_a_time",
        ),
        "taken-from-who-made-it": (
            'if self._phase == "free" and self.reserved_for in {"", maker}:',
            'if self._phase == "free":',
            "A job has an engine that another one ends without asking.",
            f"{_LEASE_TESTS}::test_a_new_one_is_its_makers_alone",
        ),
    },
    "job/warm_engines/demand.py": {
        "all-idle-engines-make-room": (
            "if any(self.free[resource] < 0 for resource in held):",
            "if held:",
            "One request for a GPU ends all engines that wait.",
            f"{_DEMAND_TESTS}::test_one_node",
        ),
        "ended-for-half-a-placement-group": (
            "if not serving or not _could_be_placed(request, nodes.values()):",
            "if not serving:",
            "A placement group that can't be placed ends engines, again and again.",
            f"{_DEMAND_TESTS}::test_two_nodes",
        ),
        "one-request-ends-one-after-the-other": (
            "        nodes[state.node].free.update(units(state.amounts))\n",
            "        pass\n",
            "A task that waits for one GPU ends all warm engines of the cluster.",
            f"{_DEMAND_TESTS}::test_what_ends_already_counts_as_free",
        ),
    },
    "job/warm_engines/actor.py": {
        "engine-of-other-files": (
            "is_equal = idle is not None and identity == self._identity",
            "is_equal = idle is not None",
            "After a model's files were replaced, rows are answered by the old ones.",
            f"{_ACTOR_TESTS}::test_an_engine_of_other_files_is_ended_with_its_process",
        ),
        "late-messages-pass": (
            "            self._check(holder)\n            if self._front_end is not None:\n",
            "            if self._front_end is not None:\n",
            "A job's last messages reach the engine of the next one.",
            f"{_ACTOR_TESTS}::test_what_comes_after_the_return_reaches_no_one",
        ),
        "opened-without-asking": (
            "                self._ask(self._idle)\n",
            "                pass\n",
            "A job gets an engine that hangs, and stands for no_progress_timeout.",
            f"{_ACTOR_END_TESTS}::test_an_engine_that_hangs_at_rest_is_not_handed_on",
        ),
        "given-to-who-left-while-it-was-asked": (
            "                self._check(holder)  # it may have left meanwhile\n",
            "",
            "A replica that was dismissed takes a warm engine away from the next job.",
            f"{_ACTOR_TESTS}::test_who_leaves_while_it_is_asked_does_not_get_it",
        ),
        "taken-from-its-user-while-it-is-made-ready": (
            "        with self._preparing:  # what the holder has begun to wait for is done\n",
            "        if True:\n",
            "An engine that starts when its job ends is opened in a process that ends.",
            f"{_ACTOR_TESTS}::test_what_the_holder_still_waits_for_comes_first",
        ),
        "opened-twice": (
            'if self._messages_are != "calls":',
            "if True:",
            "An engine that its user has opened never rests.",
            f"{_ACTOR_TESTS}::test_engine_is_opened_though_its_holder_has_no_time_to",
        ),
        "no-limits-after-an-error": (
            "suppress(Exception):  # of Ray's, or",
            "suppress(ray.exceptions.RayError):  # of Ray's, or",
            "After one error of the system, an engine holds its GPUs without end.",
            f"{_ACTOR_END_TESTS}::test_what_it_can_not_look_at_leaves_its_limits_in_force",
        ),
    },
    "job/engine_process/server.py": {
        "only-its-front-end-is-asked": (
            "                loop.run_until_complete(resting.ping())\n",
            "",
            "A job gets an engine whose own process hangs, and stands for no_progress_timeout.",
            f"{_ACTOR_END_TESTS}::test_an_engine_that_hangs_at_rest_is_not_handed_on",
        ),
    },
    "job/replica/coordinator.py": {
        "opened-after-a-job-that-was-stopped": (
            "self._queue.is_finished and not self._draining",
            "self._queue.is_finished",
            "Who stops a job waits for its engine to start, before others have its GPU.",
            "job/replica/test_coordinator.py::test_engines_still_start_for_the_next_job_when_all_is_done",
        ),
    },
    "job/warm_engines/pool.py": {
        "ended-though-no-one-has-touched-it": (
            "(actor.abandon if is_informed else actor.decline)",
            "actor.abandon",
            "A job without work ends a warm engine.",
            f"{_POOL_TESTS}::test_only_an_engine_that_its_dead_replica_knew_is_ended",
        ),
        "a-dead-replicas-engine-is-handed-on": (
            "(actor.abandon if is_informed else actor.decline)",
            "actor.decline",
            "A job gets an engine in which another one's requests still run.",
            f"{_POOL_TESTS}::test_only_an_engine_that_its_dead_replica_knew_is_ended",
        ),
        "closed-without-killing": (
            "        for actor in self._made.values():\n            ray.kill(actor)\n",
            "",
            "After a job that waited for a GPU, an engine without a job takes it.",
            f"{_POOL_TESTS}::test_what_waits_for_room_ends_with_what_it_is_for",
        ),
        "waits-for-room-without-its-replica": (
            "            ray.kill(self._made.pop(name))\n",
            "            pass\n",
            "A job that needs fewer engines than it began keeps the others waiting for GPUs.",
            f"{_POOL_TESTS}::test_what_waits_for_room_ends_with_what_it_is_for",
        ),
    },
    "job/warm_engines/registry.py": {
        "ends-what-its-own-job-waits-for": (
            'name.rsplit(":", 2)[1]',
            'name.split(":")[3]',
            "A job whose model has a colon in its name ends the actor that it waits for.",
            "job/warm_engines/test_registry.py::test_engines_that_wait_for_a_living_job_stay",
        ),
    },
    "job/engine_process/opening.py": {
        "one-identity-for-all-files": (
            "spec.engine_args, files, *spec.kind_of_engine]",
            "spec.engine_args, *spec.kind_of_engine]",
            "After a model's files were replaced, rows are answered by the old ones.",
            "job/engine_process/test_opening.py::test_what_makes_another_engine",
        ),
    },
    "job/replica/replica.py": {
        "replica-tells-no-files": (
            "open_engine(checked.spec, spans_nodes, proxy, checked.files)",
            "open_engine(checked.spec, spans_nodes, proxy)",
            "After a model's files were replaced, rows are answered by the old ones.",
            f"{_REPLICA_TESTS}::test_an_engine_of_other_files_is_another_one",
        ),
    },
    "job/warm_engines/front_end.py": {
        "opened-alone-without-its-files": (
            "identity(model.spec, model.files)",
            'identity(model.spec, "")',
            "An engine that started for the next job is ended by that job, which starts another one.",
            f"{_POOL_TESTS}::test_one_that_still_starts_is_opened_for_the_next_job",
        ),
    },
    "job/warm_engines/warm_source.py": {
        "waiting-told-as-starting": (
            'report.state = "waiting"',
            'report.state = "starting"',
            "A job is billed for GPUs that its replicas wait for, and is never told that nothing moves.",
            f"{_REPLICA_TESTS}::test_a_replica_is_billed_from_when_it_has_an_engine",
        ),
    },
    "job/monitor/replica_progress.py": {
        "waiting-is-billed": (
            'self.state not in {"waiting", "ended"}',
            'self.state != "ended"',
            "A job reaches max_gpu_hours while it waits for engines that others have.",
            "job/monitor/test_held_gpus.py::TestReports::test_a_warm_engine_counts_while_the_replica_has_it",
        ),
    },
})
