"""The commands of `gdn`. Each yields lines of text, and tables as lists of rows.

Thread safety: for one thread.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np

from gdn_client.client import Client
from gdn_client.files import output_file, read_file
from gdn_client.notebook import size
from gdn_client.proto.gdn.v1 import session_pb2
from gdn_client.requests import tier_name
from gdn_client.session import Session

Rows: TypeAlias = list[Mapping[str, object]]
Output: TypeAlias = Iterator[str | Rows]


def info(client: Client, arguments: argparse.Namespace) -> Output:
    """Shows the server's version, limits and tiers."""
    told = client.info()
    if arguments.json:
        from google.protobuf import json_format

        fields: dict[str, object] = json_format.MessageToDict(told, preserving_proto_field_name=True)
        yield [fields]
        return
    yield f"gdn_server {told.version} at {client.target}: {told.backend}, {told.device}, {told.session_count} sessions"
    yield f"numerics {told.numerics_id}"
    limits = told.limits
    yield (
        f"limits: {limits.max_batch} sessions a batch, {limits.max_draft} tokens a decode, messages of "
        f"{size(limits.max_message_bytes)}, states of {size(limits.state_bytes)}, shared memory of "
        f"{size(limits.shared_memory_bytes)}"
    )
    if told.HasField("drain"):
        yield f"DRAINING: {told.drain.durable_sessions} of {told.drain.sessions} sessions are durable"
    yield [
        {
            "tier": tier.name,
            "used": size(tier.used_bytes),
            "limit": size(tier.limit_bytes) if tier.limit_bytes else "-",
            "sessions": tier.sessions,
            "failures": tier.failures,
            "problem": tier.problem or "-",
        }
        for tier in told.tiers
    ]


def models(client: Client, arguments: argparse.Namespace) -> Output:
    """Shows one row for each model."""
    yield [
        {
            "model": model.name.removeprefix("models/"),
            "family": model.family,
            "gdn layers": len(model.gdn_layers),
            "of": model.num_layers,
            "D": model.dims.hidden_size,
            "H": model.dims.key_heads,
            "HV": model.dims.value_heads,
            "K": model.dims.key_dim,
            "V": model.dims.value_dim,
            "a session's state": size(model.state_bytes_per_session),
        }
        for model in client.models()
    ]


def _session_row(session: session_pb2.Session, with_owner: bool) -> Mapping[str, object]:
    counts = [layer.token_count for layer in session.layers]
    owner = {"owner": session.owner} if with_owner else {}
    return {
        "session": session.name.removeprefix("sessions/"),
        **owner,
        "model": session.model.removeprefix("models/") or "operator",
        "layers": len(counts),
        "tokens": max(counts, default=0),
        "durable": min((layer.durable_token_count for layer in session.layers), default=0),
        "tier": tier_name(session.tier) or "-",
        "state": size(session.state_bytes),
    }


def list_sessions(client: Client, arguments: argparse.Namespace) -> Output:
    """Shows one row for each session."""
    yield [_session_row(session, arguments.all) for session in client.sessions(all=arguments.all)]


def create_session(client: Client, arguments: argparse.Namespace) -> Output:
    """Yields the session's id. The session stays when the program ends."""
    yield client.session(arguments.model, session_id=arguments.id).detach().removeprefix("sessions/")


def show_session(client: Client, arguments: argparse.Namespace) -> Output:
    """Yields a row for each layer."""
    session = client.attach(arguments.session)
    yield [{"layer": layer, "tokens": session.token_count(layer)} for layer in session.layers]
    session.detach()


def delete(client: Client, arguments: argparse.Namespace) -> Output:
    """Deletes the sessions."""
    for session in arguments.sessions:
        client.delete_session(session, subject=arguments.subject)
        yield f"{session} has ended"


def export_state(client: Client, arguments: argparse.Namespace) -> Output:
    """Writes a state file, completely or not at all."""
    with output_file(arguments.out) as write:
        file = client.export_state(arguments.session, progress=arguments.progress)
        write(file)
    yield f"{arguments.out}: {size(len(file))}"


def import_state(client: Client, arguments: argparse.Namespace) -> Output:
    """Creates a session from a state file, and shows its name."""
    file = read_file(arguments.file)
    session = client.import_state(file, model=arguments.model, session_id=arguments.id, progress=arguments.progress)
    yield session.detach().removeprefix("sessions/")


def metrics(client: Client, arguments: argparse.Namespace) -> Output:
    """Shows the metrics in Prometheus' text format."""
    yield client.metrics().rstrip("\n")


def measure(client: Client, arguments: argparse.Namespace) -> Output:
    """Runs prefills, and decodes of a batch, with random input."""
    rng = np.random.default_rng(0)
    sessions: list[Session] = []
    try:
        while len(sessions) < arguments.batch:
            sessions.append(client.session(arguments.model, affinity="gdn-measure"))
        batch = client.batch(sessions)
        model = client.model(batch[0].model)
        layer = batch[0].layers[0] if arguments.layer is None else arguments.layer
        prompt, width = arguments.prompt, model.dims.hidden_size

        def random(*shape: int) -> Any:
            return rng.standard_normal(shape).astype(arguments.dtype)

        begin = time.perf_counter()
        for session in batch:
            output = session.prefill(layer, random(prompt, width))
        seconds = time.perf_counter() - begin
        yield f"{model.name.removeprefix('models/')}, layer {layer}, {arguments.dtype}"
        yield (
            f"prefill: {arguments.batch} x [{prompt}, {width}] -> {list(output.shape)}, "
            f"{1e3 * seconds / arguments.batch:.2f} ms each"
        )
        times = []
        for _ in range(arguments.steps):
            x = random(arguments.batch, width)
            begin = time.perf_counter()
            output = batch.decode(layer, x)
            times.append(time.perf_counter() - begin)
        median, slow = np.percentile(times, [50, 99])
        yield (
            f"decode: {arguments.steps} x [{arguments.batch}, {width}] -> {list(output.shape)}, median "
            f"{1e3 * median:.2f} ms, p99 {1e3 * slow:.2f} ms"
        )
    finally:
        if sessions:
            client.batch(sessions).delete()
