"""The servers that make.py records: the protocol as protoc describes it, a gdn_server, a redis-server, and sessions whose
next outputs are recorded.

Nothing here uses the Python client, so that a fixture holds what the program does and not what a client makes of it.
"""

import base64
import contextlib
import os
import random
import signal
import socket
import struct
import subprocess
import tempfile
import time

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PATIENCE = 120  # seconds; a deadline, not a measurement
PACKAGE = "gdn.v1"
SERVICE = f"{PACKAGE}.GdnService"
NEVER_FULL = "--disk-high-watermark=100"  # however full this machine's disk is


def base64_text(data):
    return base64.b64encode(data).decode()


class Protocol:
    """The messages and methods of proto/gdn/v1, as attributes and by name: protocol.DecodeRequest(layer=1)."""

    def __init__(self, proto_folder):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "set")
            subprocess.run(["protoc", f"--proto_path={proto_folder}", "--include_imports", f"--descriptor_set_out={path}",
                            "gdn/v1/service.proto", "gdn/v1/errors.proto", "google/rpc/error_details.proto"], check=True)
            with open(path, "rb") as file:
                described = descriptor_pb2.FileDescriptorSet.FromString(file.read())
        for file in described.file:
            self._leave_out_json_names(file.message_type)
        self.files = described.file
        self.descriptors = described.SerializeToString(deterministic=True)
        self.pool = descriptor_pool.DescriptorPool()
        for file in self.files:
            self.pool.Add(file)
        self.service = self.pool.FindServiceByName(SERVICE)

    def _leave_out_json_names(self, messages):
        """They follow from the names, and would be a quarter of the file."""
        for message in messages:
            for field in message.field:
                field.ClearField("json_name")
            self._leave_out_json_names(message.nested_type)

    def message(self, full_name):
        return message_factory.GetMessageClass(self.pool.FindMessageTypeByName(full_name))

    def __getattr__(self, name):
        return self.message(f"{PACKAGE}.{name}")


class Server:
    """A gdn_server on a free loopback port, and calls of its methods by name."""

    def __init__(self, program, protocol, *flags):
        self.protocol = protocol
        self._folder = tempfile.TemporaryDirectory()
        port_file = os.path.join(self._folder.name, "port")
        log = os.path.join(self._folder.name, "log")
        with open(log, "wb") as output:
            self.process = subprocess.Popen(
                [program, "--listen=127.0.0.1:0", f"--port-file={port_file}", "--backend=cpu", "--threads=2",
                 "--shared-memory-dir=", "--device-state-bytes=64MiB", *flags], stdout=output, stderr=output)
        until = time.monotonic() + PATIENCE
        while not os.path.exists(port_file):
            if self.process.poll() is not None or time.monotonic() > until:
                self.process.kill()
                with open(log, encoding="utf-8") as text:
                    raise RuntimeError(f"gdn_server {' '.join(flags)} does not listen:\n{text.read()}")
            time.sleep(0.02)
        with open(port_file, encoding="utf-8") as text:
            self.channel = grpc.insecure_channel(f"127.0.0.1:{text.read().strip()}")

    def _callable(self, method):
        described = self.protocol.service.methods_by_name[method]
        kind = {(False, False): self.channel.unary_unary, (False, True): self.channel.unary_stream,
                (True, False): self.channel.stream_unary, (True, True): self.channel.stream_stream}
        make = kind[(described.client_streaming, described.server_streaming)]
        return make(f"/{SERVICE}/{method}",
                    request_serializer=lambda message: message.SerializeToString(deterministic=True),
                    response_deserializer=self.protocol.message(described.output_type.full_name).FromString)

    def call(self, method, request, token=""):
        """The reply, or of a method with a stream of replies an iterator. `request` may be an iterator too."""
        metadata = [("authorization", f"Bearer {token}")] if token else []
        return self._callable(method)(request, metadata=metadata, timeout=PATIENCE)

    def end(self, number):
        """By SIGTERM in order, by SIGKILL as a crash."""
        self.channel.close()
        self.process.send_signal(number)
        code = self.process.wait(timeout=PATIENCE)
        if number == signal.SIGTERM and code != 0:
            raise RuntimeError(f"gdn_server ended with {code}")
        self._folder.cleanup()

    @classmethod
    @contextlib.contextmanager
    def running(cls, *arguments):
        server = cls(*arguments)
        try:
            yield server
        finally:
            if server.process.poll() is None:
                server.end(signal.SIGKILL)


class Redis:
    """A redis-server on a socket, and its contents as the commands that write them again."""

    def __init__(self):
        self._folder = tempfile.TemporaryDirectory()
        self._path = os.path.join(self._folder.name, "socket")
        self.process = subprocess.Popen(
            ["redis-server", "--port", "0", "--unixsocket", self._path, "--save", "", "--dir", self._folder.name],
            stdout=subprocess.DEVNULL)
        until = time.monotonic() + PATIENCE
        while True:
            try:
                if self.call("PING") == b"PONG":
                    break
            except OSError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.02)

    @property
    def endpoint(self):
        return f"unix:{self._path}"

    def call(self, *arguments):
        """One command over a connection of its own. Replies are bytes, numbers, None and lists of these."""
        words = [word if isinstance(word, bytes) else str(word).encode() for word in arguments]
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(self._path)
            connection.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words))
            with connection.makefile("rb") as stream:
                return self._reply(stream)

    def _reply(self, stream):
        line = stream.readline()
        kind, rest = line[:1], line[1:-2]
        if kind == b"+":
            return rest
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if rest == b"-1" else stream.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return [self._reply(stream) for _ in range(int(rest))]
        raise RuntimeError(line)

    def lasting_keys(self):
        """Ascending. Keys that expire (a lease, say) are gone long before anybody reads a fixture."""
        return [key for key in sorted(self.call("KEYS", "*")) if self.call("PTTL", key) == -1]

    def commands(self):
        """[["HSET", KEY, FIELD, VALUE, ..], ..]: text as it is, other bytes as {"base64": ..}."""
        written = []
        for key in self.lasting_keys():
            kind = self.call("TYPE", key)
            if kind == b"hash":
                pairs = self.call("HGETALL", key)
                pairs = [word for pair in sorted(zip(pairs[::2], pairs[1::2])) for word in pair]
                written.append([b"HSET", key, *pairs])
            elif kind == b"string":
                written.append([b"SET", key, self.call("GET", key)])
            else:
                raise RuntimeError(f"{key} is a {kind}, which the fixtures have no form for; add one here")
        return [[self._text(word) for word in command] for command in written]

    @staticmethod
    def _text(word):
        return word.decode() if word.isascii() and word.decode().isprintable() else {"base64": base64_text(word)}

    def end(self):
        self.process.kill()
        self.process.wait()
        self._folder.cleanup()


def floats(shape, values):
    return {"dtype": 1, "shape": list(shape), "data": struct.pack(f"<{len(values)}f", *values)}


class Story:
    """One session, on the server whose stores are kept and on a steady one that never stops.

    Each step goes to both and must give the same bits. The next steps are only the steady one's, so what is kept does not
    move and what a later version must answer does not depend on what has been stored. kept=None: the steady one alone.
    """

    def __init__(self, kept, steady, name, spec, token="", layers=1):
        self.kept, self.steady, self.name, self.spec, self.token, self.layer_count = kept, steady, name, spec, token, layers
        self.protocol = steady.protocol
        self.steady_name = name
        self.counts = {}
        self._random = random.Random(name)

    def create(self):
        for server, token in self._both():
            server.call("CreateSession", self.protocol.CreateSessionRequest(session_id=self.name, **self.spec), token)
        return self

    def _both(self):
        return [(self.kept, self.token)] * (self.kept is not None) + [(self.steady, "")]

    def _values(self, count, low, high):
        return [self._random.uniform(low, high) for _ in range(count)]

    def _input(self, leading):
        tokens = 1
        for n in leading:
            tokens *= n
        if "model" in self.spec:
            model = self.steady.call("GetModel", self.protocol.GetModelRequest(name=self.spec["model"])).model
            shape = (*leading, model.dims.hidden_size)
            return {"hidden_states": {"hidden_states": floats(shape, self._values(tokens * shape[-1], -1, 1))}}
        op = self.protocol.OperatorSpec(**self.spec["operator"])
        heads, key, value, per_channel = op.value_heads, op.key_dim, op.value_dim, op.decay == 2
        parts = {}
        for part, shape, low, high in [("q", (op.key_heads, key), -0.5, 0.5), ("k", (op.key_heads, key), -0.5, 0.5),
                                       ("v", (heads, value), -1, 1),
                                       ("g", (heads, key) if per_channel else (heads,), -0.5, 0), ("beta", (heads,), 0, 1)]:
            size = 1
            for n in shape:
                size *= n
            parts[part] = floats((*leading, *shape), self._values(tokens * size, low, high))
        return {"delta_rule": parts}

    def prefill_request(self, layer, tokens, **fields):
        return self.protocol.PrefillRequest(session=f"sessions/{self.name}", layer=layer, **self._input([tokens]), **fields)

    def decode_request(self, layer, tokens=1, **fields):
        return self.protocol.DecodeRequest(sessions=[f"sessions/{self.name}"], layer=layer, **self._input([1, tokens]),
                                           **fields)

    def accept_request(self, tokens=0, path=(), **fields):
        one = {"session": f"sessions/{self.name}", "accepted_tokens": tokens, "path": list(path)}
        return self.protocol.AcceptTokensRequest(acceptances=[one], **fields)

    def _for_steady(self, request):
        """The same request of the session on the steady server, whose name and epoch may be others."""
        copy = type(request)()
        copy.CopyFrom(request)
        for field in ("session_epoch", "session_epochs"):
            if field in copy.DESCRIPTOR.fields_by_name:
                copy.ClearField(field)
        name = f"sessions/{self.steady_name}"
        if copy.DESCRIPTOR.name == "DecodeRequest":
            copy.sessions[0] = name
        elif copy.DESCRIPTOR.name == "AcceptTokensRequest":
            copy.acceptances[0].session = name
            copy.acceptances[0].ClearField("session_epoch")
        else:
            copy.session = name
        return copy

    def _note(self, response):
        if response.DESCRIPTOR.name == "AcceptTokensResponse":
            response.counts[0].session = f"sessions/{self.name}"
            self.counts.update({state.layer: state.token_count for state in response.counts[0].layers})

    def step(self, request):
        """A step of both. Returns the steady server's reply."""
        method = type(request).__name__.removesuffix("Request")
        response = self.steady.call(method, self._for_steady(request))
        self._note(response)
        if method == "Prefill":
            self.counts[request.layer] = response.token_count
        elif method == "Decode":
            self.counts[request.layer] = response.token_counts[0]
        if self.kept is not None:
            kept = self.kept.call(method, request, self.token)
            if method != "AcceptTokens" and kept.output != response.output:
                raise RuntimeError(f"{self.name}: the two servers answer {method} with different bits")
        return response

    def prefill(self, layer, tokens, **fields):
        return self.step(self.prefill_request(layer, tokens, **fields))

    def decode(self, layer, tokens=1, **fields):
        return self.step(self.decode_request(layer, tokens, **fields))

    def accept(self, tokens=0, path=(), **fields):
        return self.step(self.accept_request(tokens, path, **fields))

    def layers(self):
        """Each layer's state, as a later version must tell it; what is 0 or empty is left out."""
        server, token = self._both()[0]
        session = server.call("GetSession", self.protocol.GetSessionRequest(name=f"sessions/{self.name}"), token).session
        kinds = self.protocol.pool.FindEnumTypeByName(f"{PACKAGE}.InputKind").values_by_number
        told = [{"layer": state.layer, "token_count": state.token_count, "input_kind": kinds[state.input_kind].name,
                 "log_length": state.log_length, "draft_length": state.draft_length,
                 "draft_parents": list(state.draft_parents)} for state in session.layers]
        return [{key: value for key, value in layer.items() if value not in (0, [], kinds[0].name)} for layer in told]

    def epoch(self):
        server, token = self._both()[0]
        return server.call("GetSession", self.protocol.GetSessionRequest(name=f"sessions/{self.name}"), token).session.epoch

    def as_it_is(self, suffix):
        """The session as it is now, for steps that follow a restore or a crash: a fork on the steady server."""
        fork = f"{self.name}-{suffix}"
        self.steady.call("ForkSession", self.protocol.ForkSessionRequest(name=f"sessions/{self.steady_name}", session_ids=[fork]))
        story = Story(None, self.steady, self.name, self.spec, self.token, self.layer_count)
        story.steady_name, story.counts = fork, dict(self.counts)
        story._random.seed(fork)
        return story

    # The next steps, each with its reply or the error that must answer it.

    def _recorded(self, request, **outcome):
        return {"method": type(request).__name__.removesuffix("Request"),
                "request": base64_text(request.SerializeToString(deterministic=True)), **outcome}

    def next_step(self, request, again=False):
        """`again`: a retry, which gets the stored reply, whatever computes it."""
        kept, self.kept = self.kept, None
        response = self.step(request)
        self.kept = kept
        if "compute_time_us" in response.DESCRIPTOR.fields_by_name:
            response.ClearField("compute_time_us")
        outcome = {"response": base64_text(response.SerializeToString(deterministic=True))}
        return self._recorded(request, **outcome, **({"stored_reply": True} if again else {}))

    def refused_step(self, request, reason):
        return self._recorded(request, refused=reason)

    def go_on(self, epoch=None, layers=None, tokens=(1, 3)):
        """Decodes of each layer, the last over the next fold of a log that is long enough; then a prefill and a decode."""
        steps = []
        for layer in layers if layers is not None else range(self.layer_count):
            for count in tokens:
                named = {"session_epochs": [epoch]} if epoch is not None else {}
                steps.append(self.next_step(self.decode_request(
                    layer, count, expected_token_counts=[self.counts.get(layer, 0)], **named)))
        if "operator" in self.spec:
            named = {"session_epoch": epoch} if epoch is not None else {}
            steps.append(self.next_step(self.prefill_request(0, 2, expected_token_count=self.counts.get(0, 0), **named)))
        return steps

    def manifest(self, epoch, steps, **more):
        """`epoch`: {"is": E}, or {"above": E} if the server must begin a new one."""
        caller = {"token": self.token} if self.token else {}
        spec = dict(self.spec)
        return {"name": self.name, **caller, "spec": spec, "epoch": epoch, **more, "steps": steps}
