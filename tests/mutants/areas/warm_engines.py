# SPDX-License-Identifier: Apache-2.0
"""Engines that outlive their jobs: whose they are, and when they end."""

from __future__ import annotations

from ..mutant import Mutant

_FILES = ("actor", "lease", "demand", "engine_key", "pool", "registry")
_ACTOR, _LEASE, _DEMAND, _ENGINE_KEY, _POOL, _REGISTRY = (f"job/warm_engines/{name}.py" for name in _FILES)
_ACTOR_TESTS, _LEASE_TESTS, _DEMAND_TESTS, _ENGINE_KEY_TESTS, _POOL_TESTS, _REGISTRY_TESTS = (
    f"job/warm_engines/test_{name}.py" for name in _FILES
)

_OPENING, _OPENING_TESTS = "job/engine_process/opening.py", "job/engine_process/test_opening.py"
_REPLICA, _REPLICA_TESTS = "job/replica/replica.py", "job/warm_engines/test_warm_replica.py"
_COORDINATOR, _COORDINATOR_TESTS = "job/replica/coordinator.py", "job/replica/test_coordinator.py"

MUTANTS = (
    Mutant(
        "warm-for-another-airflow",
        _ENGINE_KEY,
        '        task.namespace if task is not None else "",\n',
        "",
        "A task is answered by an engine of another Airflow.",
        (f"{_ENGINE_KEY_TESTS}::test_what_decides_the_engine_and_its_owner_counts",),
    ),
    Mutant(
        "warm-with-anothers-token",
        _ENGINE_KEY,
        "        {name: value.get_secret_value() for name, value in environment.items()},\n",
        "",
        "A task uses a model that another one's Hugging Face token has loaded.",
        (f"{_ENGINE_KEY_TESTS}::test_what_decides_the_engine_and_its_owner_counts",),
    ),
    Mutant(
        "warm-while-others-wait",
        _LEASE,
        "gives_way or now >= self._ends_at",
        "now >= self._ends_at",
        "A job waits for the GPUs of an engine that no job uses.",
        (f"{_LEASE_TESTS}::test_engine_makes_room_after_a_while_of_rest",),
    ),
    Mutant(
        "gone-before-its-like-could-take-it",
        _LEASE,
        "is_wanted and now - self._since >= SHORTEST_REST",
        "is_wanted",
        "A job that waits for a warm engine makes it end.",
        (f"{_LEASE_TESTS}::test_engine_makes_room_after_a_while_of_rest",),
    ),
    Mutant(
        "warm-for-a-dead-holder",
        _LEASE,
        'return "kill" if now - self._heard > (LONGEST_START if self._waits else SILENT) else "stay"',
        'return "stay"',
        "An engine whose job was killed holds its GPUs without end.",
        (f"{_LEASE_TESTS}::test_a_silent_holder_is_dead",),
    ),
    Mutant(
        "warm-though-its-return-hangs",
        _LEASE,
        'return "kill" if now - self._heard > self._longest_return else "stay"',
        'return "stay"',
        "An engine that does not come to rest holds its GPUs without end.",
        (f"{_LEASE_TESTS}::test_a_return_that_hangs_is_ended",),
    ),
    Mutant(
        "taken-before-it-rests",
        _LEASE,
        'self._phase, self._holder = "returned", None',
        'self._phase, self._holder = "free", None',
        "Requests of a job are cancelled as another's that had the engine before.",
        (f"{_LEASE_TESTS}::test_one_holder_at_a_time",),
    ),
    Mutant(
        "all-idle-engines-make-room",
        _DEMAND,
        "if any(amounts.get(name, 0) > room.get(name, 0) + _LEAST for name in one.amounts):",
        "if one.amounts:",
        "One request for a GPU ends all engines that wait.",
        (f"{_DEMAND_TESTS}::test_one_node",),
    ),
    Mutant(
        "ended-for-half-a-placement-group",
        _DEMAND,
        """        if not found:
            return None
""",
        """        if not found:
            continue
""",
        "A placement group that can't be placed ends engines, again and again.",
        (f"{_DEMAND_TESTS}::test_bundles_of_a_placement_group_find_room_together",),
    ),
    Mutant(
        "engine-of-other-files",
        _ACTOR,
        "is_equal = resting is not None and identity == self._identity",
        "is_equal = resting is not None",
        "After a model's files were replaced, rows are answered by the old ones.",
        (f"{_ACTOR_TESTS}::test_an_engine_of_other_files_is_ended_with_its_process",),
    ),
    Mutant(
        "late-messages-pass",
        _ACTOR,
        "            self._check(holder)\n            if self._front_end is not None:\n",
        "            if self._front_end is not None:\n",
        "A job's last messages reach the engine of the next one.",
        (f"{_ACTOR_TESTS}::test_what_comes_after_the_return_reaches_no_one",),
    ),
    Mutant(
        "opened-without-asking",
        _ACTOR,
        "                self._ask(self._resting)\n",
        "                pass\n",
        "A job gets an engine that hangs, and stands for no_progress_timeout.",
        (f"{_ACTOR_TESTS}::test_an_engine_that_hangs_at_rest_is_not_handed_on",),
    ),
    Mutant(
        "only-its-front-end-is-asked",
        "job/engine_process/server.py",
        "                loop.run_until_complete(resting.ping())\n",
        "",
        "A job gets an engine whose own process hangs, and stands for no_progress_timeout.",
        (f"{_ACTOR_TESTS}::test_an_engine_that_hangs_at_rest_is_not_handed_on",),
    ),
    Mutant(
        "given-to-who-left-while-it-was-asked",
        _ACTOR,
        "                self._check(holder)  # it may have left meanwhile\n",
        "",
        "A replica that was dismissed takes a warm engine away from the next job.",
        (f"{_ACTOR_TESTS}::test_who_leaves_while_it_is_asked_does_not_get_it",),
    ),
    Mutant(
        "taken-from-its-user-while-it-is-made-ready",
        _ACTOR,
        "        with self._preparing:  # what the holder has begun to wait for is done\n",
        "        if True:\n",
        "An engine that starts when its job ends is opened in a process that ends.",
        (f"{_ACTOR_TESTS}::test_what_the_holder_still_waits_for_comes_first",),
    ),
    Mutant(
        "opened-twice",
        _ACTOR,
        'if self._messages_are != "calls":',
        "if True:",
        "An engine that its user has opened never rests.",
        (f"{_ACTOR_TESTS}::test_engine_is_opened_though_its_holder_has_no_time_to",),
    ),
    Mutant(
        "opened-after-a-job-that-was-stopped",
        _COORDINATOR,
        "self._queue.is_finished and not self._draining",
        "self._queue.is_finished",
        "Who stops a job waits for its engine to start, before others have its GPU.",
        (f"{_COORDINATOR_TESTS}::test_engines_still_start_for_the_next_job_when_all_is_done",),
    ),
    Mutant(
        "one-request-ends-one-after-the-other",
        _DEMAND,
        "in_the_way(requests, with_free(nodes, ending), idle)",
        "in_the_way(requests, nodes, idle)",
        "A task that waits for one GPU ends all warm engines of the cluster.",
        (f"{_ACTOR_TESTS}::test_one_that_ends_makes_the_room_alone",),
    ),
    Mutant(
        "no-limits-after-an-error",
        _ACTOR,
        "suppress(Exception):  # of Ray's, or",
        "suppress(ray.exceptions.RayError):  # of Ray's, or",
        "After one error of the system, an engine holds its GPUs without end.",
        (f"{_ACTOR_TESTS}::test_what_it_can_not_look_at_leaves_its_limits_in_force",),
    ),
    Mutant(
        "taken-from-who-made-it",
        _LEASE,
        'if self._phase == "free" and self.reserved_for in {"", maker}:',
        'if self._phase == "free":',
        "A job has an engine that another one ends without asking.",
        (f"{_LEASE_TESTS}::test_a_new_one_is_its_makers_alone",),
    ),
    Mutant(
        "ended-though-no-one-has-touched-it",
        _POOL,
        "(actor.abandon if has_heard else actor.decline)",
        "actor.abandon",
        "A job without work ends a warm engine.",
        (f"{_POOL_TESTS}::test_only_an_engine_that_its_dead_replica_knew_is_ended",),
    ),
    Mutant(
        "a-dead-replicas-engine-is-handed-on",
        _POOL,
        "(actor.abandon if has_heard else actor.decline)",
        "actor.decline",
        "A job gets an engine in which another one's requests still run.",
        (f"{_POOL_TESTS}::test_only_an_engine_that_its_dead_replica_knew_is_ended",),
    ),
    Mutant(
        "ends-what-its-own-job-waits-for",
        _REGISTRY,
        'name.rsplit(":", 2)[1]',
        'name.split(":")[3]',
        "A job whose model has a colon in its name ends the actor that it waits for.",
        (f"{_REGISTRY_TESTS}::test_engines_that_wait_for_a_living_job_stay",),
    ),
    Mutant(
        "one-identity-for-all-files",
        _OPENING,
        "json_digest([spec.engine, spec.model, spec.engine_args, files])",
        "json_digest([spec.engine, spec.model, spec.engine_args])",
        "After a model's files were replaced, rows are answered by the old ones.",
        (f"{_OPENING_TESTS}::test_what_an_engine_is_made_of_makes_another_one",),
    ),
    Mutant(
        "replica-tells-no-files",
        _REPLICA,
        "open_engine(checked.spec, spans_nodes, proxy, checked.files)",
        "open_engine(checked.spec, spans_nodes, proxy)",
        "After a model's files were replaced, rows are answered by the old ones.",
        (f"{_REPLICA_TESTS}::test_an_engine_of_other_files_is_another_one",),
    ),
    Mutant(
        "opened-alone-without-its-files",
        "job/warm_engines/front_end.py",
        "identity(model.spec, model.files)",
        'identity(model.spec, "")',
        "An engine that started for the next job is ended by that job, which starts another one.",
        (f"{_POOL_TESTS}::test_one_that_still_starts_is_opened_for_the_next_job",),
    ),
    Mutant(
        "waiting-told-as-starting",
        "job/warm_engines/warm_source.py",
        'report.state = "waiting"',
        'report.state = "starting"',
        "A job is billed for GPUs that its replicas wait for, and is never told that nothing moves.",
        (f"{_REPLICA_TESTS}::test_a_replica_is_billed_from_when_it_has_an_engine",),
    ),
    Mutant(
        "waiting-is-billed",
        "job/monitor/budget.py",
        'report.state not in {"waiting", "ended"}',
        'report.state != "ended"',
        "A job reaches max_gpu_hours while it waits for engines that others have.",
        ("job/monitor/test_budget.py::test_gpu_hours_are_those_that_replicas_hold",),
    ),
    Mutant(
        "closed-without-killing",
        _POOL,
        "        for actor in self._made.values():\n            ray.kill(actor)\n",
        "",
        "After a job that waited for a GPU, an engine without a job takes it.",
        (f"{_POOL_TESTS}::test_what_waits_for_room_ends_with_its_job",),
    ),
    Mutant(
        "waits-for-room-without-its-replica",
        _POOL,
        "            ray.kill(self._made.pop(name))\n",
        "            pass\n",
        "A job that needs fewer engines than it began keeps the others waiting for GPUs.",
        (f"{_POOL_TESTS}::test_what_waits_for_room_ends_with_the_waiting_replica",),
    ),
)
