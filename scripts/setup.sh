#!/usr/bin/env bash
# Installs what the build needs on Debian 12, by apt. Safe to run again: it does nothing where everything is there.
#
#   scripts/setup.sh           what building, testing and the demo need
#   scripts/setup.sh --hip     also the HIP compiler and runtime, for the preset hip-gfx906
#   scripts/setup.sh --images  also what building the container images needs
#   scripts/setup.sh --lint    also what scripts/lint.sh needs
#   scripts/setup.sh --checks  also what some tests are skipped without: promtool, shells and a browser (95 MB to fetch, 350 MB)
#   scripts/setup.sh --cluster also what scripts/cluster_demo.sh needs
#   scripts/setup.sh --check   installs nothing; prints what is missing and exits 1 where something is
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

build_packages=(
  # Tools.
  ccache cmake dpkg-dev file g++ git ninja-build pkg-config python3
  # gRPC and protobuf; the last four are named by gRPC's CMake configuration.
  libgrpc++-dev libgrpc-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc
  libabsl-dev libc-ares-dev libre2-dev libssl-dev zlib1g-dev
  # Libraries.
  libdnnl-dev libhiredis-dev libhwy-dev libmicrohttpd-dev libspdlog-dev libxxhash-dev libyaml-cpp-dev
  nlohmann-json3-dev prometheus-cpp-dev
  # Tests and benchmarks.
  curl fiu-utils haproxy libbenchmark-dev libboost-context-dev libfiu-dev libgmock-dev libgtest-dev openssl psmisc python3-numpy
  python3-dev python3-venv python3-yaml redis-sentinel redis-server
)
hip_packages=(hipcc libamdhip64-dev rocm-device-libs)
image_packages=(buildah debootstrap)
# promtool reads /metrics, the browser /statusz; stunnel is between the server and Redis; systemd-analyze judges the unit; fish and
# zsh complete gdnctl's commands.
check_packages=(chromium-headless-shell fish prometheus stunnel4 systemd zsh)
cluster_packages=(curl haproxy iproute2 redis-server)
lint_packages=(ca-certificates clang-format clang-tidy docker-compose libomp-dev shellcheck)

usage() { sed -n '2,10s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }

wanted=("${build_packages[@]}")
check_only=false
for argument in "$@"; do
  case "${argument}" in
    --hip) wanted+=("${hip_packages[@]}") ;;
    --images) wanted+=("${image_packages[@]}") ;;
    --lint) wanted+=("${lint_packages[@]}") ;;
    --cluster) wanted+=("${cluster_packages[@]}") ;;
    --checks) wanted+=("${check_packages[@]}") ;;
    --check) check_only=true ;;
    -h | --help) usage; exit 0 ;;
    *) die "unknown argument '${argument}'; see --help" ;;
  esac
done

# Sets `missing` to the wanted packages that are not installed.
find_missing() {
  missing=()
  local package
  for package in "${wanted[@]}"; do
    [[ "$(dpkg-query -W -f='${db:Status-Status}' "${package}" 2>/dev/null)" == installed ]] || missing+=("${package}")
  done
}

command -v dpkg-query >/dev/null || die "needs a Debian system (12, bookworm); here, install the equivalents of: ${wanted[*]}"
find_missing
if (( ${#missing[@]} == 0 )); then
  echo "setup: all ${#wanted[@]} packages are installed"
  exit 0
fi
if "${check_only}"; then
  printf 'setup: missing: %s\n' "${missing[*]}"
  exit 1
fi

as_root=()
if (( EUID != 0 )); then
  command -v sudo >/dev/null || die "not root, and there is no sudo; as root, run: apt-get install ${missing[*]}"
  as_root=(sudo)
fi

# Mirrors and package locks fail for moments; three tries tell that from a real error.
try_apt() {
  local attempt
  for attempt in 1 2 3; do
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120 -qq "$@" && return 0
    echo "setup: 'apt-get $1' failed (try ${attempt} of 3)" >&2
    sleep $(( attempt * 5 ))
  done
  return 1
}

# Package lists are fetched only where they do not know a package that is wanted, or what they know is gone from the mirror.
# (apt-cache show is content with one package of all, so apt-get is asked.)
lists_are_enough() { apt-get -qq --simulate -o Debug::NoLocking=1 install --no-install-recommends "${missing[@]}" >/dev/null 2>&1; }
install_missing() { try_apt install -y --no-install-recommends "${missing[@]}"; }

note "installing ${#missing[@]} of ${#wanted[@]} packages: ${missing[*]}"
updated=false
if ! lists_are_enough; then
  try_apt update || die "apt-get update failed; check the network and /etc/apt/sources.list"
  updated=true
  lists_are_enough || die "apt knows not all of: ${missing[*]}; is this Debian 12 with the 'main' component?"
fi
if ! install_missing; then
  "${updated}" && die "apt-get install failed; its messages are above"
  { try_apt update && install_missing; } || die "apt-get install failed; its messages are above"
fi

find_missing
(( ${#missing[@]} == 0 )) || die "apt-get succeeded, yet these are not installed: ${missing[*]}"
echo "setup: all ${#wanted[@]} packages are installed"
