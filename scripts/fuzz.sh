#!/usr/bin/env bash
# Builds the fuzz targets with clang's libFuzzer (the preset fuzz) and runs them, one on each processor, each from its corpus in
# tests/fuzz/corpus. Exits 0 only if none found a fault; ends with a line a target.
#
#   scripts/fuzz.sh [SECONDS [TARGET...]]   SECONDS of a processor in all (default 60), shared by the targets (default: all)
#   scripts/fuzz.sh --available             builds nothing; exits 0 where clang and libFuzzer are installed
#
# What a run adds to a corpus is kept in build/fuzz/corpus, and what ends a target in build/fuzz/finds: a fault's input goes to
# tests/fuzz/corpus/TARGET with its mend. Environment: JOBS compile jobs, and targets at a time; RSS_LIMIT_MB memory of a target
# (default 1024); SEED of the changes that are tried (default 0: others in every run).
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage() { sed -n '2,10s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }

compiler=clang++-15  # the preset's
available() {
  command -v "${compiler}" >/dev/null &&
    [[ -e "$("${compiler}" -print-resource-dir)/lib/linux/libclang_rt.fuzzer-$(uname -m).a" ]]
}

seconds=60
case "${1:-}" in
  -h | --help) usage; exit 0 ;;
  --available) available; exit ;;
  '') ;;
  *[!0-9]*) die "unknown argument '$1'; see --help" ;;
  *) seconds="$1"; shift ;;
esac

cd "${repo_root}"
available || die "needs ${compiler} and its libFuzzer; on Debian 12: apt-get install clang-15"
targets=("$@")
if (( ${#targets[@]} == 0 )); then
  for source in tests/fuzz/*_fuzz.cc; do targets+=("$(basename "${source}" _fuzz.cc)"); done
fi
(( seconds >= ${#targets[@]} )) || die "${seconds} s are too few for ${#targets[@]} targets"
for target in "${targets[@]}"; do
  [[ -e "tests/fuzz/${target}_fuzz.cc" ]] || die "no target '${target}': there is no tests/fuzz/${target}_fuzz.cc"
done
programs=("${targets[@]/#/fuzz_}")
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
note "building ${#targets[@]} fuzz targets"
cmake --preset fuzz >/dev/null
cmake --build --preset fuzz --parallel "$(default_jobs)" --target "${programs[@]}"

mkdir -p build/fuzz/finds build/fuzz/logs
each=$(( seconds / ${#targets[@]} ))
# fuzz TARGET: its exit status goes to a file beside its log, for several run at a time.
fuzz() {
  local target="$1" rc=0
  mkdir -p "build/fuzz/corpus/${target}"
  note "${target}: ${each} s"
  build/fuzz/bin/"fuzz_${target}" "-max_total_time=${each}" -timeout=10 -print_final_stats=1 "-seed=${SEED:-0}" \
    "-rss_limit_mb=${RSS_LIMIT_MB:-1024}" -dict=tests/fuzz/words.dict "-artifact_prefix=build/fuzz/finds/${target}-" \
    "build/fuzz/corpus/${target}" "tests/fuzz/corpus/${target}" >"build/fuzz/logs/${target}.txt" 2>&1 || rc=$?
  echo "${rc}" >"build/fuzz/logs/${target}.rc"
}
rm -f build/fuzz/logs/*.rc
for target in "${targets[@]}"; do
  while (( $(jobs -rp | wc -l) >= $(default_jobs) )); do wait -n || true; done
  fuzz "${target}" &
done
wait

found=()
summary=''
for target in "${targets[@]}"; do
  log="build/fuzz/logs/${target}.txt"
  rc="$(cat "build/fuzz/logs/${target}.rc" 2>/dev/null || echo 'no status')"
  if [[ "${rc}" != 0 ]]; then
    found+=("${target}")
    grep -v '^#' "${log}" | tail -n 60
  fi
  summary+="$(printf '%-18s %12s executions, %6s edges, %s' "${target}" \
    "$(sed -n 's/^stat::number_of_executed_units: *//p' "${log}" | tail -n 1)" \
    "$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "${log}" | tail -n 1)" \
    "$([[ "${rc}" == 0 ]] && echo 'no fault' || echo "FAULT (build/fuzz/finds, ${log})")")"$'\n'
done
printf '%s' "${summary}"
(( ${#found[@]} == 0 )) || die "faults in ${found[*]}"
echo "fuzz.sh: ${#targets[@]} targets, no fault"
