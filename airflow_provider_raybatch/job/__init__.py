# SPDX-License-Identifier: Apache-2.0
"""What runs on the cluster.

The way of a row is the list of the folders:

input      finds the files, counts their rows and cuts them into chunks
request    renders a row into a request, and makes its key
reuse      answers it from earlier parts, the response store, or an equal row
row_order, scheduling  decide which replica gets which of the others, and when
replica, engine        take them through an engine; `tasks` checks the responses
steps                  lets the next of several questions read the answers before it
parts, output          keep each finished row, and publish all of them once

Around that way: `preflight` refuses what can't work, `planning` sizes the job, `monitor` watches it, and
`control` is what followers want of it. `run` starts replicas, `warm_engines` keeps their engines for the next
job, and `driver` does the `phases` in order.

Shipped with every submission, so it needs only Ray, pyarrow, pydantic and, for real models, vLLM. The rest
is shipped too, and found last: see :mod:`airflow_provider_raybatch.contract.layout`.
"""

from airflow_provider_raybatch.contract.layout import use_shipped_wheels

# Here, so that it is done before any module of this package is imported, in the driver and in each worker.
use_shipped_wheels()
