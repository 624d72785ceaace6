"""Checks that transformers works in the way that remote layers need, before a model is changed.

A renamed argument need not be an error: layers take any keyword, and a layer without its cache computes each token as
if it were the first. So these functions watch a model as it calls its layer, and a cache as it is reordered or cropped.

Thread safety: free functions; no other thread uses the model meanwhile.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from transformers import Cache, PreTrainedModel

from gdn_client.torch.arguments import check_arguments
from gdn_client.torch.cache_layer import RemoteCacheLayer, remote_layer_of
from gdn_client.torch.host import LayerHost
from gdn_client.torch.releases import unknown
from gdn_client.torch.sequences import RemoteSequences

# Parameters that a local layer's forward may have. cache_params is the cache, up to transformers 5.23.
PARAMETERS = {"self", "hidden_states", "cache", "cache_params", "attention_mask"}
PADDED = [[0, 1], [1, 1]]


@dataclass
class LayerCall:
    """The way in which a model that uses a cache calls a Gated DeltaNet layer."""

    arguments: dict[str, Any]
    cache: Cache

    def __call__(self, layer: torch.nn.Module, hidden_states: torch.Tensor) -> torch.Tensor:
        """Calls another layer in the same way, without padding. A second call continues from the first."""
        output: torch.Tensor = layer(**{**self.arguments, "hidden_states": hidden_states, "attention_mask": None})
        return output


def layer_call(model: torch.nn.Module, layer: torch.nn.Module) -> LayerCall | None:
    """Finds out how the model calls its first Gated DeltaNet layer. Stops there, so nothing is computed.

    Args:
        model: the whole model.
        layer: its first Gated DeltaNet layer.

    Returns:
        None if that cannot be tried. Reasons are that no model of transformers contains the layer, that the model's
        weights are not loaded, or that it checkpoints gradients and so uses no cache.

    Raises:
        RuntimeError: the layer gets no cache, or no padding mask, in a form that the package knows.

    """
    models = [part for part in model.modules() if isinstance(part, PreTrainedModel)]
    inner = next((part for part in reversed(models) if any(x is layer for x in part.modules())), None)
    if inner is None or any(getattr(part, "gradient_checkpointing", False) for part in inner.modules()):
        return None
    embeddings: Any = inner.get_input_embeddings()
    if embeddings.weight.device.type == "meta":
        return None
    mask = torch.tensor(PADDED, dtype=torch.long, device=embeddings.weight.device)
    found = _arguments(inner, layer, {"input_ids": torch.zeros_like(mask), "attention_mask": mask})
    caches = [value for value in found.values() if isinstance(value, Cache)]
    if len(caches) != 1 or "hidden_states" not in found:
        raise RuntimeError(unknown(f"a layer of a model that keeps a cache gets {sorted(found)}, {len(caches)} caches"))
    padding = found.get("attention_mask")
    if not isinstance(padding, torch.Tensor) or padding.shape != mask.shape or not torch.equal(padding != 0, mask != 0):
        raise RuntimeError(unknown(f"a layer gets {sorted(found)}, and no attention_mask that is zero at padding"))
    try:
        check_arguments({name: value for name, value in found.items() if name not in PARAMETERS})
    except ValueError as error:
        raise RuntimeError(unknown(str(error))) from error
    return LayerCall(found, caches[0])


def check_parameters(local: torch.nn.Module) -> None:
    """Checks that a remote layer knows all arguments of the local one.

    Raises:
        RuntimeError: the local layer takes more.

    """
    parameters = inspect.signature(type(local).forward).parameters.values()
    if more := [p.name for p in parameters if p.kind is not p.VAR_KEYWORD and p.name not in PARAMETERS]:
        raise RuntimeError(unknown(f"{type(local).__name__} takes {more}"))


def check_cache(host: LayerHost, cache: Cache | None) -> None:
    """Checks that a cache's calls reach its remote layers, and that remote layers do not disturb the others.

    Args:
        host: host of the remote layers. Nothing is sent to it.
        cache: an empty cache of a model, whose layers become remote. None: there is no cache to try.

    Raises:
        RuntimeError: a call does not reach the remote layers, or another layer is disturbed.

    """
    try:
        wrong = _calls_that_do_not_arrive(host)
        if cache is not None:
            before = _positions(cache)
            remote_layer_of(cache, host, host.layers[0])
            if _positions(cache) != before:
                wrong.append("get_seq_length or get_mask_sizes")
    except Exception as error:
        raise RuntimeError(unknown(f"its cache takes no remote layers ({type(error).__name__}: {error})")) from error
    if wrong:
        raise RuntimeError(unknown(f"these of its cache do not reach remote layers, or mistake them: {wrong}"))


class _ReachedError(Exception):
    def __init__(self, arguments: dict[str, Any]) -> None:
        super().__init__()
        self.arguments = arguments


def _stop(_: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NoReturn:
    raise _ReachedError({**dict(zip(["hidden_states", "cache", "attention_mask"], args, strict=False)), **kwargs})


def _arguments(model: PreTrainedModel, layer: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> dict[str, Any]:
    hook = layer.register_forward_pre_hook(_stop, with_kwargs=True)
    try:
        with torch.no_grad():
            model.forward(**inputs, use_cache=True)
    except _ReachedError as reached:
        return reached.arguments
    finally:
        hook.remove()
    raise RuntimeError(unknown(f"{type(model).__name__} does not call its Gated DeltaNet layer"))


class _Recorder(RemoteSequences):
    """Records the calls that it receives."""

    def __init__(self, host: LayerHost) -> None:
        super().__init__(host)
        self.asked: list[str] = []

    def __len__(self) -> int:
        return 1

    def select(self, rows: Sequence[int]) -> None:
        self.asked.append("select")

    def crop(self, tokens: int) -> None:
        self.asked.append(f"crop {tokens}")

    def reset(self) -> None:
        self.asked.append("reset")


def _calls_that_do_not_arrive(host: LayerHost) -> list[str]:
    sequences = _Recorder(host)
    layer = RemoteCacheLayer(sequences, leads=True)
    cache = Cache(layers=[layer])
    row = torch.zeros(1, dtype=torch.long, device="cpu")
    tried: list[tuple[str, tuple[Any, ...], list[str]]] = [
        ("reorder_cache", (row,), ["select"]),
        ("batch_select_indices", (row,), ["select"]),
        ("batch_repeat_interleave", (2,), ["select"]),
        ("activate_past_recording", (), []),
        ("crop", (-3,), ["crop 3"]),
        ("reset", (), ["reset"]),
    ]
    wrong = []
    for name, arguments, want in tried:
        sequences.asked.clear()
        getattr(cache, name)(*arguments)
        if sequences.asked != want:
            wrong.append(name)
    if not layer.record_past:
        wrong.append("record_past")
    for has in (True, False):
        layer.has_previous_state[0] = has
        if cache.has_previous_state(0) is not has:
            wrong.append("has_previous_state")
    if cache.is_compileable or not cache.is_croppable:
        wrong.append("is_compileable or is_croppable")
    return wrong


def _positions(cache: Cache) -> tuple[Any, ...]:
    """Returns the positions of the next tokens, which attention layers know."""
    return (cache.get_seq_length(), *cache.get_mask_sizes(3, 0))
