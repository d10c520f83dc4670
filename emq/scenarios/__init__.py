"""The scenarios of the wire, in its order: what a client and a server do together, step by step.

All 79 are named here. In the place of one that this client cannot play yet stands what it lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from . import batches, depth, life, operator, reading, watch
from .kit import Mismatch, Missing, Scene, Trial, Wish

Play: TypeAlias = Callable[[Trial], Scene[None]]

_LANES: Final = Missing("lanes")
_FLOWS: Final = Missing("flows")
_STREAMS: Final = Missing("streams")
_POOL: Final = Missing("a pool of connections")

SCENARIOS: Final[Mapping[str, Play | Missing]] = {
    # The state machine.
    "fence": life.fence,
    "mint": life.mint,
    "duplicate": life.duplicate,
    "kind": life.kind,
    "order": life.order,
    "claim": life.claim,
    "stale": life.stale,
    "complete": life.complete,
    "retry": life.retry,
    "dead": life.dead,
    "reap": life.reap,
    "rotate": _LANES,
    "pause": _LANES,
    "limit": _LANES,
    "schedule": life.schedule,
    "repeat": Missing("repeats"),
    "backoff": life.backoff,
    "resubscribe": life.resubscribe,
    # The read plane.
    "counts": reading.counts,
    "state": reading.state,
    "metrics": reading.metrics,
    "dedup": reading.dedup,
    "rate": reading.rate,
    "lane_depth": _LANES,
    # The operator plane.
    "queue_pause": operator.queue_pause,
    "drain": operator.drain,
    "obliterate": operator.obliterate,
    "update_data": operator.update_data,
    "update_progress": operator.update_progress,
    "job_logs": operator.job_logs,
    "remove_job": operator.remove_job,
    "reprocess_job": operator.reprocess_job,
    # The watch plane.
    "lock_extend": watch.lock_extend,
    "stalled": watch.stalled,
    "events": watch.events,
    "telemetry": watch.telemetry,
    "cancel": watch.cancel,
    # Depth.
    "unknown_state": depth.unknown_state,
    "rate_consult": depth.rate_consult,
    "dedup_release": depth.dedup_release,
    "extend_locks_batch": depth.extend_locks_batch,
    "stalled_group": _LANES,
    "obliterate_grouped": _LANES,
    # Groups.
    "reassign": _LANES,
    "lane_drain": _LANES,
    "reap_group": _LANES,
    # Flows.
    "flow_add": _FLOWS,
    "flow_fanin": _FLOWS,
    "flow_children_values": _FLOWS,
    "flow_cross_queue": _FLOWS,
    "flow_fail_parent": _FLOWS,
    "flow_ignore_dep": _FLOWS,
    "flow_add_bulk": _FLOWS,
    "flow_grandchild": _FLOWS,
    "flow_grandchild_fail": _FLOWS,
    # The client's floor.
    "pool_enqueue": _POOL,
    "pool_order": _POOL,
    "native_lock_field": depth.native_lock_field,
    "native_lock_refuses": depth.native_lock_refuses,
    # Weighted lanes.
    "weighted_proportion": _LANES,
    "starvation_drill": _LANES,
    # Batches.
    "batch_claim": batches.batch_claim,
    "batch_claim_short": batches.batch_claim_short,
    "batch_partial_failure": batches.batch_partial_failure,
    "batch_shaping_floor": batches.batch_shaping_floor,
    "batch_shaping_timeout": batches.batch_shaping_timeout,
    "batch_shaping_partial_failure": batches.batch_shaping_partial_failure,
    "grouped_batch_affinity": _LANES,
    "grouped_batch_ceiling": _LANES,
    "grouped_batch_fairness": _LANES,
    "batch_partition": batches.batch_partition,
    "batch_delay": batches.batch_delay,
    "batch_delay_stale": batches.batch_delay_stale,
    # Streams.
    "stream_verbs": _STREAMS,
    "stream_append": _STREAMS,
    "stream_group": _STREAMS,
    "stream_retention": _STREAMS,
    "stream_archived": _STREAMS,
    "stream_time_travel": _STREAMS,
}

__all__ = ["SCENARIOS", "Mismatch", "Missing", "Play", "Scene", "Trial", "Wish"]
