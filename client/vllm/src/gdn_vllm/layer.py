"""Layers without weights, whose outputs a server computes. They replace vLLM's own Gated DeltaNet layers.

vLLM makes them in the place of its own as soon as this module is imported. Without a configured server they are its
own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from vllm.distributed import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size
from vllm.distributed.communication_op import tensor_model_parallel_all_reduce
from vllm.forward_context import get_forward_context
from vllm.logger import init_logger
from vllm.model_executor.layers.mamba.gdn.base import GatedDeltaNetAttention
from vllm.model_executor.layers.mamba.gdn.olmo_gdn_linear_attn import OlmoHybridGatedDeltaNetAttention
from vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn import QwenGatedDeltaNetAttention
from vllm.utils.torch_utils import direct_register_custom_op

from gdn_client.digests import LayerComparison, compare_layer
from gdn_vllm.backend import RemoteBackend
from gdn_vllm.options import Options, read
from gdn_vllm.service import Runtime

HANDLE_BYTES = 16  # of vLLM's own memory for each block: a state is only a handle there
_LOGGER = init_logger("vllm.gdn_vllm")
# vLLM joins some tensors. Their names in the checkpoint, by the name and the shard that vLLM gives them.
_CHECKPOINT_NAMES: dict[tuple[str, Any], str] = {
    ("in_proj_qkvz", (0, 1, 2)): "in_proj_qkv",
    ("in_proj_qkvz", 3): "in_proj_z",
    ("in_proj_ba", 0): "in_proj_b",
    ("in_proj_ba", 1): "in_proj_a",
    ("in_proj_qkvg", 0): "q_proj",
    ("in_proj_qkvg", 1): "k_proj",
    ("in_proj_qkvg", 2): "v_proj",
    ("in_proj_qkvg", 3): "g_proj",
    ("conv1d", 0): "q_conv1d",
    ("conv1d", 1): "k_conv1d",
    ("conv1d", 2): "v_conv1d",
}


def runtime_of(vllm_config: Any) -> Runtime | None:
    """Returns the runtime of the engine's remote layers, or None if none was made."""
    for layer in vllm_config.compilation_config.static_forward_context.values():
        if (remote := getattr(layer, "gdn_remote", None)) is not None:
            found: Runtime = remote.runtime
            return found
    return None


def _checkpoint_name(name: str, weight: Any) -> str:
    """Returns the name that a weight has in the checkpoint below its layer."""
    module, dot, rest = name.partition(".")
    return _CHECKPOINT_NAMES.get((module, getattr(weight, "shard_id", None)), module) + dot + rest


def _check(runtime: Runtime, vllm_config: Any) -> None:
    """Compares limits of the server with what the engine will send.

    Raises:
        ValueError: the server takes less; in one line.

    """
    speculative = vllm_config.speculative_config
    if speculative is not None and (drafts := speculative.num_speculative_tokens + 1) > runtime.max_draft:
        raise ValueError(f"gdn: a step has {drafts} tokens of a draft, start gdn_server with --max-draft={drafts}")
    model = vllm_config.model_config
    tokens = vllm_config.scheduler_config.max_num_batched_tokens
    need = tokens * model.get_hidden_size() * torch.finfo(model.dtype).bits // 8 + (1 << 16)
    if need > runtime.max_message_bytes:
        raise ValueError(f"gdn: a step may have {need} bytes, start gdn_server with --max-message-bytes={need}")


class Remote:
    """The remote part of a layer."""

    def __init__(self, layer: Any, options: Options, vllm_config: Any, dims: tuple[int, ...]) -> None:
        self.runtime = runtime_of(vllm_config) or self._connect(options, vllm_config)
        self.index = int(layer.layer_idx)
        self.ranks = get_tensor_model_parallel_world_size()
        self._verify = options.verify
        if self.runtime.active:
            served = self.runtime.model(self.index).dims
            group = served.value_heads // served.key_heads
            heads = int(served.value_heads)
            if not self.runtime.whole:
                heads = int(self.runtime.model(self.index).heads.total_value_heads)
            found = (
                served.hidden_size, heads // group, heads, served.key_dim, served.value_dim, served.conv_width
            )  # fmt: skip
            if found != dims:
                names = "hidden size, key heads, value heads, key dim, value dim, convolution width"
                raise ValueError(f"gdn: layer {self.index} is {dims} ({names}), the server's is {found}")

    @staticmethod
    def _connect(options: Options, vllm_config: Any) -> Runtime:
        runtime = Runtime(options, rank=get_tensor_model_parallel_rank(), ranks=get_tensor_model_parallel_world_size())
        try:
            _check(runtime, vllm_config)
        except BaseException:
            runtime.close()
            raise
        return runtime

    @property
    def dtype(self) -> str | None:
        """The dtype that the server's outputs have. None: that of the input."""
        return None if self.runtime.whole else "float32"

    def load(self, weights: Iterable[tuple[str, Any]]) -> set[str]:
        """Drops the layer's weights, after it has compared them with those of the server."""
        loaded, own = set(), {}
        for name, weight in weights:
            loaded.add(name)
            own[_checkpoint_name(name, weight)] = weight
        if self._verify and self.runtime.active:
            model = self.runtime.model(self.index)
            digest = next((one for one in model.layer_digests if one.layer == self.index), None)
            result = LayerComparison(f"{model.name} ({model.fingerprint})")
            if digest is not None:
                compare_layer(model, digest, own, result)
            if result.different:
                raise ValueError(
                    f"gdn: layer {self.index} of the checkpoint has other weights than {result.model}; serve the same "
                    "checkpoint, or set GDN_VERIFY=0"
                )
            for layer, why in result.not_comparable.items():
                _LOGGER.warning_once("gdn: the weights of layer %d are not compared: %s", layer, why)
        return loaded

    def run(self, prefix: str, x: torch.Tensor, out: torch.Tensor) -> None:
        """Computes the layer for the present batch."""
        every = get_forward_context().attn_metadata
        metadata = every.get(prefix) if isinstance(every, dict) else None
        if metadata is None or not self.runtime.active:
            out.zero_()  # a run that only measures memory
            return
        if metadata.rows is None:
            metadata.rows = self.runtime.rows(metadata.batch)
        self.runtime.run(self.index, metadata.rows, x, out, self.dtype)


def gdn_remote_layer(x: torch.Tensor, out: torch.Tensor, prefix: str) -> None:
    """The custom operator of a remote layer: `[T, D]` to `[T, D]`."""
    get_forward_context().no_compile_layers[prefix].gdn_remote.run(prefix, x, out)


direct_register_custom_op(op_name="gdn_remote_layer", op_func=gdn_remote_layer, mutates_args=["out"])


def _call(prefix: str, x: torch.Tensor, ranks: int, partial: bool, reduce: bool) -> torch.Tensor:
    """Returns the layer's output. With several ranks it is the sum of theirs, if `reduce` is set."""
    out = torch.empty_like(x, dtype=torch.float32 if partial else x.dtype)
    torch.ops.vllm.gdn_remote_layer(x, out, prefix)
    if ranks > 1 and reduce:
        out = tensor_model_parallel_all_reduce(out)
    return out.to(x.dtype) if partial else out


class _RemoteLayer(GatedDeltaNetAttention):
    """What both families' layers have in common, if a server is configured."""

    gdn_remote: Remote | None

    def _set_up(self, config: Any, vllm_config: Any, prefix: str, options: Options) -> None:
        GatedDeltaNetAttention.__init__(self, config, vllm_config, prefix)
        self.num_k_heads, self.num_v_heads = config.linear_num_key_heads, config.linear_num_value_heads
        self.head_k_dim, self.head_v_dim = config.linear_key_head_dim, config.linear_value_head_dim
        self.conv_kernel_size = config.linear_conv_kernel_dim
        dims = (
            config.hidden_size, self.num_k_heads, self.num_v_heads, self.head_k_dim, self.head_v_dim,
            self.conv_kernel_size,
        )  # fmt: skip
        self.gdn_remote = Remote(self, options, vllm_config, dims)
        self.load_weights = self.gdn_remote.load
        layers = vllm_config.compilation_config.static_forward_context
        if prefix in layers:
            raise ValueError(f"there are two layers {prefix}")
        layers[prefix] = self

    def get_state_shape(self) -> Any:
        return ((HANDLE_BYTES,),) if self.gdn_remote is not None else super().get_state_shape()

    def get_state_dtype(self) -> Any:
        return (torch.uint8,) if self.gdn_remote is not None else super().get_state_dtype()

    def get_attn_backend(self) -> Any:
        return RemoteBackend if self.gdn_remote is not None else super().get_attn_backend()


@QwenGatedDeltaNetAttention.register_oot
class RemoteQwenLayer(_RemoteLayer, QwenGatedDeltaNetAttention):
    """The layer of Qwen3-Next and Qwen3.5."""

    def __init__(
        self,
        config: Any,
        vllm_config: Any,
        prefix: str = "",
        gqa_interleaved_layout: bool = False,
        reduce_results: bool = True,
    ) -> None:
        options = read(vllm_config.additional_config)
        if options is None:
            QwenGatedDeltaNetAttention.__init__(
                self, config, vllm_config, prefix, gqa_interleaved_layout, reduce_results
            )
            self.gdn_remote = None
            return
        self._set_up(config, vllm_config, prefix, options)
        self._reduce = reduce_results
        self._forward_method = self._forward_remote

    def _forward_remote(self, hidden_states: torch.Tensor) -> torch.Tensor:
        assert self.gdn_remote is not None
        remote = self.gdn_remote
        return _call(self.prefix, hidden_states, remote.ranks, not remote.runtime.whole, self._reduce)


@OlmoHybridGatedDeltaNetAttention.register_oot
class RemoteOlmoLayer(_RemoteLayer, OlmoHybridGatedDeltaNetAttention):
    """The layer of Olmo-Hybrid."""

    def __init__(self, config: Any, vllm_config: Any, prefix: str = "") -> None:
        options = read(vllm_config.additional_config)
        if options is None:
            OlmoHybridGatedDeltaNetAttention.__init__(self, config, vllm_config, prefix)
            self.gdn_remote = None
            return
        self._set_up(config, vllm_config, prefix, options)

    def forward(self, hidden_states: torch.Tensor, output: torch.Tensor) -> None:
        remote = self.gdn_remote
        if remote is None:
            super().forward(hidden_states, output)
            return
        output.copy_(_call(self.prefix, hidden_states, remote.ranks, not remote.runtime.whole, True))


def close(vllm_config: Any) -> None:
    """Ends the sessions of the engine's remote layers."""
    if (runtime := runtime_of(vllm_config)) is not None:
        runtime.close()
