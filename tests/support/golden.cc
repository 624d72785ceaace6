#include "tests/support/golden.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/files/safetensors.h"
#include "base/status_macros.h"

namespace gdn {
namespace {

absl::StatusOr<GoldenCore> LoadOne(const std::filesystem::path& path) {
  GDN_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::Open(path.string()));
  GDN_ASSIGN_OR_RETURN(const TensorView q, file.Tensor("q"));
  GDN_ASSIGN_OR_RETURN(const TensorView v, file.Tensor("v"));
  if (q.shape.size() != 4 || v.shape.size() != 4) {
    return absl::InvalidArgumentError(absl::StrCat(path.string(), ": q and v must have 4 dimensions"));
  }
  GoldenCore golden;
  golden.name = path.stem().string();
  golden.sequences = static_cast<int32_t>(q.shape[0]);
  DeltaRuleInputs& inputs = golden.inputs;
  inputs.dims = OperatorDims(static_cast<int32_t>(q.shape[2]), static_cast<int32_t>(v.shape[2]),
                             static_cast<int32_t>(q.shape[3]), static_cast<int32_t>(v.shape[3]));
  inputs.tokens = q.shape[0] * q.shape[1];
  GDN_ASSIGN_OR_RETURN(inputs.q, file.Floats("q", q.shape));
  GDN_ASSIGN_OR_RETURN(inputs.k, file.Floats("k", q.shape));
  GDN_ASSIGN_OR_RETURN(inputs.v, file.Floats("v", v.shape));
  GDN_ASSIGN_OR_RETURN(const TensorView g, file.Tensor("g"));
  if (g.shape.size() == 4) inputs.dims.decay = DecayKind::kPerChannel;
  GDN_ASSIGN_OR_RETURN(inputs.g, file.Floats("g"));
  GDN_ASSIGN_OR_RETURN(inputs.beta, file.Floats("beta"));
  GDN_ASSIGN_OR_RETURN(golden.initial_state, file.Floats("initial_state"));
  GDN_ASSIGN_OR_RETURN(golden.output, file.Floats("o64", v.shape));
  GDN_ASSIGN_OR_RETURN(golden.final_state, file.Floats("final_state64"));
  const double scale = 1.0 / std::sqrt(static_cast<double>(inputs.dims.key_dim));
  for (float& value : inputs.q) value = static_cast<float>(value * scale);
  return golden;
}

}  // namespace

absl::StatusOr<std::vector<GoldenCore>> LoadGoldenCore(const std::string& directory) {
  std::vector<std::filesystem::path> paths;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    if (entry.path().extension() == ".safetensors") paths.push_back(entry.path());
  }
  if (error || paths.empty()) {
    return absl::NotFoundError(
        absl::StrCat("no .safetensors files in ", directory, "; expected the golden core vectors"));
  }
  std::sort(paths.begin(), paths.end());
  std::vector<GoldenCore> vectors;
  for (const std::filesystem::path& path : paths) {
    GDN_ASSIGN_OR_RETURN(GoldenCore golden, LoadOne(path));
    vectors.push_back(std::move(golden));
  }
  return vectors;
}

}  // namespace gdn
