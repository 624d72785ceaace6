"""vLLM's models with remote layers: a layer's state is a handle of 16 bytes in vLLM's memory, and blocks stay small."""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.layers.mamba.mamba_utils import get_temporal_copy_spec
from vllm.model_executor.models import olmo_hybrid, qwen3_5, qwen3_next

from gdn_vllm import layer  # replaces vLLM's layers
from gdn_vllm.options import read


class _Handles:
    """The part of a model's class that says how large its states are."""

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)  # type: ignore[call-arg]
        if read(vllm_config.additional_config) is not None:
            self.get_mamba_state_copy_funcs = lambda kinds: dict.fromkeys(kinds, (get_temporal_copy_spec,))

    @classmethod
    def get_mamba_state_shape_from_config(cls, vllm_config: Any) -> Any:
        if read(vllm_config.additional_config) is None:
            return super().get_mamba_state_shape_from_config(vllm_config)  # type: ignore[misc]
        return ((layer.HANDLE_BYTES,),)

    @classmethod
    def get_mamba_state_dtype_from_config(cls, vllm_config: Any) -> Any:
        if read(vllm_config.additional_config) is None:
            return super().get_mamba_state_dtype_from_config(vllm_config)  # type: ignore[misc]
        return (torch.uint8,)


class Qwen3NextForCausalLM(_Handles, qwen3_next.Qwen3NextForCausalLM):
    """Qwen3-Next."""


class Qwen3_5ForCausalLM(_Handles, qwen3_5.Qwen3_5ForCausalLM):  # noqa: N801 - vLLM's name
    """Qwen3.5, its text alone."""


class Qwen3_5MoeForCausalLM(_Handles, qwen3_5.Qwen3_5MoeForCausalLM):  # noqa: N801
    """Qwen3.5 with experts, its text alone."""


class Qwen3_5ForConditionalGeneration(_Handles, qwen3_5.Qwen3_5ForConditionalGeneration):  # noqa: N801
    """Qwen3.5."""


class Qwen3_5MoeForConditionalGeneration(_Handles, qwen3_5.Qwen3_5MoeForConditionalGeneration):  # noqa: N801
    """Qwen3.5 with experts."""


class OlmoHybridForCausalLM(_Handles, olmo_hybrid.OlmoHybridForCausalLM):
    """Olmo-Hybrid."""
