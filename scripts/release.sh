#!/usr/bin/env bash
# Makes everything that a release offers for download, in one folder, and prints what an upload would take. It uploads nothing.
#
#   scripts/release.sh [--out DIR] [--preset PRESET]... [--no-deb] [--no-python] [--no-image] [--allow-changed]
#   scripts/release.sh --check-versions
#
#   --out DIR         the folder, new or empty (default: build/release/VERSION)
#   --preset PRESET   cpu or hip-gfx906, for Debian packages and images; repeat it for both (default: both)
#   --no-deb          no Debian packages
#   --no-python       no Python wheels and source archives, which need python3-venv and a package index
#   --no-image        no container images; without docker, podman and buildah there are none either
#   --allow-changed   the working tree may differ from its commit; the programs then print "-changed" behind the commit
#   --check-versions  only check that all files which state the version agree
#
# The folder then has *.deb (those for a GPU end in _gfx906.deb), *.whl and *.tar.gz, image archives (*.oci.tar, OCI's layout) with their
# bills of materials, a bill of materials of the release (SPDX 2.3, by scripts/sbom.py), and SHA256SUMS.
# Environment: JOBS compile jobs.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage() { sed -n '2,17s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }

out='' presets=() deb=true python=true image=true allow_changed=false check_only=false
while (( $# > 0 )); do
  case "$1" in
    --out) [[ $# -ge 2 ]] || die "--out needs a folder"; out="$2"; shift ;;
    --out=*) out="${1#*=}" ;;
    --preset) [[ $# -ge 2 ]] || die "--preset needs a name"; presets+=("$2"); shift ;;
    --preset=*) presets+=("${1#*=}") ;;
    --no-deb) deb=false ;;
    --no-python) python=false ;;
    --no-image) image=false ;;
    --allow-changed) allow_changed=true ;;
    --check-versions) check_only=true ;;
    -h | --help) usage; exit 0 ;;
    *) die "unknown argument '$1'; see --help" ;;
  esac
  shift
done
(( ${#presets[@]} > 0 )) || presets=(cpu hip-gfx906)
for preset in "${presets[@]}"; do
  case "${preset}" in cpu | hip-gfx906) ;; *) die "unknown preset '${preset}'; expected cpu or hip-gfx906" ;; esac
done

cd "${repo_root}"

# ---- Versions and tree

# Lines "FILE VERSION", one for each place that states the version.
stated_versions() {
  echo "CMakeLists.txt $(sed -n 's/^project(.* VERSION \([^ )]*\).*/\1/p' CMakeLists.txt)"
  echo "client/python/src/gdn_client/version.py $(sed -n 's/^__version__ = "\(.*\)"/\1/p' client/python/src/gdn_client/version.py)"
  echo "capi/python/pyproject.toml $(sed -n 's/^version = "\(.*\)"/\1/p' capi/python/pyproject.toml)"
  echo "CHANGELOG.md $(sed -n 's/^## \[\([0-9][^]]*\)\] - [0-9-]\{10\}$/\1/p' CHANGELOG.md | head -n 1)"
  sed -n 's/^ARG VERSION=\(.*\)/deploy\/Dockerfile \1/p' deploy/Dockerfile | sort -u
}

# Sets `version`, or ends the script.
check_versions() {
  local stated file found wrong=false
  stated="$(stated_versions)"
  version="$(awk '$1 == "CMakeLists.txt" {print $2}' <<<"${stated}")"
  [[ "${version}" =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || die "CMakeLists.txt states no version such as 0.1.0"
  while read -r file found; do
    [[ "${found}" == "${version}" ]] || { echo "${file} states '${found}', and CMakeLists.txt ${version}" >&2; wrong=true; }
  done <<<"${stated}"
  grep -q '^## \[Unreleased\]$' CHANGELOG.md || { echo "CHANGELOG.md has no section [Unreleased]" >&2; wrong=true; }
  ! "${wrong}" || die "the versions do not agree"
}

# Sets `revision` and `created`, or ends the script.
check_tree() {
  revision="$(git rev-parse HEAD 2>/dev/null)" || die "needs a git clone"
  if [[ -n "$(git status --porcelain)" ]]; then
    "${allow_changed}" || die "the working tree differs from its commit; commit, or give --allow-changed"
    note "the working tree differs from ${revision}"
    revision+=-changed
  fi
  SOURCE_DATE_EPOCH="$(git log -1 --format=%ct)"  # two builds of a commit have equal times in archives
  export SOURCE_DATE_EPOCH
  created="$(date -u -d "@${SOURCE_DATE_EPOCH}" +%FT%TZ)"
  git describe --exact-match --tags >/dev/null 2>&1 || note "this commit has no tag yet"
}

check_versions
echo "release: version ${version} in all files"
if "${check_only}"; then exit 0; fi
check_tree
out="${out:-build/release/${version}}"
mkdir -p "${out}"
out="$(cd "${out}" && pwd)"
[[ -z "$(ls -A "${out}")" ]] || die "${out} is not empty"
work="$(mktemp -d)"
trap 'rm -rf "${work}"' EXIT

# ---- Debian packages

# The client packages of a GPU build are those of the CPU build, so they are there once.
make_debian_packages() {
  local preset name file
  for preset in "${presets[@]}"; do
    note "Debian packages of ${preset}"
    scripts/package.sh --preset "${preset}" --out "${work}/deb-${preset}" >"${work}/package.log" 2>&1 ||
      { tail -n 40 "${work}/package.log" >&2; die "making the packages of ${preset} failed"; }
    for file in "${work}/deb-${preset}"/*.deb; do
      name="${file##*/}"
      case "${preset}:${name}" in
        cpu:* ) ;;
        *:gdn-*) name="${name%.deb}_${preset#hip-}.deb" ;;
        *) [[ ! -e "${out}/${name}" ]] || continue ;;
      esac
      mv "${file}" "${out}/${name}"
    done
  done
}

# ---- Python

# Built from copies, for what building leaves behind. The wheel is made from the source archive, so both have everything.
make_python_packages() {
  note "Python packages"
  python3 -m venv "${work}/venv" >/dev/null || die "needs python3-venv: run scripts/setup.sh, or give --no-python"
  "${work}/venv/bin/pip" install --quiet build twine || die "pip finds no packages; give --no-python to leave these out"
  local package file
  git ls-files --cached --others --exclude-standard client/python capi/python proto ring | while read -r file; do
    [[ ! -e "${file}" ]] || cp --parents -t "${work}" "${file}"
  done
  for package in client/python capi/python; do
    "${work}/venv/bin/python" -m build --outdir "${work}/python" "${work}/${package}" >"${work}/python.log" 2>&1 ||
      { tail -n 40 "${work}/python.log" >&2; die "building ${package} failed"; }
  done
  "${work}/venv/bin/twine" check --strict "${work}"/python/*
  mv "${work}"/python/* "${out}/"
}

# ---- Images

# The first program that can build images here; none is no error.
image_builder() {
  local builder
  for builder in docker podman buildah; do
    command -v "${builder}" >/dev/null || continue
    # docker is there, and its daemon may not be.
    [[ "${builder}" != docker ]] || docker info >/dev/null 2>&1 || continue
    echo "${builder}"
    return
  done
}

# archive_image BUILDER IMAGE FILE: docker from version 25 on saves OCI's layout by itself.
archive_image() {
  case "$1" in
    docker) docker save --output "$3" "$2" ;;
    podman) podman save --quiet --format oci-archive --output "$3" "$2" ;;
    buildah) buildah push --quiet "$2" "oci-archive:$3:${2##*/}" ;;
  esac
}

sbom_in_image() {  # sbom_in_image BUILDER IMAGE: prints it
  local path=/usr/share/doc/gdn-service/sbom.spdx.json container
  if [[ "$1" != buildah ]]; then
    "$1" run --rm --entrypoint cat "$2" "${path}"
    return
  fi
  container="$(buildah from "$2")"
  buildah run "${container}" -- cat "${path}"
  buildah rm "${container}" >/dev/null
}

make_images() {
  local builder preset target name options=()
  builder="$(image_builder)"
  if [[ -z "${builder}" ]]; then
    note "no images: neither a running docker nor podman or buildah is here"
    return
  fi
  [[ "${builder}" == docker ]] || options=(--format docker)
  for preset in "${presets[@]}"; do
    target="${preset#hip-}"
    name="gdn-service:${version}-${target}"
    note "image ${name}, by ${builder}"
    "${builder}" build "${options[@]}" --file deploy/Dockerfile --target "${target}" --tag "${name}" \
      --build-arg "JOBS=$(default_jobs)" --build-arg "VERSION=${version}" --build-arg "REVISION=${revision}" \
      --build-arg "CREATED=${created}" . >"${work}/image.log" 2>&1 ||
      { tail -n 40 "${work}/image.log" >&2; die "building the image ${target} failed"; }
    archive_image "${builder}" "${name}" "${out}/gdn-service_${version}_${target}.oci.tar"
    sbom_in_image "${builder}" "${name}" >"${out}/gdn-service_${version}_${target}.spdx.json"
  done
  [[ "${builder}" == docker ]] || note "OCI's form has no health check, so these archives lack the HEALTHCHECK of deploy/Dockerfile"
}

# ---- Bill of materials, checksums, and what is left to do

make_bill_of_materials() {
  local file name files=() packages=()
  for file in "${out}"/*; do files+=(--file "${file}"); done
  # The Debian packages that these packages need, in the versions that they were built with.
  for file in "${out}"/*.deb; do
    [[ -e "${file}" ]] || continue
    while read -r name; do packages+=(--package "${name}"); done < <(
      dpkg-deb -f "${file}" Depends | sed 's/[,|]/\n/g' | awk 'NF {print $1}' | sort -u)
  done
  python3 scripts/sbom.py --root / --name gdn-service --version "${version}" --created "${created}" "${files[@]}" "${packages[@]}" \
    --out "${out}/gdn-service_${version}.spdx.json"
  python3 scripts/sbom.py --check "${out}/gdn-service_${version}.spdx.json"
}

print_uploads() {
  cat <<TEXT

Nothing was uploaded. An upload would take these steps (CONTRIBUTING.md, "Release"):

  git tag -s v${version} && git push origin v${version}
  gh release create v${version} --title "gdn-service ${version}" --notes-file NOTES ${out}/*
TEXT
  if compgen -G "${out}/*.whl" >/dev/null; then
    cat <<TEXT
  twine upload ${out}/*.whl ${out}/*.tar.gz    # or PyPI's trusted publishing, from a workflow of the repository
TEXT
  fi
  local archive tag
  if compgen -G "${out}/*.oci.tar" >/dev/null; then echo "  skopeo login ghcr.io"; fi
  for archive in "${out}"/*.oci.tar; do
    [[ -e "${archive}" ]] || continue
    tag="${archive##*_}"
    echo "  skopeo copy oci-archive:${archive} docker://ghcr.io/OWNER/gdn-service:${version}-${tag%.oci.tar}"
  done
  if compgen -G "${out}/*.deb" >/dev/null; then
    cat <<TEXT
  reprepro -b REPOSITORY includedeb bookworm ${out}/*_amd64.deb              # signs with the key of conf/distributions
  reprepro -b REPOSITORY includedeb bookworm-gfx906 ${out}/*_gfx906.deb      # same names, so a distribution of their own
TEXT
  fi
}

if "${deb}"; then make_debian_packages; fi
if "${python}"; then make_python_packages; fi
if "${image}"; then make_images; fi
[[ -n "$(ls -A "${out}")" ]] || die "nothing was made"
make_bill_of_materials
(cd "${out}" && sha256sum -- * >"${work}/sums" && mv "${work}/sums" SHA256SUMS && sha256sum --quiet --check SHA256SUMS)
note "${out}:"
ls -l "${out}"
print_uploads
