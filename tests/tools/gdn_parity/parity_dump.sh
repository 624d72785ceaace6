#!/usr/bin/env bash
# The independent oracle: scripts/check_parity_dump.py over what gdn_parity dumps, and whether it would see a fault.
#
#   parity_dump.sh GDN_PARITY BACKEND SUITE...
set -euo pipefail

(( $# >= 3 )) || { echo "usage: parity_dump.sh GDN_PARITY BACKEND SUITE..." >&2; exit 2; }
parity="$1"
backend="$2"
shift 2
check="$(dirname "${BASH_SOURCE[0]}")/../../../scripts/check_parity_dump.py"

# The system's Python has Debian's NumPy (scripts/setup.sh); another one first in PATH may not.
python=""
for candidate in python3 /usr/bin/python3; do
  if "${candidate}" -c 'import numpy' 2>/dev/null; then python="${candidate}"; break; fi
done
[[ -n "${python}" ]] || { echo "parity_dump: no python3 with NumPy; run scripts/setup.sh" >&2; exit 1; }

work="$(mktemp -d)"
trap 'rm -rf "${work}"' EXIT
for suite in "$@"; do
  mkdir -p "${work}/${suite}"
  if ! "${parity}" "--backend=${backend}" "--suite=${suite}" "--dump=${work}/${suite}" > "${work}/log"; then
    cat "${work}/log"
    exit 1
  fi
  tail -n 1 "${work}/log"
  "${python}" "${check}" "${work}/${suite}"
done

# Each of these must fail.
must_fail() {
  if "${python}" "${check}" "$1" > "${work}/log" 2>&1; then
    cat "${work}/log"
    echo "parity_dump: $2 was not seen" >&2
    exit 1
  fi
}
mkdir "${work}/empty"
must_fail "${work}/empty" "a folder without files"
plant() {  # plant FAULT OPERATOR SUITE: the fault, in one of a copy of that suite's files of that operator
  rm -rf "${work}/planted"
  mkdir "${work}/planted"
  cp "${work}/$3"/*-"$2".safetensors "${work}/planted/"
  "${python}" - "$1" "${work}/planted" <<'PYTHON'
import json, pathlib, struct, sys
fault, path = sys.argv[1], sorted(pathlib.Path(sys.argv[2]).glob("*"))[0]
data = bytearray(path.read_bytes())
(length,) = struct.unpack_from("<Q", data)
header = json.loads(data[8 : 8 + length])
if fault == "operator":
    header["__metadata__"]["op"] = "no_such_operator"
    text = json.dumps(header).encode()
    data = struct.pack("<Q", len(text)) + text + data[8 + length :]
else:
    name = next(n for n in header if n.startswith("out.") and header[n]["data_offsets"][1] > 0)
    at = 8 + length + header[name]["data_offsets"][0]
    (value,) = struct.unpack_from("<f", data, at)
    struct.pack_into("<f", data, at, float("nan") if fault == "nan" else value + 1.0)
path.write_bytes(data)
PYTHON
}
plant operator delta_rule "$1"
must_fail "${work}/planted" "an operator without a formula"
plant value delta_rule "$1"
must_fail "${work}/planted" "a wrong value"
plant nan delta_rule "$1"
must_fail "${work}/planted" "a NaN"
echo "parity_dump: ok"
