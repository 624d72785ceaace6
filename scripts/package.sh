#!/usr/bin/env bash
# Makes the Debian packages: builds what is in them, and packs it. docs/how-to/install.md tells what to do with them.
#
#   scripts/package.sh [--preset PRESET] [--out DIR]
#
#   --preset PRESET  cpu (default) or hip-gfx906
#   --out DIR        where the packages go (default: build/PRESET/packages)
#
# Environment: JOBS compile jobs.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage() { sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }

preset=cpu out=''
while (( $# > 0 )); do
  case "$1" in
    --preset) [[ $# -ge 2 ]] || die "--preset needs a name"; preset="$2"; shift ;;
    --preset=*) preset="${1#*=}" ;;
    --out) [[ $# -ge 2 ]] || die "--out needs a folder"; out="$2"; shift ;;
    --out=*) out="${1#*=}" ;;
    -h | --help) usage; exit 0 ;;
    *) die "unknown argument '$1'; see --help" ;;
  esac
  shift
done
[[ -z "${out}" ]] || { mkdir -p "${out}"; out="$(cd "${out}" && pwd)"; }

cd "${repo_root}"
for tool in dpkg-shlibdeps file; do
  command -v "${tool}" >/dev/null || die "needs ${tool}: run scripts/setup.sh"
done
cmake --preset "${preset}"
cmake --build --preset "${preset}" --parallel "$(default_jobs)" --target packaged
out="${out:-${repo_root}/build/${preset}/packages}"
work="$(mktemp -d)"
trap 'rm -rf "${work}"' EXIT
cpack --config "build/${preset}/CPackConfig.cmake" -B "${work}"
mkdir -p "${out}"
mv "${work}"/*.deb "${out}/"
note "packages in ${out}:"
ls -l "${out}"/*.deb
