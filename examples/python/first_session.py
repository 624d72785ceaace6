#!/usr/bin/env python3
"""A first session with a Gated DeltaNet server, without generated code.

The program gets the message types from the server (gRPC reflection), so it needs only grpcio, grpcio-reflection and
numpy. It prefills and decodes a layer of the first served model, and the bare delta rule of an operator session. It
checks the answers.
Exit code: 0 if all comparisons are within TOLERANCE, 1 otherwise.
"""

import argparse
import sys

import grpc
import numpy as np
from google.protobuf import descriptor_pool

try:
    from google.protobuf.message_factory import GetMessageClass
except ImportError:  # protobuf < 4.22
    from google.protobuf.message_factory import MessageFactory

    GetMessageClass = MessageFactory().GetPrototype
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

SERVICE = "gdn.v1.GdnService"
TOLERANCE = 1e-5  # relative error in the Euclidean norm
PROMPT_TOKENS = 100
DECODE_STEPS = 5


class Service:
    """Calls unary methods by name, such as service.Prefill(session=..., layer=...)."""

    def __init__(self, channel):
        self._channel = channel
        self._pool = descriptor_pool.DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
        self._methods = self._pool.FindServiceByName(SERVICE).methods_by_name

    def message(self, name, **fields):
        return GetMessageClass(self._pool.FindMessageTypeByName("gdn.v1." + name))(**fields)

    def __getattr__(self, name):
        method = self._methods[name]
        call = self._channel.unary_unary(
            "/%s/%s" % (SERVICE, name),
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )
        request_type = GetMessageClass(method.input_type)
        return lambda **fields: call(request_type(**fields), timeout=60)

    def tensor(self, array):
        """Makes a Tensor message: dtype (DTYPE_F32 = 1), shape, and row-major little-endian bytes."""
        array = np.ascontiguousarray(array, dtype="<f4")
        return self.message("Tensor", dtype=1, shape=array.shape, data=array.tobytes())

    def hidden_states(self, array):
        return self.message("HiddenStatesInput", hidden_states=self.tensor(array))

    def delta_rule(self, q, k, v, g, beta):
        tensors = {"q": q, "k": k, "v": v, "g": g, "beta": beta}
        return self.message("DeltaRuleInput", **{name: self.tensor(value) for name, value in tensors.items()})


def to_array(tensor):
    return np.frombuffer(tensor.data, dtype="<f4").reshape(tensor.shape)


def delta_rule_float64(q, k, v, g, beta):
    """The gated delta rule, token by token: S <- e^g S; S <- S + k (beta (v - S^T k))^T; o = S^T q K^-0.5."""
    q, k, v, g, beta = (np.asarray(x, dtype=np.float64) for x in (q, k, v, g, beta))
    tokens, key_heads, key_dim = k.shape
    value_heads = v.shape[1]
    # Value head hv reads key head hv // (HV / H).
    q, k = (np.repeat(x, value_heads // key_heads, axis=1) for x in (q, k))
    state = np.zeros((value_heads, key_dim, v.shape[2]))
    output = np.empty(v.shape)
    for t in range(tokens):
        state *= np.exp(g[t])[:, None, None]
        update = beta[t][:, None] * (v[t] - np.einsum("hkv,hk->hv", state, k[t]))
        state += np.einsum("hk,hv->hkv", k[t], update)
        output[t] = np.einsum("hkv,hk->hv", state, q[t]) * key_dim**-0.5
    return output


class Checks:
    def __init__(self):
        self.ok = True

    def close(self, what, got, want):
        norm = np.linalg.norm(np.asarray(want, np.float64))
        error = np.linalg.norm(np.asarray(got, np.float64) - want) / norm if norm > 0 else np.inf
        passed = bool(error <= TOLERANCE)  # False for NaN too
        self.ok &= passed
        print("  %-58s relative error %.1e  %s" % (what, error, "ok" if passed else "FAILED"))

    def equal(self, what, got, want):
        self.ok &= got == want
        print("  %-58s %s  %s" % (what, got, "ok" if got == want else "FAILED, expected %s" % (want,)))


def prefill_then_decode(service, session, whole_session, layer, make_input, cut, checks):
    """Prefills cut(0, PROMPT_TOKENS), decodes the rest token by token, and compares with one prefill of everything.

    make_input has the name of the request's input field, and the function that makes the field from tensors. Returns
    the outputs of the steps, [T, ...].
    """
    field, wrap = make_input
    total = PROMPT_TOKENS + DECODE_STEPS
    reply = service.Prefill(
        session=session, layer=layer, expected_token_count=0, request_id="prompt", **{field: wrap(*cut(0, PROMPT_TOKENS))}
    )
    print("  prefilled %d tokens, %d us of compute" % (reply.token_count, reply.compute_time_us))
    outputs = [to_array(reply.output)]
    for step in range(DECODE_STEPS):
        count = PROMPT_TOKENS + step
        # Decode takes many sessions. This batch has one: [B = 1, T = 1, ...].
        inputs = [x[None] for x in cut(count, count + 1)]
        reply = service.Decode(
            sessions=[session], layer=layer, expected_token_counts=[count], request_id="step-%d" % step, **{field: wrap(*inputs)}
        )
        outputs.append(to_array(reply.output)[0])
    outputs = np.concatenate(outputs)
    checks.equal("token count after the last decode", reply.token_counts[0], total)

    again = service.Decode(
        sessions=[session],
        layer=layer,
        expected_token_counts=[total - 1],
        request_id="step-%d" % (DECODE_STEPS - 1),
        **{field: wrap(*[x[None] for x in cut(total - 1, total)])}
    )
    checks.equal("a retried request_id gives the same bytes", again.output.data == reply.output.data, True)
    checks.equal("and does not move the state", again.token_counts[0], total)

    whole = service.Prefill(session=whole_session, layer=layer, **{field: wrap(*cut(0, total))})
    checks.close("prefill(%d) + decode(%d) against prefill(%d)" % (PROMPT_TOKENS, DECODE_STEPS, total), outputs, to_array(whole.output))
    return outputs


def model_session(service, model, random, checks):
    dims, layer = model.dims, model.gdn_layers[-1]
    print("\n%s, layer %d: hidden_states [T, %d]" % (model.name, layer, dims.hidden_size))
    x = random.standard_normal((PROMPT_TOKENS + DECODE_STEPS, dims.hidden_size)).astype(np.float32)
    with_sessions(
        service,
        {"model": model.name},
        lambda first, second: prefill_then_decode(
            service, first, second, layer, ("hidden_states", service.hidden_states), lambda a, b: (x[a:b],), checks
        ),
    )


def operator_session(service, random, checks):
    tokens, key_heads, value_heads, key_dim, value_dim = PROMPT_TOKENS + DECODE_STEPS, 2, 4, 64, 32
    spec = service.message("OperatorSpec", key_heads=key_heads, value_heads=value_heads, key_dim=key_dim, value_dim=value_dim)
    print("\nan operator session: H=%d HV=%d K=%d V=%d" % (key_heads, value_heads, key_dim, value_dim))
    q, k = random.standard_normal((2, tokens, key_heads, key_dim)).astype(np.float32)
    q, k = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (q, k))
    v = random.standard_normal((tokens, value_heads, value_dim)).astype(np.float32)
    g = -random.uniform(0.001, 0.5, (tokens, value_heads)).astype(np.float32)  # log decay, <= 0
    beta = random.uniform(0, 1, (tokens, value_heads)).astype(np.float32)  # write strength
    inputs = (q, k, v, g, beta)
    outputs = with_sessions(
        service,
        {"operator": spec},
        lambda first, second: prefill_then_decode(
            service, first, second, 0, ("delta_rule", service.delta_rule), lambda a, b: tuple(x[a:b] for x in inputs), checks
        ),
    )
    checks.close("the steps against the recurrence in NumPy float64", outputs, delta_rule_float64(*inputs))


def with_sessions(service, spec, body):
    """Runs body(name, name) with two new sessions, and always deletes them."""
    names = []
    try:
        for _ in range(2):
            names.append(service.CreateSession(**spec).session.name)
        print("  sessions %s" % ", ".join(names))
        return body(*names)
    finally:
        for name in names:
            service.DeleteSession(name=name)


def bad_requests(service, checks):
    """Shows an error: it has a canonical code, and google.rpc.ErrorInfo in its details has the reason."""
    print("\na request that is wrong")
    try:
        service.GetSession(name="sessions/nobody-has-made-this-one")
        checks.equal("GetSession of an unknown session", "OK", "NOT_FOUND")
    except grpc.RpcError as error:
        checks.equal("GetSession of an unknown session", error.code().name, "NOT_FOUND")
        details = dict(error.trailing_metadata()).get("grpc-status-details-bin", b"")
        checks.equal("its details name the reason SESSION_NOT_FOUND", b"SESSION_NOT_FOUND" in details, True)


def first_session(service, checks):
    random = np.random.default_rng(7)
    models = service.ListModels().models
    if models:
        model_session(service, models[0], random, checks)
    else:
        print("The server has no models; only the bare operator is tried.")
    operator_session(service, random, checks)
    bad_requests(service, checks)


class TokenOfFile(grpc.AuthMetadataPlugin):
    """Sends the file's token with each call. It reads the file each time, so a replaced token needs no restart."""

    def __init__(self, path):
        self._path = path

    def __call__(self, context, callback):
        try:
            with open(self._path, encoding="ascii") as file:
                callback((("authorization", "Bearer " + file.read().strip()),), None)
        except (OSError, UnicodeError) as error:
            callback((), error)


def read_file(path):
    if path is None:
        return None
    with open(path, "rb") as file:
        return file.read()


def connect(arguments, certificate=True, token_file=None):
    """Opens a channel with the certificate and token of the arguments, or without a certificate, or another token."""
    options = [("grpc.max_receive_message_length", -1)]
    if arguments.tls_ca is None:
        return grpc.insecure_channel(arguments.target, options=options)
    credentials = grpc.ssl_channel_credentials(
        root_certificates=read_file(arguments.tls_ca),
        private_key=read_file(arguments.tls_key) if certificate else None,
        certificate_chain=read_file(arguments.tls_cert) if certificate else None,
    )
    token_file = token_file or arguments.token_file
    if token_file is not None:
        token = grpc.metadata_call_credentials(TokenOfFile(token_file))
        credentials = grpc.composite_channel_credentials(credentials, token)
    return grpc.secure_channel(arguments.target, credentials, options=options)


def parse_arguments(description, add_more=lambda parser: None):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="127.0.0.1:50061", help="host:port of the server (default: %(default)s)")
    parser.add_argument("--tls-ca", metavar="FILE", help="who has signed the server's certificate; without it there is no TLS")
    parser.add_argument("--tls-cert", metavar="FILE", help="the client's certificate, for a server with --tls-client-ca")
    parser.add_argument("--tls-key", metavar="FILE", help="its key")
    parser.add_argument("--token-file", metavar="FILE", help="a token, for a server with --tokens-file; wants --tls-ca")
    add_more(parser)
    arguments = parser.parse_args()
    if (arguments.tls_cert is None) != (arguments.tls_key is None):
        parser.error("--tls-cert and --tls-key go together")
    if arguments.tls_ca is None and (arguments.tls_cert is not None or arguments.token_file is not None):
        parser.error("--tls-cert and --token-file want --tls-ca: without TLS anybody on the way could read a token")
    return arguments


def run(name, description, body, arguments=None):
    """Runs body(service, checks) with the server that --target names, and returns the exit code."""
    arguments = arguments or parse_arguments(description)
    checks = Checks()
    try:
        with connect(arguments) as channel:
            grpc.channel_ready_future(channel).result(timeout=20)
            service = Service(channel)
            info = service.GetServerInfo()
            print("gdn_server %s at %s, backend %s on %s" % (info.version, arguments.target, info.backend, info.device))
            body(service, checks)
    except grpc.FutureTimeoutError:
        print("no server answers at %s, or not to this certificate" % arguments.target, file=sys.stderr)
        return 1
    except grpc.RpcError as error:
        print("%s: %s" % (error.code().name, error.details()), file=sys.stderr)
        return 1
    print("\n%s %s" % (name, "ok" if checks.ok else "FAILED"))
    return 0 if checks.ok else 1


if __name__ == "__main__":
    sys.exit(run("first session", __doc__, first_session))
