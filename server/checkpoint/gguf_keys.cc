#include "server/checkpoint/gguf_keys.h"

#include <algorithm>
#include <string>

#include "base/error.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

constexpr std::string_view kGdnKeys[] = {"block_count",
                                         "embedding_length",
                                         "nextn_predict_layers",
                                         "full_attention_interval",
                                         "attention.head_count_kv",
                                         "attention.layer_norm_rms_epsilon",
                                         "attention.recurrent_layers",
                                         "ssm.conv_kernel",
                                         "ssm.group_count",
                                         "ssm.inner_size",
                                         "ssm.state_size",
                                         "ssm.time_step_rank",
                                         "ssm.v_head_reordered"};
constexpr std::string_view kKdaKeys[] = {"block_count",
                                         "embedding_length",
                                         "nextn_predict_layers",
                                         "attention.head_count",
                                         "attention.head_count_kv",
                                         "attention.layer_norm_rms_epsilon",
                                         "kda.gate_lower_bound",
                                         "kda.head_dim",
                                         "kda.safe_gate",
                                         "ssm.conv_kernel"};

// Beginnings of the names of recurrent layers' keys, in files that exist and in files that may come.
constexpr std::string_view kLinearPrefixes[] = {"ssm",
                                                "kda",
                                                "gdn",
                                                "gated_delta",
                                                "delta",
                                                "linear",
                                                "recurrent",
                                                "wkv.",
                                                "shortconv",
                                                "short_conv",
                                                "full_attention",
                                                "attention.recurrent",
                                                "attention.linear"};

}  // namespace

absl::Span<const std::string_view> GgufKeysRead(bool kda) {
  if (kda) return kKdaKeys;
  return kGdnKeys;
}

bool ConcernsLinearLayers(std::string_view key) {
  return std::ranges::any_of(kLinearPrefixes, [&](std::string_view prefix) { return key.starts_with(prefix); });
}

absl::Status CheckGgufKeys(const GgufFile& file, std::string_view architecture, bool kda) {
  const absl::Span<const std::string_view> read = GgufKeysRead(kda);
  for (const std::string_view name : file.KeysUnder(StrCat(architecture, "."))) {
    const std::string_view key = name.substr(architecture.size() + 1);
    if (!ConcernsLinearLayers(key) || std::find(read.begin(), read.end(), key) != read.end()) continue;
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidSpec,
                     StrCat("GGUF key '", name, "' is there; expected none: it may change what the linear layers of ",
                            architecture, " compute, and they are served without it"),
                     {{"field", std::string(name)}});
  }
  return absl::OkStatus();
}

}  // namespace gdn
