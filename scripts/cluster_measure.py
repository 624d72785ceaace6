"""What HAProxy costs a call: Decode of 32 sessions through it, over the same call made at the node that answers it.

In turns, so that whatever else the machine does is in both. Requests are bytes that were made before.
"""

from __future__ import annotations

import time

import grpc
import numpy as np
from gdn_client.proto.gdn.v1 import step_pb2

SESSIONS, CALLS, WARM = 32, 600, 50


def measure(demo, client_of, inputs) -> None:
    client = client_of(demo.target)
    names = [f"measured{i}" for i in range(SESSIONS)]
    sessions = [client.session(model="demo", session_id=name, affinity="measured") for name in names]
    layer = sessions[0].layers[0]
    request = step_pb2.DecodeRequest(layer=layer, sessions=[f"sessions/{name}" for name in names])
    x = np.concatenate([inputs(demo.seed, name, layer, 0, 1) for name in names])
    request.hidden_states.hidden_states.CopyFrom(tensor_of(x))
    message = request.SerializeToString()
    metadata = (("x-gdn-affinity", "measured"),)

    def caller(target: str):
        channel = grpc.insecure_channel(target)
        return channel.unary_unary("/gdn.v1.GdnService/Decode", request_serializer=None, response_deserializer=None)

    through = caller(demo.target)
    through(message, metadata=metadata)
    holders = [
        name
        for name, process in demo.servers.items()
        if process.poll() is None
        and "sessions/measured0" in demo.cluster[name].run(
            [str(demo.bin / "gdnctl"), "sessions", "list", "--target=127.0.0.1:50061", "--json"]
        )
    ]
    direct = caller(f"{demo.cluster[holders[0]].address}:50061")
    took: dict[str, list[float]] = {"direct": [], "through": []}
    for turn in range(CALLS + WARM):
        for which, call in (("direct", direct), ("through", through)):
            begun = time.perf_counter()
            call(message, metadata=metadata)
            if turn >= WARM:
                took[which].append(time.perf_counter() - begun)
    p50 = {which: 1e6 * float(np.quantile(times, 0.5)) for which, times in took.items()}
    print(
        f"Decode of {SESSIONS} sessions, {CALLS} calls each: p50 through HAProxy over direct {p50['through'] / p50['direct']:.2f} "
        f"({p50['through']:.0f} and {p50['direct']:.0f} us)"
    )
    for session in sessions:
        session.delete()
    client.close()


def tensor_of(x: np.ndarray):
    from gdn_client.proto.gdn.v1 import tensor_pb2

    return tensor_pb2.Tensor(dtype=tensor_pb2.DTYPE_F32, shape=[x.shape[0], 1, x.shape[1]], data=x.tobytes())
