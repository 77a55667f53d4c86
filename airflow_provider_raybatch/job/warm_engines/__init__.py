# SPDX-License-Identifier: Apache-2.0
"""Engines that stay on the cluster after their job, for the next task that wants the same.

An actor that belongs to no job (`actor.py`) holds the engine's GPUs and its processes. A job's `pool.py`
finds one that idles, or makes one, for each replica, which reaches the engine's front end through it
(`front_end.py`). Run with ``python -m``, this package lists them, and ends them.
"""
