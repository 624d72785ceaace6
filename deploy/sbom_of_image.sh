#!/usr/bin/env bash
# The bill of materials of an image, for deploy/Dockerfile: what dpkg knows under SYSTEM, and the programs in OUT/bin, to
# OUT/sbom.spdx.json.
#
#   deploy/sbom_of_image.sh TARGET VERSION CREATED SYSTEM OUT
set -euo pipefail
source_root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
# shellcheck source=scripts/common.sh
source "${source_root}/scripts/common.sh"

(( $# == 5 )) || die "takes a target, its version and time, a system's folder and the one for the result"
target="$1" version="$2" created="$3" system="$4" out="$5"
programs=()
for program in "${out}"/bin/*; do programs+=(--program "${program}"); done

python3 "${source_root}/scripts/sbom.py" --root "${system}" --name "gdn-service-${target}" --version "${version}" --created "${created}" \
  "${programs[@]}" --out "${out}/sbom.spdx.json"
python3 "${source_root}/scripts/sbom.py" --check "${out}/sbom.spdx.json" --root "${system}"
