#include "tools/gdnctl/state_file.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "base/error.h"
#include "base/files/safetensors.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "google/protobuf/util/json_util.h"
#include "nlohmann/json.hpp"

namespace gdn {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kLayerPrefix = "layer.";
constexpr std::string_view kChecksumKey = "\"header_checksum\":\"";
constexpr size_t kChecksumDigits = 32;

absl::Status Damaged(std::string_view tensor, std::string_view what) {
  return MakeError(absl::StatusCode::kDataLoss, reason::kInvalidStateFile, StrCat("not a whole state file: ", what),
                   {{"tensor", std::string(tensor)}});
}

Json ParseObject(const std::string& text) {
  Json json = Json::parse(text, /*cb=*/nullptr, /*allow_exceptions=*/false);
  return json.is_object() ? json : Json::object();
}

int64_t Integer(const Json& json, const char* field) {
  const auto found = json.find(field);
  return found != json.end() && found->is_number_integer() ? found->get<int64_t>() : 0;
}

std::string Text(const Json& json, const char* field) {
  const auto found = json.find(field);
  return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
}

// Whether the header has a checksum; an error where it is not the header's. The file's parser has passed `bytes`, so
// the header is whole.
absl::StatusOr<bool> CheckHeader(std::string_view bytes) {
  GDN_ASSIGN_OR_RETURN(const uint64_t header_end, SafetensorsHeaderEnd(bytes));
  std::string header(bytes.substr(0, header_end));
  const size_t key = header.find(kChecksumKey);
  if (key == std::string::npos) return false;
  const size_t digits = key + kChecksumKey.size();
  if (digits + kChecksumDigits > header.size()) return Damaged("header", "the header's checksum is cut");
  const std::string written = header.substr(digits, kChecksumDigits);
  header.replace(digits, kChecksumDigits, kChecksumDigits, '0');
  if (const std::string found = HashBytes(header).ToHex(); found != written) {
    return Damaged("header", StrCat("the header's checksum is ", found, ", expected ", written));
  }
  return true;
}

absl::StatusOr<int> CheckTensors(const SafetensorsFile& file) {
  const auto text = file.metadata().find("checksums");
  if (text == file.metadata().end()) return 0;
  const Json checksums = ParseObject(text->second);
  for (const auto& [name, entry] : file.entries()) {
    GDN_ASSIGN_OR_RETURN(const std::string_view tensor, file.Bytes(name));
    const std::string written = Text(checksums, name.c_str());
    if (const std::string found = HashBytes(tensor).ToHex(); found != written) {
      return Damaged(name, StrCat("the checksum of '", name, "' is ", found, ", expected ",
                                  written.empty() ? "one in the header" : written));
    }
  }
  if (checksums.size() != file.entries().size()) {
    return Damaged("header", StrCat("it has ", file.entries().size(), " tensors and ", checksums.size(), " checksums"));
  }
  return static_cast<int>(file.entries().size());
}

StateFileReport::Layer ReadLayer(int32_t index, const std::string& text, const SafetensorsFile& file) {
  const Json json = ParseObject(text);
  StateFileReport::Layer layer{.layer = index,
                               .token_count = Integer(json, "token_count"),
                               .log_length = Integer(json, "log_length"),
                               .draft_length = Integer(json, "draft_length"),
                               .draft_is_tree = json.contains("draft_parents"),
                               .input_kind = Text(json, "input_kind"),
                               .has_base = Text(json, "base") != "left_out",
                               .reply_request_id = {},
                               .parts = {}};
  if (json.contains("reply")) layer.reply_request_id = Text(json["reply"], "request_id");
  const std::string prefix = StrCat(kLayerPrefix, index, ".");
  for (const auto& [name, entry] : file.entries()) {
    if (name.compare(0, prefix.size(), prefix) != 0) continue;
    layer.parts.push_back(name.substr(prefix.size()));
    layer.bytes += static_cast<int64_t>(entry.end - entry.begin);
  }
  return layer;
}

// As the file's text has them; what it has beyond them is passed over.
v1::LayerDims ParseDims(const std::string& text) {
  google::protobuf::util::JsonParseOptions lenient;
  lenient.ignore_unknown_fields = true;
  Json json = ParseObject(text);
  v1::LayerDims dims;
  const bool per_channel = json["decay"] == "per_channel";  // in the file's own words
  json.erase("decay");
  (void)google::protobuf::util::JsonStringToMessage(json.dump(-1, ' ', true, Json::error_handler_t::replace), &dims,
                                                    lenient);
  if (per_channel) dims.set_decay(v1::DECAY_KIND_PER_CHANNEL);
  return dims;
}

}  // namespace

std::string StateFileReport::Text(const std::string& key) const {
  const auto found = metadata.find(key);
  return found == metadata.end() ? std::string() : found->second;
}

absl::StatusOr<StateFileReport> InspectStateFile(std::string_view bytes) {
  GDN_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::Parse(bytes));
  StateFileReport report;
  report.metadata = file.metadata();
  report.bytes = static_cast<int64_t>(bytes.size());
  report.tensors = static_cast<int>(file.entries().size());
  if (report.Text("format") != "gdn.state") {
    return Damaged("header", StrCat("its format is '", report.Text("format"), "', expected 'gdn.state'"));
  }
  GDN_ASSIGN_OR_RETURN(report.header_checked, CheckHeader(bytes));
  if (!report.header_checked && report.Text("format_version") != "1") {
    return Damaged("header", "it has no checksum, which files of its version have");
  }
  GDN_ASSIGN_OR_RETURN(report.tensors_checked, CheckTensors(file));
  report.dims = ParseDims(report.Text("dims"));
  if (!absl::SimpleAtoi(report.Text("layer_count"), &report.layer_count)) {
    return Damaged("header", "it does not say its layer_count");
  }
  for (const auto& [key, text] : report.metadata) {
    int32_t index = 0;
    if (key.compare(0, kLayerPrefix.size(), kLayerPrefix) == 0 &&
        absl::SimpleAtoi(key.substr(kLayerPrefix.size()), &index)) {
      report.layers.push_back(ReadLayer(index, text, file));
    }
  }
  std::sort(report.layers.begin(), report.layers.end(), [](const auto& a, const auto& b) { return a.layer < b.layer; });
  return report;
}

std::string WholeFingerprint(const StateFileReport& file) {
  const Json heads = ParseObject(file.Text("heads"));
  return heads.empty() ? file.Text("model_fingerprint") : Text(heads, "model_fingerprint");
}

std::string HeadsOf(const StateFileReport& file) {
  const Json heads = ParseObject(file.Text("heads"));
  if (heads.empty()) return "";
  const int64_t first = Integer(heads, "first");
  return StrCat(first, "-", first + Integer(heads, "count") - 1, "/", Integer(heads, "total"));
}

absl::Status SetTargetSpec(const StateFileReport& file, const std::vector<v1::Model>& models,
                           v1::ImportStateRequest::Target* target) {
  if (file.dims.conv_width() == 0) {
    v1::OperatorSpec* const spec = target->mutable_operator_();
    spec->set_key_heads(file.dims.key_heads());
    spec->set_value_heads(file.dims.value_heads());
    spec->set_key_dim(file.dims.key_dim());
    spec->set_value_dim(file.dims.value_dim());
    spec->set_decay(file.dims.decay());
    spec->set_layer_count(file.layer_count);
    return absl::OkStatus();
  }
  const std::string fingerprint = file.Text("model_fingerprint");
  const std::string name = StrCat("models/", file.Text("model"));
  // A server of some of the heads takes its part.
  for (const v1::Model& model : models) {
    const bool fits = model.fingerprint() == fingerprint ||
                      (!model.whole_fingerprint().empty() && model.whole_fingerprint() == WholeFingerprint(file));
    if (fits && (target->model().empty() || model.name() == name)) target->set_model(model.name());
  }
  if (!target->model().empty()) return absl::OkStatus();
  return MakeError(
      absl::StatusCode::kFailedPrecondition, reason::kStateMismatch,
      StrCat("the server has no model with the file's fingerprint ", fingerprint, " (",
             file.Text("model").empty() ? "no name" : name, "); serve that checkpoint there, or name one with --model"),
      {{"field", "model_fingerprint"}, {"expected", fingerprint}});
}

}  // namespace gdn
