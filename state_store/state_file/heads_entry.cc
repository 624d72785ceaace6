// The entry "heads" of a state file's __metadata__: the value heads of the model that the states belong to.
#include "base/string_cat.h"
#include "state_store/state_file/json_fields.h"
#include "state_store/state_file/metadata.h"

namespace gdn::state_file {
namespace {

constexpr std::pair<const char*, int32_t HeadSlice::*> kFields[] = {
    {"first", &HeadSlice::first}, {"count", &HeadSlice::count}, {"total", &HeadSlice::total}};
constexpr const char* kModelFingerprint = "model_fingerprint";

}  // namespace

std::string HeadsText(const ModelSlice& slice) {
  Json json{{kModelFingerprint, slice.model_fingerprint}};
  for (const auto& [field, member] : kFields) json[field] = slice.heads.*member;
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

absl::Status ParseHeads(const std::string& text, SessionHeader& header) {
  const Json json = Parse(text);
  ModelSlice slice;
  for (const auto& [field, member] : kFields) {
    const auto value = IntField(json, field);
    if (!value.has_value() || *value > kMaxHeads) {
      return InvalidEntry("heads", text, StrCat("a JSON object with '", field, "', an integer of at most ", kMaxHeads));
    }
    slice.heads.*member = static_cast<int32_t>(*value);
  }
  const HeadSlice& heads = slice.heads;
  const LayerDims& dims = header.dims;
  if (heads.is_whole() || heads.count != dims.value_heads || heads.end() > heads.total ||
      heads.first % dims.group() != 0 || heads.total % dims.group() != 0) {
    return InvalidEntry(
        "heads", text,
        StrCat("whole groups of ", dims.group(), " value heads, ", dims.value_heads, " in all as by dims, among more"));
  }
  slice.model_fingerprint = TextField(json, kModelFingerprint).value_or("");
  if (header.fingerprint != SliceFingerprint(slice.model_fingerprint, heads)) {
    return InvalidEntry("heads", text, "the model_fingerprint that the file's own follows from");
  }
  header.slice = std::move(slice);
  return absl::OkStatus();
}

}  // namespace gdn::state_file
