"""Safetensors files of float32 tensors."""

import json
import struct

import numpy as np


def read(path):
    """The metadata, and the tensors by name."""
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        tensors[name] = np.frombuffer(data[begin:end], np.float32).reshape(entry["shape"])
    return metadata, tensors


def write(path, tensors):
    header, parts, end = {}, [], 0
    for name, tensor in tensors.items():
        parts.append(np.ascontiguousarray(tensor, np.float32).tobytes())
        offsets = [end, end + len(parts[-1])]
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": offsets}
        end = offsets[1]
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))
