#include "tools/gdnctl/print.h"

#include "absl/flags/flag.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "google/protobuf/util/json_util.h"
#include "tools/gdnctl/command.h"

namespace gdn {
namespace {

constexpr std::pair<v1::InputKind, const char*> kKindNames[] = {{v1::INPUT_KIND_HIDDEN_STATES, "hidden_states"},
                                                                {v1::INPUT_KIND_PROJECTED, "projected"},
                                                                {v1::INPUT_KIND_DELTA_RULE, "delta_rule"}};
constexpr std::pair<v1::StateTier, const char*> kTierNames[] = {{v1::STATE_TIER_DEVICE, "on the device"},
                                                                {v1::STATE_TIER_HOST, "in host memory"},
                                                                {v1::STATE_TIER_DISK, "on the disk"},
                                                                {v1::STATE_TIER_REDIS, "in Redis"}};

template <typename Names, typename Value>
const char* NameOf(const Names& names, Value value, const char* otherwise) {
  for (const auto& [key, name] : names) {
    if (key == value) return name;
  }
  return otherwise;
}

}  // namespace

absl::Status PrintJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(message, &json, options);
  if (!status.ok()) return absl::InternalError(StrCat("cannot print as JSON: ", status.ToString()));
  absl::PrintF("%s", json);
  return absl::OkStatus();
}

absl::StatusOr<int> Show(const google::protobuf::Message& message, absl::FunctionRef<void()> show) {
  if (absl::GetFlag(FLAGS_json)) {
    GDN_RETURN_IF_ERROR(PrintJson(message));
  } else {
    show();
  }
  return kExitOk;
}

absl::Status PrintSession(const v1::Session& session) {
  if (absl::GetFlag(FLAGS_json)) return PrintJson(session);
  absl::PrintF("%s\n  of         %s\n  affinity   %s\n  created    %s\n  state      %s, %s\n  epoch      %d\n",
               session.name(), FormatSpec(session), session.affinity(), FormatTimestamp(session.create_time()),
               FormatBytes(session.state_bytes()), NameOf(kTierNames, session.tier(), "in no tier that is known here"),
               session.epoch());
  if (session.prefix_tokens() > 0) absl::PrintF("  started    from a prefix of %d tokens\n", session.prefix_tokens());
  if (session.has_durable_time()) absl::PrintF("  durable    %s\n", FormatTimestamp(session.durable_time()));
  for (const v1::LayerState& layer : session.layers()) {
    absl::PrintF("  layer %-4d %d tokens, %d of them in the log, %s", layer.layer(), layer.token_count(),
                 layer.log_length(), NameOf(kKindNames, layer.input_kind(), "no step yet"));
    if (layer.draft_length() > 0) {
      absl::PrintF(", a draft%s of %d", layer.draft_parents_size() > 0 ? " tree" : "", layer.draft_length());
    }
    if (session.has_durable_time()) absl::PrintF(", %d durable", layer.durable_token_count());
    absl::PrintF("\n");
  }
  return absl::OkStatus();
}

std::string FormatTier(v1::StateTier tier) {
  switch (tier) {
    case v1::STATE_TIER_DEVICE:
      return "device";
    case v1::STATE_TIER_HOST:
      return "host";
    case v1::STATE_TIER_DISK:
      return "disk";
    case v1::STATE_TIER_REDIS:
      return "redis";
    default:
      return "-";
  }
}

std::string FormatTimestamp(const google::protobuf::Timestamp& time) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::FromUnixSeconds(time.seconds()), absl::UTCTimeZone());
}

std::string FormatBytes(int64_t bytes) {
  static constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return StrCat(bytes, " B");
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

namespace {

// As LayerDimsToString has it.
const char* DecayText(v1::DecayKind decay) { return decay == v1::DECAY_KIND_PER_CHANNEL ? " decay=per-channel" : ""; }

}  // namespace

std::string FormatDims(const v1::LayerDims& dims) {
  return absl::StrFormat("H=%d HV=%d K=%d V=%d W=%d D=%d%s", dims.key_heads(), dims.value_heads(), dims.key_dim(),
                         dims.value_dim(), dims.conv_width(), dims.hidden_size(), DecayText(dims.decay()));
}

std::string FormatHeads(const v1::HeadSlice& heads) {
  return absl::StrFormat("%d-%d/%d", heads.first_value_head(), heads.first_value_head() + heads.value_heads() - 1,
                         heads.total_value_heads());
}

std::string FormatSpec(const v1::Session& session) {
  if (!session.has_operator_()) return session.model();
  const v1::OperatorSpec& spec = session.operator_();
  return absl::StrFormat("operator H=%d HV=%d K=%d V=%d x %d%s", spec.key_heads(), spec.value_heads(), spec.key_dim(),
                         spec.value_dim(), spec.layer_count(), DecayText(spec.decay()));
}

std::string FormatRanges(absl::Span<const int32_t> ascending) {
  std::string text;
  for (size_t first = 0; first < ascending.size();) {
    size_t last = first;
    while (last + 1 < ascending.size() && ascending[last + 1] == ascending[last] + 1) ++last;
    StrAppend(&text, text.empty() ? "" : ", ", ascending[first]);
    if (last > first) StrAppend(&text, "..", ascending[last]);
    first = last + 1;
  }
  return text.empty() ? "none" : text;
}

}  // namespace gdn
