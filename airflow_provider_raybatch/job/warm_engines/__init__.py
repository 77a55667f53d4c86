# SPDX-License-Identifier: Apache-2.0
"""Warm engines: they stay on the cluster after their job, for the next task that wants an equal engine.

`source.py` is the only interface for the rest of the job; `warm_source.py` implements it. A detached actor
(`actor.py`) holds an engine's GPUs and processes. A job's `pool.py` finds an idle one for each replica, or
makes one. The replica reaches the engine through the actor (`front_end.py`). Run with ``python -m``, this
package lists warm engines and ends them.
"""
