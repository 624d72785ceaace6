"""Prompts cut into segments, so that a session can start after the part of its prompt that the server knows.

    prompt = gdn_client.prompt_prefix(token_ids, 512)
    with client.session(model="qwen", prefix=prompt) as session:
        done = session.prefix_tokens           # tokens that need not be computed
        ...prefill each layer from there to the end of a segment, at `tokens`...
        session.keep_prefix(prompt, tokens)

Thread safety: free functions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from gdn_client.flow import Flow, Retry, Rpc, exact
from gdn_client.inputs import Input
from gdn_client.proto.gdn.v1 import info_pb2, prefix_pb2, session_pb2
from gdn_client.session_flow import Abilities, tokens_a_call

__all__ = ["call_tokens", "drop_prefixes", "first_segments", "prompt_prefix"]


def prompt_prefix(
    token_ids: Sequence[int], segment_tokens: int, *, context: str | bytes = b""
) -> session_pb2.PromptPrefix:
    """Cuts a prompt into segments. Each segment is one prefill of every layer.

    Args:
        token_ids: ids of the whole prompt. Its last token is in no segment, because its output is needed and so it is
            always computed.
        segment_tokens: tokens of each segment. The rest of the prompt is in no segment. A segment must fit one call
            (`Client.call_tokens`), because a prefill that is split over several calls has other bits.
        context: everything else of the caller that the layers' inputs depend on. Examples are the weights of its other
            layers, an adapter, or the dtype that it sends.

    Raises:
        ValueError: `segment_tokens` is below 1.

    """
    if segment_tokens < 1:
        raise ValueError(f"segment_tokens is {segment_tokens}, expected at least 1")
    text = context.encode() if isinstance(context, str) else context
    head = len(text).to_bytes(8, "little") + text
    prefix = session_pb2.PromptPrefix()
    for begin in range(0, len(token_ids) - segment_tokens, segment_tokens):
        ids = b"".join(int(token).to_bytes(8, "little", signed=True) for token in token_ids[begin:][:segment_tokens])
        prefix.segments.add(tokens=segment_tokens, content_sha256=hashlib.sha256(head + ids).digest())
    return prefix


def first_segments(prefix: session_pb2.PromptPrefix, tokens: int) -> session_pb2.PromptPrefix:
    """Returns the segments of a prefix that end at `tokens` or before."""
    first = session_pb2.PromptPrefix(input_kind=prefix.input_kind)
    end = 0
    for segment in prefix.segments:
        end += segment.tokens
        if end > tokens:
            break
        first.segments.add().CopyFrom(segment)
    return first


def call_tokens(x: Input, limits: info_pb2.Limits, abilities: Abilities) -> int:
    """Returns the most tokens of such an input that fit one prefill call."""
    return tokens_a_call(x, limits.max_message_bytes, abilities)


def drop_prefixes(retry: Retry) -> Flow[int]:
    """Deletes all prefixes of the caller, and returns their number."""
    reply: prefix_pb2.DropPrefixesResponse = yield from exact(
        Rpc("DropPrefixes", prefix_pb2.DropPrefixesRequest()), retry
    )
    return reply.dropped
