#!/usr/bin/env bash
# Serves golden checkpoints on a free loopback port and replays each one's recording through gdnctl.
# Usage: replay_golden.sh GDN_SERVER GDNCTL CHECKPOINT...   (folders with config.json, model.safetensors, io.safetensors; X.gguf)
set -euo pipefail

if (($# < 3)); then
  sed -n '2,3s/^# //p' "$0" >&2
  exit 2
fi
server=$1 gdnctl=$2
shift 2

work=$(mktemp -d)
pid=
finish() {
  if [[ -n $pid ]]; then
    kill "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
  fi
  rm -rf "$work"
}
trap finish EXIT

name_of() {
  if [[ $1 == *.gguf ]]; then basename "$(dirname "$1")-$(basename "$1" .gguf)"; else basename "$1"; fi
}
recording_of() {
  if [[ $1 == *.gguf ]]; then echo "${1%.gguf}.io.safetensors"; else echo "$1/io.safetensors"; fi
}
models=()
for dir in "$@"; do models+=("--model=$(name_of "$dir")=$dir"); done
"$server" "${models[@]}" --backend=cpu --listen=127.0.0.1:0 --port-file="$work/port" >"$work/log" 2>&1 &
pid=$!
for _ in {1..600}; do
  [[ -s $work/port ]] && break
  kill -0 "$pid" 2>/dev/null || break
  sleep 0.1
done
if [[ ! -s $work/port ]]; then
  echo "the server did not come up:" >&2
  cat "$work/log" >&2
  exit 1
fi
target=127.0.0.1:$(<"$work/port")

failed=0
[[ $("$gdnctl" health --target="$target" gdn.v1.GdnService) == SERVING ]] || { echo "not serving" >&2; failed=1; }
for dir in "$@"; do
  "$gdnctl" replay --target="$target" --model="$(name_of "$dir")" --io="$(recording_of "$dir")" --tolerance=1e-5 || failed=1
done

# A replay leaves no session behind.
if "$gdnctl" sessions --target="$target" | grep 'sessions/'; then
  echo "sessions were left on the server" >&2
  failed=1
fi
# It must be able to fail: no server is exact.
if "$gdnctl" replay --target="$target" --model="$(name_of "$1")" --io="$(recording_of "$1")" --tolerance=1e-12 >"$work/strict"; then
  echo "a replay passed at a tolerance that nothing meets" >&2
  failed=1
fi
tail -n 1 "$work/strict" | grep -q '^replay FAILED: ' || { echo "no verdict line" >&2; failed=1; }

# A drained server ends by itself, and well.
kill -TERM "$pid"
wait "$pid" || { echo "the server ended with $? on SIGTERM" >&2; cat "$work/log" >&2; failed=1; }
pid=
exit "$failed"
