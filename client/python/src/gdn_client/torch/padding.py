"""Finds the real tokens of a padded batch.

Thread safety: free functions.
"""

from __future__ import annotations

import torch


def spans(mask: torch.Tensor | None, batch: int, tokens: int, *, keeps_state: bool) -> list[tuple[int, int]]:
    """Returns the real tokens [begin, end) of each row.

    Padding before a prompt keeps a layer's zero state zero. So the remote layer can skip it, and the result is the
    same. Padding after the tokens would decay a state that is kept, and the next tokens would follow the padding.

    Args:
        mask: `[B, T]`, 0 at padding and 1 at tokens. None: there is no padding.
        batch: B.
        tokens: T.
        keeps_state: whether a cache continues from these tokens.

    Raises:
        ValueError: a row has padding between its tokens, or after them although its state is kept, or the mask has
            another shape or other values.

    """
    if mask is None:
        return [(0, tokens)] * batch
    if tuple(mask.shape) != (batch, tokens):
        raise ValueError(f"attention_mask of the linear attention is {list(mask.shape)}, expected [{batch}, {tokens}]")
    if not ((mask == 0) | (mask == 1)).all():
        raise ValueError(
            "attention_mask of the linear attention has other values than 0 at padding and 1 at tokens: numbers of "
            "packed samples, weights and masks that are added have no remote form"
        )
    found = []
    for row, real in enumerate((mask != 0).cpu()):
        where = real.nonzero().flatten()
        if len(where) == 0:
            found.append((0, 0))
            continue
        begin, end = int(where[0]), int(where[-1]) + 1
        if len(where) != end - begin:
            raise ValueError(f"row {row} of attention_mask has padding between its tokens; pad on the left")
        if keeps_state and end != tokens:
            raise ValueError(
                f"row {row} of attention_mask has padding after its tokens, which a recurrent state that is kept would "
                "take in; set tokenizer.padding_side = 'left'"
            )
        found.append((begin, end))
    return found
