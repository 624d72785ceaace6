#!/usr/bin/env bash
# The build stage's work, for deploy/Dockerfile: programs to OUT/bin, the packages that hold their libraries to
# OUT/runtime_packages.
#
#   deploy/build_in_image.sh PRESET OUT [CMAKE_ARGUMENT...]
set -euo pipefail
source_root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
# shellcheck source=scripts/common.sh
source "${source_root}/scripts/common.sh"

(( $# >= 2 )) || die "takes a preset and a folder"
preset="$1" out="$2"
shift 2
programs=(gdn_server gdnctl gdn_parity gdn_bench)

cd "${repo_root}"
cmake --preset "${preset}" -DGDN_BUILD_TESTS=OFF "$@"
cmake --build --preset "${preset}" --parallel "$(default_jobs)" --target "${programs[@]}"

mkdir -p "${out}/bin"
for program in "${programs[@]}"; do
  install --strip "build/${preset}/bin/${program}" "${out}/bin/"
done

# Libraries outside of any package, such as those of a ROCm image, are the runtime image's to bring.
ldd "${out}"/bin/* | awk '$2 == "=>" && $3 ~ /^\// {print $3}' | sort -u | while read -r library; do
  { dpkg-query -S "${library}" "/usr${library}" "$(realpath "${library}")" 2>/dev/null || true; } | cut -d: -f1
done | sort -u >"${out}/runtime_packages"
[[ -s "${out}/runtime_packages" ]] || die "found no package of the programs' libraries"
note "runtime packages: $(tr '\n' ' ' <"${out}/runtime_packages")"
