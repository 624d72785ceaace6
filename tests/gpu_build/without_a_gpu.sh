#!/usr/bin/env bash
# A GPU build on a machine without a usable GPU: every program says so in one clear line and exits with an error, doctor says
# what is missing, and --backend=auto serves on the CPU. Skipped (77) where there is a GPU.
set -euo pipefail
bin="$1"
work="$(mktemp -d)"
server=''
cleanup() {
  [[ -z "${server}" ]] || kill "${server}" 2>/dev/null || true
  rm -rf "${work}"
}
trap cleanup EXIT

if "${bin}/gdn_parity" --backend=gpu --suite=parity --test=scale >"${work}/probe" 2>&1; then
  echo "there is a GPU"
  exit 77
fi

fail() {
  echo "without_a_gpu: $*" >&2
  exit 1
}

# expect_one_line NAME COMMAND...: fails, and its error output is one line that sends the reader to doctor.
expect_one_line() {
  local name="$1" rc=0
  shift
  "$@" >"${work}/out" 2>"${work}/err" || rc=$?
  (( rc != 0 )) || fail "${name} exited 0 without a GPU"
  cat "${work}/out" "${work}/err" >"${work}/both"
  local errors
  errors="$(grep -c "gdnctl doctor" "${work}/both" || true)"
  [[ "${errors}" == 1 ]] || fail "${name} printed ${errors} lines about doctor: $(cat "${work}/both")"
  echo "${name}: $(grep "gdnctl doctor" "${work}/both")"
}
expect_one_line gdn_server "${bin}/gdn_server" --backend=gpu --listen=127.0.0.1:0
expect_one_line gdn_parity "${bin}/gdn_parity" --backend=gpu --suite=parity
expect_one_line gdn_bench "${bin}/gdn_bench" kernel --backend=gpu

rc=0
"${bin}/gdnctl" doctor >"${work}/doctor" 2>&1 || rc=$?
(( rc == 1 )) || fail "doctor exited ${rc}: $(cat "${work}/doctor")"
grep -q "gfx906" "${work}/doctor" || fail "doctor does not say that this build is for gfx906: $(cat "${work}/doctor")"
tail -n 1 "${work}/doctor"

"${bin}/gdn_server" --backend=auto --listen=127.0.0.1:0 --port-file="${work}/port" >"${work}/log" 2>&1 &
server=$!
for _ in $(seq 100); do
  [[ -s "${work}/port" ]] && break
  sleep 0.1
done
[[ -s "${work}/port" ]] || fail "--backend=auto did not start: $(cat "${work}/log")"
grep -q "computing on the CPU" "${work}/log" || fail "--backend=auto does not say why it is on the CPU: $(cat "${work}/log")"
"${bin}/gdnctl" info --target "127.0.0.1:$(cat "${work}/port")" | grep -q cpu || fail "info does not name the cpu backend"
kill "${server}"
wait "${server}" || fail "the server did not end well: $(cat "${work}/log")"
server=''
echo "without a GPU: each program says so, and auto serves on the CPU"
