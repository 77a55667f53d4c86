# SPDX-License-Identifier: Apache-2.0
"""Engine arguments that are sizes: another value changes how fast responses come, and none of them."""

from __future__ import annotations

SIZING_ARGS = frozenset({
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "gpu_memory_utilization",
    "max_num_seqs",
    "max_num_batched_tokens",
    "enforce_eager",
    "disable_log_stats",
    "enable_log_requests",
    "kv_cache_memory_bytes",
    "distributed_executor_backend",
    "block_size",
    "swap_space",
    "cpu_offload_gb",
    "seconds_per_token",
    "startup_seconds",
    "startup_spread",
    "kill_pattern",
    "hang_pattern",
    "fail_pattern",
    "endless_reasoning_pattern",
    "request_log",
    "enable_lora",
    "max_loras",
    "max_lora_rank",
    "max_cpu_loras",
})
