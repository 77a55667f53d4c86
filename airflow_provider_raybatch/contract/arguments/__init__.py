# SPDX-License-Identifier: Apache-2.0
"""The arguments of a batch inference, one module a group, under the operator's names.

:class:`~airflow_provider_raybatch.operators.ray_batch.RayBatchInferenceOperator` documents what they mean.
"""
