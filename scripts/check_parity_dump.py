#!/usr/bin/env python3
"""Checks what `gdn_parity --dump DIR` wrote, with NumPy in float64, from the formulas of the layer alone.

  scripts/check_parity_dump.py DIR

Every file holds one call of an operator: inputs, attributes, and the outputs of the backend under test. The operator is
computed anew here, in its plainest form (one token at a time where it has tokens), and compared by relative norm error
and by max|d|/max|reference| with the row's own tolerance. Prints a line a kind of operator. Exit status: 0 all agree;
1 some do not, a kind of operator is not known here, or there are no files; 2 usage.
"""

import json
import pathlib
import struct
import sys

import numpy as np

from parity_formulas import OPERATORS

DTYPES = {"F32": np.float32, "F64": np.float64, "I32": np.int32, "I64": np.int64}


def read_safetensors(path):
    """The metadata and the tensors of a safetensors file, as float64."""
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        raw = np.frombuffer(data[8 + length + begin : 8 + length + end], dtype=DTYPES[entry["dtype"]])
        tensors[name] = raw.reshape(entry["shape"]).astype(np.float64)
    return metadata, tensors


class Row:
    """A dumped call: row.x is input "x", row["chunk"] an attribute."""

    def __init__(self, metadata, tensors):
        self.metadata = metadata
        self.inputs = {name[3:]: value for name, value in tensors.items() if name.startswith("in.")}
        self.outputs = {name[4:]: value for name, value in tensors.items() if name.startswith("out.")}

    def __getattr__(self, name):
        try:
            return self.inputs[name]
        except KeyError:
            raise AttributeError(f"the file has no input {name}") from None

    def __getitem__(self, name):
        return self.metadata[name]

    def spans(self):
        """First and last token of every sequence."""
        cu = self.cu_seqlens.astype(int)
        return list(zip(cu[:-1], cu[1:]))

    def chunks(self):
        """(sequence, first, last) of every chunk; chunks begin anew with each sequence."""
        size = int(self["chunk_tokens"])
        return [
            (i, first, min(first + size, end))
            for i, (begin, end) in enumerate(self.spans())
            for first in range(begin, end, size)
        ]

    def decay_sums(self):
        """Stored as a pair of float32."""
        return self.g_sum + self.inputs["g_sum.low"]


def measure(actual, expected):
    """Relative norm error and max|d|/max|reference|; absolute against an all-zero reference."""
    if actual.shape != expected.shape or not np.isfinite(actual).all():
        return np.inf, np.inf
    if actual.size == 0:
        return 0.0, 0.0
    difference = actual - expected
    norm, largest = np.linalg.norm(expected), np.abs(expected).max()
    scale = (norm, largest) if largest > 0 else (1.0, 1.0)
    return np.linalg.norm(difference) / scale[0], np.abs(difference).max() / scale[1]


def check_file(path):
    """The kind of operator, its two errors and a complaint, empty where all agree."""
    metadata, tensors = read_safetensors(path)
    kind = metadata.get("op", "")
    name = f"{path.name} ({metadata.get('suite')} {metadata.get('test')}, {metadata.get('shape')})"
    if kind not in OPERATORS:
        return kind or "?", (np.inf, np.inf), f"{name}: no formula here for operator '{kind}'"
    row = Row(metadata, tensors)
    if not row.outputs:
        return kind, (np.inf, np.inf), f"{name}: no outputs"
    expected = OPERATORS[kind](row)
    tolerance = float(row["tolerance"])
    worst, complaints = (0.0, 0.0), []
    for output, actual in row.outputs.items():
        if output not in expected:
            complaints.append(f"{name}: no formula here for output '{output}'")
            continue
        errors = measure(actual, expected[output])
        worst = (max(worst[0], errors[0]), max(worst[1], errors[1]))
        if not max(errors) <= tolerance:
            complaints.append(f"{name}: {output} is off by {errors[0]:.3e} (norm), {errors[1]:.3e} (max)")
    return kind, worst, "\n".join(complaints)


def main(arguments):
    if len(arguments) != 1:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    files = sorted(pathlib.Path(arguments[0]).glob("*.safetensors"))
    if not files:
        print(f"check_parity_dump: no .safetensors files in {arguments[0]}", file=sys.stderr)
        return 1
    table, complaints = {}, []
    for path in files:
        kind, errors, complaint = check_file(path)
        count, norm, largest, failed = table.get(kind, (0, 0.0, 0.0, 0))
        table[kind] = (count + 1, max(norm, errors[0]), max(largest, errors[1]), failed + bool(complaint))
        if complaint:
            complaints.append(complaint)
    print(f"{'operator':<26}{'files':>6}{'rel. norm':>12}{'max|d|/|r|':>12}  result")
    for kind, (count, norm, largest, failed) in sorted(table.items()):
        print(f"{kind:<26}{count:>6}{norm:>12.3e}{largest:>12.3e}  {'FAIL' if failed else 'ok'}")
    for complaint in complaints:
        print(complaint, file=sys.stderr)
    print(f"{len(files)} files, {len(complaints)} do not agree")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
