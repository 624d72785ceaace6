"""Arguments that a decoder may pass to a Gated DeltaNet layer, in addition to its input, cache and mask.

Thread safety: free functions.
"""

from __future__ import annotations

from typing import Any

from transformers import Cache

# Decoders pass these arguments to every layer, and no Gated DeltaNet layer uses them.
INERT = {
    "cache_position",
    "input_ids",
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
# These arguments say at which tokens the samples of a packed row begin and end.
PACKED = {"cu_seqlens", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "max_seqlen", "seq_idx"}


def check_arguments(given: dict[str, Any]) -> None:
    """Raises ValueError if an argument might change the result of a local layer."""
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
