#!/usr/bin/env bash
# What `scripts/test.sh --full` does beside the tests: lints deploy/, has haproxy and promtool judge what is theirs, tests libgdn's torch
# operators with PyPI's torch, builds both container images with buildah and prints their sizes, replays the golden recordings inside
# the CPU one, alone and behind HAProxy over Redis, and sees the gfx906 one explain that there is no card; installs the Debian
# packages in a bare root and starts the server there. As root, since images are built without any container runtime (chroot
# isolation, plain folders as storage).
#
#   scripts/full_checks.sh [--base IMAGE] [--keep]
#
#   --base IMAGE  where the images begin (default: debian:bookworm-slim; where no registry is reached, a minimal Debian 12 made
#                 by debootstrap, kept as localhost/debian:bookworm)
#   --keep        leave the images, and the base, in build/images
#
# Environment: JOBS compile jobs, CCACHE_DIR where compiled objects are kept, PULL_SECONDS how long a registry is waited for.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

public_base=docker.io/library/debian:bookworm-slim
own_base=localhost/debian:bookworm
tolerance=1e-5

usage() { sed -n '2,14s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }

base='' keep=false
while (( $# > 0 )); do
  case "$1" in
    --base) [[ $# -ge 2 ]] || die "--base needs an image"; base="$2"; shift ;;
    --base=*) base="${1#*=}" ;;
    --keep) keep=true ;;
    -h | --help) usage; exit 0 ;;
    *) die "unknown argument '$1'; see --help" ;;
  esac
  shift
done

cd "${repo_root}"
(( EUID == 0 )) || die "needs root, for chroot and debootstrap"
SECONDS=0

note "lint of deploy/"
scripts/lint.sh --deploy  # kubernetes-validate and docker-compose among it
scripts/setup.sh --checks
scripts/setup.sh --images

export BUILDAH_ISOLATION=chroot
storage_driver="${STORAGE_DRIVER:-vfs}"  # works on every file system
images="${repo_root}/build/images"
# The compiler's cache of this machine: the same compiler and, by the presets' CCACHE_BASEDIR, the same paths.
ccache_dir="${CCACHE_DIR:-$(ccache --get-config cache_dir)}"
work="$(mktemp -d)"
mkdir -p "${images}" "${ccache_dir}"

cleanup() {
  rm -rf "${work}"
  "${keep}" || rm -rf "${images}"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Debian's containers-common may be left out; images made here are this script's own, so any is accepted.
echo '{"default": [{"type": "insecureAcceptAnything"}]}' >"${work}/policy.json"
# buildah COMMAND...: with a storage of its own, so that nothing of the machine's is touched.
buildah_here() {
  local command="$1" policy=()
  shift
  case "${command}" in pull | from | build | commit) policy=(--signature-policy "${work}/policy.json") ;; esac
  buildah --root "${images}/root" --runroot "${images}/run" --storage-driver "${storage_driver}" "${command}" "${policy[@]}" "$@"
}

# Where this machine's own apt takes a release of Debian from.
site_of() {
  # shellcheck disable=SC2016  # apt's own variables
  apt-get indextargets --format '$(CODENAME) $(SITE)' | awk -v release="$1" '$1 == release && !seen++ {print $2}'
}

# As the official slim image: the minimal system without documents, and the three package sources.
make_base() {
  note "making ${own_base} with debootstrap"
  local container mount
  debootstrap --variant=minbase bookworm "${work}/base" "$(site_of bookworm)" >"${work}/debootstrap.log" ||
    { tail -n 20 "${work}/debootstrap.log" >&2; die "debootstrap failed"; }
  local release site
  for release in bookworm bookworm-updates bookworm-security; do
    site="$(site_of "${release}")"
    [[ -z "${site}" ]] || printf 'deb %s %s main\n' "${site}" "${release}" >>"${work}/base/etc/apt/sources.list.new"
  done
  mv "${work}/base/etc/apt/sources.list.new" "${work}/base/etc/apt/sources.list"
  cp deploy/dpkg-excludes "${work}/base/etc/dpkg/dpkg.cfg.d/gdn-excludes"
  find "${work}/base/usr/share/doc" -mindepth 1 \( -type f -o -type l \) ! -name copyright -delete
  find "${work}/base/usr/share/doc" -mindepth 1 -type d -empty -delete
  rm -rf "${work}/base/usr/share/"{man,info,groff,lintian,linda,bug,locale}/*
  rm -rf "${work}/base/var/cache/apt/archives/"*.deb "${work}/base/var/lib/apt/lists/"*
  container="$(buildah_here from scratch)"
  mount="$(buildah_here mount "${container}")"
  cp -a "${work}/base/." "${mount}/"
  buildah_here umount "${container}" >/dev/null
  buildah_here config --cmd /bin/bash "${container}"
  buildah_here commit --quiet --rm "${container}" "${own_base}" >/dev/null
  rm -rf "${work}/base"
}

choose_base() {
  [[ -z "${base}" ]] || return 0
  if timeout "${PULL_SECONDS:-60}" buildah --root "${images}/root" --runroot "${images}/run" --storage-driver "${storage_driver}" \
      pull --quiet --signature-policy "${work}/policy.json" "${public_base}" >/dev/null 2>"${work}/pull.log"; then
    base="${public_base}"
    return
  fi
  note "no ${public_base}: $(tail -n 1 "${work}/pull.log" | cut -c -200)"
  buildah_here inspect --type image "${own_base}" >/dev/null 2>&1 || make_base
  base="${own_base}"
}

build_image() {  # build_image TARGET
  local target="$1" begin=${SECONDS} revision
  revision="$(git rev-parse HEAD 2>/dev/null || echo unknown)"
  note "building the image ${target} from ${base}"
  # --format docker keeps the HEALTHCHECK; one layer a stage is enough. The volume lets the two builds share their objects.
  buildah_here build --format docker --layers=false --target "${target}" --file deploy/Dockerfile --tag "localhost/gdn-service:${target}" \
    --build-arg "BASE=${base}" --build-arg "ROCM_BASE=${base}" --build-arg "ROCM_RUNTIME_BASE=${base}" \
    --build-arg "JOBS=$(default_jobs)" \
    --build-arg "REVISION=${revision}" --build-arg "CREATED=$(date -u +%FT%TZ)" \
    --volume "${ccache_dir}:/ccache:rw" . >"${work}/build-${target}.log" 2>&1 ||
    { tail -n 60 "${work}/build-${target}.log" >&2; die "building the image ${target} failed"; }
  note "image ${target}: $(( SECONDS - begin )) s"
}

check_metadata() {  # check_metadata TARGET
  buildah_here inspect --type image "localhost/gdn-service:$1" >"${work}/inspect.json"
  python3 - "${work}/inspect.json" "$1" <<'PYTHON'
import json, sys
config = json.load(open(sys.argv[1]))["Docker"]["config"]
assert config["User"] == "10061:10061", config["User"]
assert config["Entrypoint"] == ["gdn-entrypoint"], config["Entrypoint"]
assert config["Healthcheck"]["Test"][:4] == ["CMD", "gdnctl", "health", "--target=unix:/tmp/gdn-health.sock"], config["Healthcheck"]
labels = config["Labels"]
for label in ("title", "description", "licenses", "version", "revision", "created"):
    assert labels.get("org.opencontainers.image." + label), label
print(f"image {sys.argv[2]}: user, entrypoint, health check and labels are there")
PYTHON
}

# What haproxy and promtool say of the files that are theirs; the tests of tests/deploy look at what these cannot know.
judged_by_their_programs() {
  note "haproxy -c, without nodes and with three"
  haproxy -c -f deploy/haproxy/haproxy.cfg
  GDN_NODE_1=127.0.0.1:1 GDN_NODE_2=127.0.0.2:1 GDN_NODE_3=127.0.0.3:1 haproxy -c -f deploy/haproxy/haproxy.cfg
  note "promtool"
  promtool check config deploy/prometheus/prometheus.yml
  promtool check rules deploy/prometheus/alerts.yml
  promtool test rules deploy/prometheus/alerts_test.yml
}

# Its layers as they are stored, and as they would be sent; the packages by the image's own bill of materials.
print_size() {  # print_size TARGET
  local container mount files packed packages
  container="$(buildah_here from "localhost/gdn-service:$1")"
  mount="$(buildah_here mount "${container}")"
  python3 scripts/sbom.py --check "${mount}/usr/share/doc/gdn-service/sbom.spdx.json" --root "${mount}" >"${work}/sbom-$1.txt" ||
    { cat "${work}/sbom-$1.txt"; die "the bill of materials of the image $1 is wrong"; }
  [[ ! -e "${mount}/usr/bin/g++" && ! -e "${mount}/usr/bin/cc" ]] || die "the image $1 has a compiler"
  files="$(du -sm --apparent-size "${mount}" | cut -f1)"
  packed="$(tar -C "${mount}" -cf - . | gzip -1 | wc -c)"
  packages="$(find "${mount}/var/lib/dpkg/info" -name '*.list' | wc -l)"
  echo "image $1: ${files} MB, $(( packed / 1000000 )) MB packed, ${packages} packages; $(tail -n 1 "${work}/sbom-$1.txt")"
  buildah_here umount "${container}" >/dev/null
  buildah_here rm "${container}" >/dev/null
}

replay_in_cpu_image() {
  local folders folder models=() container rc=0
  folders=(tests/golden/qwen3_*)
  for folder in "${folders[@]}"; do models+=("--model=${folder##*/}=/models/${folder##*/}"); done
  note "replaying ${#folders[@]} recordings in the CPU image"
  cat >"${work}/replay.sh" <<'SCRIPT'
#!/bin/sh
# replay.sh TOLERANCE MODEL_FLAG...: serves and replays, inside the image.
set -eu
tolerance="$1"
shift
[ "$(id -u)" = 10061 ] || { echo "runs as $(id -u), not as 10061"; exit 1; }
gdn_server --version
! gdn_server --version | grep -q "commit unknown" || { echo "the programs name no commit"; exit 1; }
gdn-entrypoint "$@" --listen=127.0.0.1:0 --port-file=/tmp/port >/tmp/log 2>&1 &
server=$!
tries=0
until [ -s /tmp/port ]; do
  tries=$((tries + 1))
  if [ "$tries" -gt 600 ] || ! kill -0 "$server" 2>/dev/null; then cat /tmp/log; echo "the server did not come up"; exit 1; fi
  sleep 0.1
done
target="127.0.0.1:$(cat /tmp/port)"
gdnctl health --target="$target" --timeout=5s
gdnctl health --target=unix:/tmp/gdn-health.sock --timeout=4s  # as the image's HEALTHCHECK does
gdnctl info --target="$target"
for flag in "$@"; do
  name="${flag#--model=}"
  name="${name%%=*}"
  gdnctl replay --target="$target" --model="$name" --io="/models/$name/io.safetensors" --tolerance="$tolerance"
done
kill -TERM "$server"
wait "$server"
echo "replay in the image: ok"
SCRIPT
  container="$(buildah_here from localhost/gdn-service:cpu)"
  buildah_here run --volume "${repo_root}/tests/golden:/models:ro" --volume "${work}/replay.sh:/replay.sh:ro" "${container}" -- \
    sh /replay.sh "${tolerance}" "${models[@]}" || rc=$?
  buildah_here rm "${container}" >/dev/null
  (( rc == 0 )) || die "the replay in the CPU image failed"
}

# As compose.fleet.yaml starts it: Redis by deploy/redis/start.sh, HAProxy by its configuration, and the image between them.
replay_behind_haproxy() {
  local container rc=0
  note "replaying recordings in the CPU image, behind HAProxy, over Redis"
  container="$(buildah_here from localhost/gdn-service:cpu)"
  mkdir -p "${work}/fleet"
  chmod 755 "${work}"  # the user in the image reads what is in it
  python3 tests/deploy/check_image_in_fleet.py "${repo_root}" "${work}/fleet/shared" /models \
    buildah --root "${images}/root" --runroot "${images}/run" --storage-driver "${storage_driver}" run \
    --volume "${repo_root}/tests/golden:/models:ro" --volume "${work}/fleet/shared:/fleet:ro" "${container}" -- || rc=$?
  buildah_here rm "${container}" >/dev/null
  (( rc == 0 )) || die "the replay behind HAProxy failed"
}

# The gfx906 image ends in doctor's list, and the server alone in one line that names doctor.
gfx906_image_without_a_card() {
  if [[ -e /dev/kfd ]]; then
    note "this machine has /dev/kfd: leaving out the gfx906 image's behaviour without a card"
    return
  fi
  note "starting the gfx906 image without a card"
  local container rc=0
  container="$(buildah_here from localhost/gdn-service:gfx906)"
  buildah_here run "${container}" -- gdn-entrypoint >"${work}/doctor.txt" 2>&1 || rc=$?
  cat "${work}/doctor.txt"
  # `buildah run` adds a line of its own about the exit code.
  if (( rc == 0 )) || ! grep -q '^doctor: NOT usable: .*/dev/kfd' "${work}/doctor.txt"; then
    die "the gfx906 image ended with ${rc}, and not with doctor's message"
  fi
  grep -q '^ok .* HIP runtime  libamdhip64' "${work}/doctor.txt" || die "the gfx906 image lacks the HIP runtime"
  grep -q '^ok .* build .* kernels for .*gfx906' "${work}/doctor.txt" || die "the gfx906 image has no kernels for gfx906"
  rc=0
  buildah_here run --env GDN_SKIP_DOCTOR=1 "${container}" -- gdn-entrypoint >"${work}/server.txt" 2>&1 || rc=$?
  cat "${work}/server.txt"
  if (( rc == 0 )) || ! grep -q 'gdnctl doctor' "${work}/server.txt"; then
    die "without doctor, the server of the gfx906 image does not say what to do"
  fi
  buildah_here rm "${container}" >/dev/null
}

# apt, the server by its unit's command line, gdnctl, an upgrade, a purge; and what systemd-analyze says.
packages_in_a_bare_root() {
  note "installing the Debian packages in ${base}"
  local container rc=0
  scripts/package.sh --out "${work}/packages" >"${work}/package.log" 2>&1 ||
    { tail -n 40 "${work}/package.log" >&2; die "making the packages failed"; }
  container="$(buildah_here from "${base}")"
  buildah_here run --volume "${work}/packages:/packages:ro" --volume "${repo_root}/tests/package/check_in_bare_root.sh:/check.sh:ro" \
    "${container}" -- sh /check.sh /packages || rc=$?
  buildah_here rm "${container}" >/dev/null
  (( rc == 0 )) || die "the packages failed in a bare root"
}

# PyPI's torch is gigabytes, so these are not among the tests of every run.
torch_operators() {
  note "testing the torch operators of capi/python"
  local rc=0
  scripts/python_inprocess.sh build/cpu --torch || rc=$?
  case "${rc}" in
    0) ;;
    77) note "left out: the torch operators" ;;
    *) die "the tests of the torch operators failed" ;;
  esac
}

judged_by_their_programs
torch_operators
choose_base
packages_in_a_bare_root
build_image cpu
check_metadata cpu
print_size cpu
replay_in_cpu_image
replay_behind_haproxy
build_image gfx906
check_metadata gfx906
print_size gfx906
gfx906_image_without_a_card
echo "full_checks.sh: passed in ${SECONDS} s"
