"""The KV connector that tells remote layers which request has which slot. It moves no KV cache.

The scheduler's side describes each step; the worker's side prepares the sessions before the layers run, and reports
what was lost.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)
from vllm.v1.kv_cache_interface import MambaSpec

from gdn_vllm.layer import runtime_of
from gdn_vllm.options import read
from gdn_vllm.sessions import EngineStep, Scheduled


@dataclass
class StepMetadata(KVConnectorMetadata):
    """An engine step, on its way to the workers."""

    step: EngineStep


@dataclass
class WorkerReport(KVConnectorWorkerMetadata):
    """What went wrong in a step, on its way to the scheduler. The fields are those of `service.Report`."""

    lost: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    evict: list[int] = field(default_factory=list)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> WorkerReport:
        assert isinstance(other, WorkerReport)
        return WorkerReport({**self.lost, **other.lost}, {**self.failed, **other.failed}, [*self.evict, *other.evict])


def engine_step(output: Any) -> EngineStep:
    """Returns what matters of a scheduler's output."""
    scheduled = [
        Scheduled(
            one.req_id,
            one.num_computed_tokens,
            output.num_scheduled_tokens[one.req_id],
            len(output.scheduled_spec_decode_tokens.get(one.req_id, ())),
            [list(blocks) for blocks in one.block_ids],
            fresh=True,
        )
        for one in output.scheduled_new_reqs
    ]
    going = output.scheduled_cached_reqs
    for name, computed, blocks in zip(going.req_ids, going.num_computed_tokens, going.new_block_ids, strict=True):
        scheduled.append(
            Scheduled(
                name,
                computed,
                output.num_scheduled_tokens[name],
                len(output.scheduled_spec_decode_tokens.get(name, ())),
                [list(group) for group in blocks or ()],
                fresh=name in going.resumed_req_ids,
            )
        )
    return EngineStep(scheduled, sorted({*output.finished_req_ids, *(output.preempted_req_ids or ())}))


class GdnConnector(KVConnectorBase_V1, SupportsHMA):
    """The connector of remote Gated DeltaNet layers."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any = None) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        options = read(vllm_config.additional_config)
        assert options is not None
        self._record = options.record if role == KVConnectorRole.WORKER else ""
        self._pool: Any = None
        self._runtime = None
        if role == KVConnectorRole.WORKER:
            self._runtime = runtime_of(vllm_config)
            if self._runtime is None:
                raise ValueError("gdn: the model has no remote layers; is its architecture in the README of gdn-vllm?")
            cache = vllm_config.cache_config
            groups = [
                index
                for index, group in enumerate(kv_cache_config.kv_cache_groups)
                if isinstance(group.kv_cache_spec, MambaSpec)
            ]
            size = cache.mamba_block_size if cache.mamba_cache_mode == "align" else None
            self._runtime.use(size, groups)
            if self._record:
                self._write({"block_size": size, "groups": groups})

    @property
    def requires_kv_delivery(self) -> bool:
        return False

    # ---- The worker's side

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        super().bind_connector_metadata(connector_metadata)
        assert isinstance(connector_metadata, StepMetadata) and self._runtime is not None
        if self._record:
            self._write({"step": connector_metadata.step.to_json()})
            self._runtime.on_rows = lambda batch: self._write({"rows": batch})
        self._runtime.begin(connector_metadata.step)

    def _write(self, what: dict[str, Any]) -> None:
        with open(self._record, "a", encoding="utf-8") as file:
            file.write(json.dumps(what) + "\n")

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Does nothing."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Does nothing."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Does nothing."""

    def wait_for_save(self) -> None:
        """Does nothing."""

    def build_connector_worker_meta(self) -> WorkerReport | None:
        assert self._runtime is not None
        report = self._runtime.report()
        return WorkerReport(report.lost, report.failed, report.evict) if report else None

    def shutdown(self) -> None:
        if self._runtime is not None:
            self._runtime.close()

    # ---- The scheduler's side

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        self._pool = gpu_block_pool

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        return 0, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Does nothing."""

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        return StepMetadata(engine_step(scheduler_output))

    def update_connector_output(self, connector_output: Any) -> None:
        report = connector_output.kv_connector_worker_meta
        if isinstance(report, WorkerReport) and report.evict and self._pool is not None:
            self._pool.evict_blocks(set(report.evict))

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        return False, None
