"""The arguments that a decoder may pass to a Gated DeltaNet layer beside its input, its cache and its mask.

Thread safety: free functions.
"""

from __future__ import annotations

from typing import Any

from transformers import Cache

# Arguments that decoders pass along and no Gated DeltaNet layer uses.
INERT = {
    "cache_position",
    "is_causal",
    "logits_to_keep",
    "num_items_in_batch",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "position_embeddings",
    "position_ids",
    "return_dict",
    "use_cache",
}
# Arguments that say at which tokens the samples of a packed row begin and end.
PACKED = {"cu_seqlens", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "max_seqlen", "seq_idx"}


def check_arguments(given: dict[str, Any]) -> None:
    """Raises ValueError where some may change what a local layer computes."""
    set_ones = {name for name, value in given.items() if value is not None and not isinstance(value, Cache)}
    if packed := sorted(set_ones & PACKED):
        raise ValueError(
            f"packed sequences ({', '.join(packed)}) have no remote form; pass a row for each, padded on the left"
        )
    if more := sorted(set_ones - INERT):
        raise ValueError(
            f"a remote Gated DeltaNet layer has no use for {', '.join(more)}, and a local one may have; expected "
            f"hidden_states, cache, attention_mask and of {', '.join(sorted(INERT))}"
        )
