#!/usr/bin/env bash
# From a clean clone to Gated DeltaNet layers served over gRPC: installs what is missing, builds the server and gdnctl, serves a Qwen3-Next
# and a Qwen3.5 checkpoint, and compares every layer's output and state with Hugging Face transformers'.
#
#   scripts/demo.sh
#
# The last line is `demo ok: worst relative error X over N layers`; anything else is a failure and a non-zero exit. Environment: JOBS
# compile jobs (default: by processors and memory).
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

case "${1:-}" in
  "") ;;
  -h | --help) sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
  *) die "unknown argument '$1'; it takes none" ;;
esac

# name=checkpoint folder
models=(next=qwen3_next_5 qwen35=qwen3_5_5)
tolerance=1e-5
ready_seconds=60
drain_seconds=30

cd "${repo_root}"
scripts/setup.sh

note "building gdn_server and gdnctl (preset cpu, $(default_jobs) jobs)"
cmake --preset cpu >/dev/null
cmake --build --preset cpu --parallel "$(default_jobs)" --target gdn_server gdnctl
bin="${repo_root}/build/cpu/bin"

work="$(mktemp -d)"
server_pid=

stop_server() {  # SIGTERM, then the drain's time, then SIGKILL; sets server_rc
  server_rc=0
  [[ -n "${server_pid}" ]] || return 0
  kill -TERM "${server_pid}" 2>/dev/null || true
  local waited=0
  while kill -0 "${server_pid}" 2>/dev/null && (( waited < drain_seconds * 10 )); do
    sleep 0.1
    waited=$(( waited + 1 ))
  done
  kill -KILL "${server_pid}" 2>/dev/null || true
  wait "${server_pid}" || server_rc=$?
  server_pid=
}

cleanup() {
  stop_server
  rm -rf "${work}"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

fail() {
  if [[ -s "${work}/server.log" ]]; then
    echo "--- the server's log, last 40 lines ---" >&2
    tail -n 40 "${work}/server.log" >&2
  fi
  die "$@"
}

note "starting gdn_server"
model_flags=()
for model in "${models[@]}"; do
  model_flags+=(--model "${model%%=*}=tests/golden/${model#*=}")
done
"${bin}/gdn_server" --listen 127.0.0.1:0 --port-file "${work}/port" --backend=cpu "${model_flags[@]}" >"${work}/server.log" 2>&1 &
server_pid=$!

waited=0
until [[ -s "${work}/port" ]]; do
  kill -0 "${server_pid}" 2>/dev/null || fail "gdn_server ended before it was ready"
  (( waited < ready_seconds * 10 )) || fail "gdn_server was not ready after ${ready_seconds} s"
  sleep 0.1
  waited=$(( waited + 1 ))
done
target="127.0.0.1:$(<"${work}/port")"
echo "listening on ${target}"

note "gdnctl info"
"${bin}/gdnctl" info --target "${target}" || fail "gdnctl info failed"
note "gdnctl models"
"${bin}/gdnctl" models --target "${target}" || fail "gdnctl models failed"

worst=0
layers=0
for model in "${models[@]}"; do
  name="${model%%=*}"
  io="tests/golden/${model#*=}/io.safetensors"
  note "gdnctl replay: ${name} against ${io}"
  "${bin}/gdnctl" replay --target "${target}" --model "${name}" --io "${io}" --tolerance "${tolerance}" | tee "${work}/replay" ||
    fail "gdnctl replay failed for model ${name}"
  summary="$(tail -n 1 "${work}/replay")"
  [[ "${summary}" =~ ^replay\ ok:\ worst\ relative\ error\ ([0-9.eE+-]+)\ over\ ([0-9]+)\ layers$ ]] ||
    fail "gdnctl replay ended with '${summary}', expected 'replay ok: worst relative error X over N layers'"
  error="${BASH_REMATCH[1]}"
  layers=$(( layers + BASH_REMATCH[2] ))
  worst="$(awk -v a="${worst}" -v b="${error}" 'BEGIN { print (b + 0 > a + 0) ? b : a }')"
done

note "stopping gdn_server"
stop_server
(( server_rc == 0 )) || fail "gdn_server did not drain cleanly (exit ${server_rc})"
(( layers > 0 )) || fail "no layer was replayed"

echo "demo ok: worst relative error ${worst} over ${layers} layers"
