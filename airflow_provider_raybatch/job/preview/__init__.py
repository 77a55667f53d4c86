# SPDX-License-Identifier: Apache-2.0
"""A preview job: reports what rows would be asked and which sizes a job would have, and writes nothing."""
