# shellcheck shell=bash disable=SC2034
# Shared by the scripts beside it; sourced, not run.

repo_root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

die() {
  echo "${0##*/}: $*" >&2
  exit 1
}

note() { echo "== $*"; }

# Tests at a time: most wait, but some use every processor for seconds.
default_test_jobs() {
  local half=$(( $(nproc) / 2 ))
  (( half >= 3 )) || half=3
  (( half <= 6 )) || half=6
  echo "${TEST_JOBS:-${half}}"
}

# Compile jobs: $JOBS, or one a processor, but no more than the memory carries (the gRPC sources take about 1.5 GB each).
default_jobs() {
  local processors memory_kb fitting
  processors="$(nproc)"
  memory_kb="$(awk '/^MemAvailable:/ {print $2}' /proc/meminfo 2>/dev/null || true)"
  fitting=$(( ${memory_kb:-16000000} / 1500000 ))
  (( fitting >= 1 )) || fitting=1
  echo "${JOBS:-$(( processors < fitting ? processors : fitting ))}"
}
