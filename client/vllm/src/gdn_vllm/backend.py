"""The attention backend of remote layers: its metadata says which slot each row of a batch has, and nothing else.

A full CUDA graph cannot hold a call of a server, so the backend supports none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vllm.v1.attention.backend import AttentionCGSupport, AttentionMetadataBuilder
from vllm.v1.attention.backends.gdn_attn import GDNAttentionBackend
from vllm.v1.attention.backends.utils import mamba_get_block_table_tensor


@dataclass
class RemoteMetadata:
    """The rows of one batch, for the layers of one KV cache group.

    Attributes:
        batch: for each row its slot, its tokens [begin, end) of the batch, and the tokens behind it.
        rows: the rows with their sessions (`service.BoundRow`), which the first layer that runs finds.

    """

    batch: list[tuple[int, int, int, int]]
    rows: list[Any] | None = field(default=None)


class RemoteMetadataBuilder(AttentionMetadataBuilder[RemoteMetadata]):
    """Builds the metadata of each batch."""

    _cudagraph_support = AttentionCGSupport.NEVER
    reorder_batch_threshold = None

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: Any) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self._mode = vllm_config.cache_config.mamba_cache_mode

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> RemoteMetadata:
        common = common_attn_metadata
        table = mamba_get_block_table_tensor(common.block_table_tensor, common.seq_lens, self.kv_cache_spec, self._mode)
        slots, lengths = table[:, 0].tolist(), common.seq_lens.tolist()
        starts = common.query_start_loc_cpu.tolist()
        return RemoteMetadata(
            [
                (slot, begin, end, length - (end - begin))
                for slot, begin, end, length in zip(slots, starts, starts[1:], lengths, strict=False)
            ]
        )


class RemoteBackend(GDNAttentionBackend):
    """The backend that remote layers have instead of vLLM's own."""

    @staticmethod
    def get_name() -> str:
        return "GDN_REMOTE"

    @staticmethod
    def get_builder_cls() -> type[RemoteMetadataBuilder]:
        return RemoteMetadataBuilder
