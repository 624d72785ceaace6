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

# Where tests make their temporary files: $TMPDIR, or memory if there is plenty and programs in it may run, else /tmp. Many
# tests write durable states, and on a disk they mostly wait for fsync.
default_test_folder() {
  local memory=/dev/shm probe available_kb
  available_kb="$(awk '/^MemAvailable:/ {print $2}' /proc/meminfo 2>/dev/null || true)"
  if [[ -n "${TMPDIR:-}" ]]; then
    echo "${TMPDIR}"
  elif [[ "${available_kb:-0}" -ge 12000000 && "$(df -Pk "${memory}" 2>/dev/null | awk 'NR == 2 {print $4}')" -ge 6000000 ]] &&
    probe="$(mktemp "${memory}/gdn.XXXXXX" 2>/dev/null)"; then
    printf '#!/bin/sh\n' > "${probe}" && chmod +x "${probe}"
    if "${probe}" 2>/dev/null; then echo "${memory}"; else echo /tmp; fi
    rm -f "${probe}"
  else
    echo /tmp
  fi
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
