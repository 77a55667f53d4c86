# SPDX-License-Identifier: Apache-2.0
"""Ray clusters on Kubernetes, which KubeRay makes: a door beside the house, which the core never imports.

It plugs in at two points: `provider` is named in ``places.providers`` and gives tasks, triggers and sensors
their clusters; `operators` stand in the provider info.
`api` and `kuberay` import no Airflow: the first asks an API server, the second decides what its objects mean.
`clusters` follows them for tasks.
"""
