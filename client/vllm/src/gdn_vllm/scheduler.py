"""vLLM's schedulers, which let lost requests be computed again, and end those that cannot be computed.

If a server has lost a request's state, all running requests are preempted and the prefix cache is emptied, as vLLM's
`reset_prefix_cache` does. vLLM then computes their tokens again, so their outputs stay the same.
"""

from __future__ import annotations

from typing import Any

from vllm.logger import init_logger
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.request import RequestStatus

from gdn_vllm.connector import WorkerReport
from gdn_vllm.options import read

_LOGGER = init_logger("vllm.gdn_vllm")


class _Recovering(Scheduler):
    """A scheduler that knows what to do with a report of the workers."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        options = read(self.vllm_config.additional_config)
        self._recoveries = 0 if options is None else options.recoveries
        self._lost_at: dict[str, tuple[int, int]] = {}  # by request: its tokens at its last loss, and losses in a row

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> dict[int, EngineCoreOutputs]:
        told = model_runner_output.kv_connector_output
        report = None if told is None else told.kv_connector_worker_meta
        failed: dict[str, str] = {}
        if isinstance(report, WorkerReport) and (report.lost or report.failed):
            failed = self._failed(report)
            self.reset_prefix_cache(reset_running_requests=True)  # drops this step's outputs too
            _LOGGER.warning(
                "gdn: %d requests are computed again, %d fail: %s",
                len(report.lost) - len(failed.keys() & report.lost.keys()),
                len(failed),
                next(iter({**report.lost, **report.failed}.values())),
            )
        outputs: dict[int, EngineCoreOutputs] = super().update_from_output(scheduler_output, model_runner_output)
        for request in self.finish_requests(set(failed), RequestStatus.FINISHED_ERROR) if failed else ():
            outputs.setdefault(request.client_index, EngineCoreOutputs()).outputs.append(
                EngineCoreOutput(
                    request_id=request.request_id,
                    new_token_ids=[],
                    finish_reason=request.get_finished_reason(),
                    stop_reason=failed[request.request_id],
                    events=request.take_events(),
                    trace_headers=request.trace_headers,
                )
            )
        return outputs

    def _failed(self, report: WorkerReport) -> dict[str, str]:
        """Returns the requests that are given up, each with the reason."""
        failed = dict(report.failed)
        for name, reason in report.lost.items():
            request = self.requests.get(name)
            if request is None:
                continue
            tokens, times = self._lost_at.get(name, (-1, 0))
            times = times + 1 if tokens == request.num_tokens else 1
            self._lost_at[name] = request.num_tokens, times
            if times > self._recoveries:
                failed[name] = reason
        self._lost_at = {name: at for name, at in self._lost_at.items() if name in self.requests}
        return failed


class RecoveringScheduler(_Recovering):
    """The scheduler for steps one after the other."""


class RecoveringAsyncScheduler(_Recovering, AsyncScheduler):
    """The scheduler that prepares a step while the one before runs."""


def make(*args: Any, **kwargs: Any) -> _Recovering:
    """Returns the scheduler that fits the configuration. vLLM calls it as the class of a scheduler."""
    config = kwargs["vllm_config"] if "vllm_config" in kwargs else args[0]
    kind = RecoveringAsyncScheduler if config.scheduler_config.async_scheduling else RecoveringScheduler
    return kind(*args, **kwargs)
