#include "tools/gdnctl/print.h"

#include <cstdio>

#include "absl/strings/str_format.h"
#include "base/string_cat.h"
#include "google/protobuf/util/json_util.h"

namespace gdn {

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

std::string FormatDims(const v1::LayerDims& dims) {
  return absl::StrFormat("H=%d HV=%d K=%d V=%d W=%d D=%d", dims.key_heads(), dims.value_heads(), dims.key_dim(),
                         dims.value_dim(), dims.conv_width(), dims.hidden_size());
}

std::string FormatSpec(const v1::Session& session) {
  if (!session.has_operator_()) return session.model();
  const v1::OperatorSpec& spec = session.operator_();
  return absl::StrFormat("operator H=%d HV=%d K=%d V=%d x %d", spec.key_heads(), spec.value_heads(), spec.key_dim(),
                         spec.value_dim(), spec.layer_count());
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
