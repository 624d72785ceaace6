"""The entry point that vLLM calls in each of its processes (group `vllm.general_plugins`).

Registers models and layers in vLLM, which are vLLM's own unless a server is configured (`options`).
"""

from __future__ import annotations

import inspect
import logging
from typing import Any

from gdn_vllm.options import Options, read

VERSIONS = ("0.32",)  # releases of vLLM that the plugin was run with
ARCHITECTURES = (
    "Qwen3NextForCausalLM",
    "Qwen3_5ForCausalLM",
    "Qwen3_5MoeForCausalLM",
    "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForConditionalGeneration",
    "OlmoHybridForCausalLM",
)
_LOGGER = logging.getLogger("vllm.gdn_vllm")


def register() -> None:
    """Registers the plugin. Without a supported vLLM it logs one line, and changes nothing.

    Calling it again has no effect.

    Raises:
        RuntimeError: vLLM is not supported, and the environment names a server.

    """
    if (missing := missing_in_vllm()) is not None:
        if read({}) is not None:
            raise RuntimeError(f"gdn-vllm cannot be used, although GDN_SERVER is set: {missing}")
        _LOGGER.warning("gdn-vllm is not used: %s", missing)
        return
    from vllm.model_executor.models import ModelRegistry
    from vllm.model_executor.models.config import MODELS_CONFIG_MAP

    for name in ARCHITECTURES:
        ModelRegistry.register_model(name, f"gdn_vllm.models:{name}")
        before = MODELS_CONFIG_MAP.get(name)
        if not hasattr(before, "before_gdn"):
            MODELS_CONFIG_MAP[name] = _configured(before)


def missing_in_vllm() -> str | None:
    """Returns what the installed vLLM lacks, in one line, or None."""
    import vllm

    version = str(vllm.__version__)
    if not version.startswith(tuple(f"{one}." for one in VERSIONS)):
        return f"vLLM {version} is installed, this plugin was made for {', '.join(VERSIONS)}"
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1
    from vllm.model_executor.layers.mamba.gdn.olmo_gdn_linear_attn import OlmoHybridGatedDeltaNetAttention
    from vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn import QwenGatedDeltaNetAttention
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.sched.scheduler import Scheduler

    relied_on: list[tuple[Any, str, tuple[str, ...]]] = [
        (QwenGatedDeltaNetAttention, "__init__", ("config", "vllm_config", "prefix", "gqa_interleaved_layout")),
        (QwenGatedDeltaNetAttention, "forward", ("hidden_states",)),
        (OlmoHybridGatedDeltaNetAttention, "forward", ("hidden_states", "output")),
        (KVConnectorBase_V1, "bind_connector_metadata", ("connector_metadata",)),
        (KVConnectorBase_V1, "build_connector_worker_meta", ()),
        (KVConnectorBase_V1, "bind_gpu_block_pool", ("gpu_block_pool",)),
        (Scheduler, "update_from_output", ("scheduler_output", "model_runner_output")),
        (Scheduler, "reset_prefix_cache", ("reset_running_requests",)),
        (BlockPool, "evict_blocks", ("block_ids",)),
    ]
    for owner, method, parameters in relied_on:
        found = getattr(owner, method, None)
        if found is None:
            return f"{owner.__name__} of vLLM {version} has no {method}"
        if lacking := [one for one in parameters if one not in inspect.signature(found).parameters]:
            return f"{owner.__name__}.{method} of vLLM {version} takes no {', '.join(lacking)}"
    return None


def _configured(before: Any) -> Any:
    """Returns the class that vLLM asks to update its configuration for a model. `before` is vLLM's own, or None."""

    class Configured(before or object):  # type: ignore[misc]
        """Sets what remote layers need."""

        before_gdn = before

        @staticmethod
        def verify_and_update_config(vllm_config: Any) -> None:
            if before is not None:
                before.verify_and_update_config(vllm_config)
            if (options := read(vllm_config.additional_config)) is not None:
                configure(vllm_config, options)

        @staticmethod
        def verify_and_update_model_config(model_config: Any) -> None:
            if before is not None:
                before.verify_and_update_model_config(model_config)

    return Configured


def configure(vllm_config: Any, options: Options) -> None:
    """Sets the connector and the scheduler that remote layers need.

    Raises:
        ValueError: something else is configured that they cannot work with; in one line.

    """
    from vllm.config import KVTransferConfig

    for reason, wrong in (
        ("--pipeline-parallel-size must be 1", vllm_config.parallel_config.pipeline_parallel_size > 1),
        ("--kv-transfer-config cannot be set beside it", vllm_config.kv_transfer_config is not None),
        ("--scheduler-cls cannot be set beside it", vllm_config.scheduler_config.scheduler_cls is not None),
        ("--mamba-cache-mode must be none or align", vllm_config.cache_config.mamba_cache_mode == "all"),
    ):
        if wrong:
            raise ValueError(f"gdn: {reason} (server {options.server})")
    vllm_config.kv_transfer_config = KVTransferConfig(
        kv_connector="GdnConnector", kv_connector_module_path="gdn_vllm.connector", kv_role="kv_both"
    )
    vllm_config.scheduler_config.scheduler_cls = "gdn_vllm.scheduler.make"
