"""A Gated DeltaNet layer whose weights and states are on a server.

Thread safety: like torch modules; any thread may call forward, each with its own cache.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

import torch
from transformers import Cache

from gdn_client.torch.arguments import check_arguments
from gdn_client.torch.cache_layer import remote_layer_of
from gdn_client.torch.host import LayerHost
from gdn_client.torch.padding import spans
from gdn_client.torch.releases import unknown
from gdn_client.torch.sequences import RemoteSequences


class RemoteGatedDeltaNet(torch.nn.Module):
    """Replaces a decoder layer's linear attention, which is `linear_attn`, or `self_attn` in KDA models.

    It has no parameters, so a model's state_dict lacks this layer's weights.
    """

    def __init__(self, host: LayerHost, layer_idx: int) -> None:
        super().__init__()
        if layer_idx not in host.layers:
            raise ValueError(f"layer {layer_idx} is none of {host}")
        dims = host.model.dims
        self.host = host
        self.layer_idx = layer_idx
        self.layer_type = "linear_attention"
        self.hidden_size: int = dims.hidden_size

    def extra_repr(self) -> str:
        """Returns the layer's part of a printed model."""
        return f"layer_idx={self.layer_idx}, {self.host.model.name} at {self.host.client.target}"

    @torch.compiler.disable
    def forward(
        self,
        hidden_states: torch.Tensor,
        cache: Cache | None = None,
        attention_mask: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Computes the layer's output on the server.

        Args:
            hidden_states: `[B, T, D]`, after the input layernorm, in float32, float16 or bfloat16, on any device.
            cache: cache of transformers. The first call with a cache replaces the cache's layers that belong to this
                server. None: the sequences start and end with this call. The keyword may have any name, because
                transformers called it cache_params up to 5.23.
            attention_mask: `[B, T]`, zero at padding. With a cache, padding must be on the left.
            kwargs: further arguments that the decoder passes to every layer. Arguments that no local layer uses are
                ignored (`arguments.INERT`). All others are refused, and so are packed sequences, and use_cache without
                a cache.

        Returns:
            `[B, T, D]`, zero at padding.

        Raises:
            ValueError: a mask, a cache or a shape that does not fit.
            RuntimeError: the model uses a cache, but passes none.
            GdnError: the server has failed. If rows of the cache may have advanced, the cache cannot be used any more.

        """
        cache = _cache_among(cache, kwargs)
        check_arguments(kwargs)
        if cache is None and kwargs.get("use_cache"):
            raise RuntimeError(unknown("the model keeps a cache (use_cache), and its layer gets none"))
        if torch.is_grad_enabled() and hidden_states.requires_grad:
            output: torch.Tensor = _WithoutBackward.apply(hidden_states, self, cache, attention_mask)
            return output
        return self._forward(hidden_states, cache, attention_mask)

    def _forward(
        self, hidden_states: torch.Tensor, cache: Cache | None, attention_mask: torch.Tensor | None
    ) -> torch.Tensor:
        if hidden_states.ndim != 3 or hidden_states.shape[-1] != self.hidden_size:
            raise ValueError(f"hidden_states are {list(hidden_states.shape)}, expected [B, T, {self.hidden_size}]")
        batch, tokens, _ = hidden_states.shape
        real = spans(attention_mask, batch, tokens, keeps_state=cache is not None)
        host_states = hidden_states.detach().cpu()
        rows = [host_states[row, begin:end] for row, (begin, end) in enumerate(real)]
        if cache is None:
            try:
                outputs = self._sequences_without_cache(batch).step(self.layer_idx, rows, record=False)
            except BaseException:
                _scratch.sequences.pop(self.host, None)  # the forward pass ends here
                raise
            if self.layer_idx == self.host.layers[-1]:
                _scratch.sequences.pop(self.host, None)
        else:
            layer = remote_layer_of(cache, self.host, self.layer_idx)
            if len(layer.sequences) not in (0, batch):
                raise ValueError(
                    f"the cache has {len(layer.sequences)} rows and hidden_states {batch}; a cache is of one batch, "
                    "see its batch_repeat_interleave and batch_select_indices"
                )
            outputs = layer.sequences.step(self.layer_idx, rows, record=layer.record_past)
            layer.has_previous_state[0] = True
        return _put_back(outputs, real, host_states).to(hidden_states.device)

    def _sequences_without_cache(self, batch: int) -> RemoteSequences:
        """Returns the sequences of this forward pass. Its first layer creates them, and its last one drops them."""
        sequences = _scratch.sequences.get(self.host)
        if sequences is None or len(sequences) != batch or sequences.token_count(self.layer_idx) > 0:
            sequences = _scratch.sequences[self.host] = RemoteSequences(self.host)
        return sequences


class _Scratch(threading.local):
    """The sequences of a thread's forward passes without a cache, by host."""

    def __init__(self) -> None:
        self.sequences: weakref.WeakKeyDictionary[LayerHost, RemoteSequences] = weakref.WeakKeyDictionary()


_scratch = _Scratch()


def _cache_among(cache: Any, kwargs: dict[str, Any]) -> Cache | None:
    """Finds the cache, whatever its keyword is.

    A cache under an unknown keyword would be ignored, and each token would be computed as if it were the first.
    """
    found = [] if cache is None else [cache]
    found += [value for value in kwargs.values() if isinstance(value, Cache) and value is not cache]
    if len(found) > 1 or not all(isinstance(one, Cache) for one in found):
        raise ValueError(f"expected one cache of transformers, got {[type(one).__name__ for one in found]}")
    return found[0] if found else None


def _put_back(outputs: list[torch.Tensor], real: list[tuple[int, int]], like: torch.Tensor) -> torch.Tensor:
    if all(span == (0, like.shape[1]) for span in real):
        return torch.stack(outputs)
    whole = torch.zeros_like(like)
    for row, (begin, end) in enumerate(real):
        whole[row, begin:end] = outputs[row]
    return whole


class _WithoutBackward(torch.autograd.Function):
    """Raises an error when gradients are asked for, because the server computes none."""

    @staticmethod
    def forward(ctx: Any, hidden_states: torch.Tensor, layer: RemoteGatedDeltaNet, *rest: Any) -> torch.Tensor:
        return layer._forward(hidden_states, *rest)

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> Any:
        raise RuntimeError(
            "a remote Gated DeltaNet layer computes no gradients; train with the local layers, or call the model under "
            "torch.no_grad()"
        )
