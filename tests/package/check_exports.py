#!/usr/bin/env python3
"""Fails where a client library exports what no installed header names, or has another soname than its version.

  check_exports.py LIBRARY SONAME HEADER_FOLDER...   by `nm -D` and `readelf -d`
  check_exports.py --self-test                       plants a fault of each kind, and sees each reported

A symbol is meant to be exported where it is protoc's (gdn::v1, google::rpc), or belongs to a name of namespace gdn that a header
declares.
"""

import os
import re
import subprocess
import sys

PREFIX = re.compile(r"^(?:typeinfo for|typeinfo name for|vtable for|guard variable for|VTT for|construction vtable for) ")
GENERATED = re.compile(r"^(?:descriptor_table_|TableStruct_)(?:gdn_2fv1_2f|google_2frpc_2f)|^(?:gdn::v1|google::rpc)::"
                       r"|^(?:gdn::v1|google::rpc)::\w+\* google::protobuf::Arena::CreateMaybeMessage<")
OURS = re.compile(r"^gdn::(\w+)(?:::|\(|\[|$)")


def faults(headers, symbols, soname, expected_soname):
    ours = 0
    for symbol in sorted(set(symbols)):
        name = PREFIX.sub("", symbol)
        if GENERATED.match(name):
            continue
        match = OURS.match(name)
        if match is None or not re.search(rf"\b{match.group(1)}\b", headers):
            yield f"exports {symbol}, which no installed header names"
        else:
            ours += 1
    if ours == 0:
        yield "exports nothing that the headers name"
    if soname != expected_soname:
        yield f"has the soname {soname}; expected {expected_soname}"


def self_test():
    headers = "class Client {};\nabsl::Status MakeError(int);"
    good = ["gdn::Client::Connect(int)", "vtable for gdn::v1::Session", "gdn::MakeError(int)", "descriptor_table_gdn_2fv1_2fstep_2eproto",
            "gdn::v1::Session* google::protobuf::Arena::CreateMaybeMessage<gdn::v1::Session>(google::protobuf::Arena*)"]
    assert not list(faults(headers, good, "libx.so.1", "libx.so.1"))
    for symbols, soname, words in ((good + ["gdn::ThreadPool::Run()"], "libx.so.1", "exports gdn::ThreadPool::Run()"),
                                   (good + ["XXH3_64bits"], "libx.so.1", "exports XXH3_64bits"),
                                   (good + ["absl::Mutex::Lock()"], "libx.so.1", "exports absl::Mutex::Lock()"),
                                   (good[1:2], "libx.so.1", "exports nothing"),
                                   (good, "libx.so.2", "expected libx.so.1")):
        found = list(faults(headers, symbols, soname, "libx.so.1"))
        assert len(found) == 1 and words in found[0], found
    print("check_exports.py: every planted fault is reported")


def text_of(folder):
    for path, _, names in os.walk(folder):
        for name in names:
            with open(os.path.join(path, name), encoding="utf-8") as file:
                yield file.read()


def main(library, expected_soname, folders):
    listing = subprocess.run(["nm", "-D", "-C", "--defined-only", library], check=True, capture_output=True, text=True).stdout
    dynamic = subprocess.run(["readelf", "-d", library], check=True, capture_output=True, text=True).stdout
    symbols = [line.split(maxsplit=2)[2] for line in listing.splitlines()]
    soname = re.search(r"soname: \[(.*)\]", dynamic)
    headers = "\n".join(text for folder in folders for text in text_of(folder))
    found = list(faults(headers, symbols, soname.group(1) if soname else "none", expected_soname))
    for fault in found:
        print(f"{library}: {fault}")
    print(f"{library}: {len(symbols)} symbols, {len(found)} faults")
    return 1 if found else 0


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        sys.exit(self_test())
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
