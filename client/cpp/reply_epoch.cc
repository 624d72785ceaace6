#include "client/cpp/reply_epoch.h"

#include <charconv>
#include <optional>

#include "base/error.h"
#include "base/files/safetensors.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "nlohmann/json.hpp"

namespace gdn {
namespace {

constexpr std::string_view kLayerPrefix = "layer.";

absl::Status OtherEpoch(std::string_view what, const std::string& session, int64_t epoch, int64_t expected) {
  return MakeError(
      absl::StatusCode::kAborted, reason::kEpochMismatch,
      StrCat(what, " of ", session, " is of epoch ", epoch, ", the call is of epoch ", expected,
             ": steps that had been answered were lost, and the server is too old to refuse the call; send "
             "those after GetSession's token counts again, and then make the call again"),
      {{"session", session}, {"epoch", StrCat(epoch)}, {"expected", StrCat(expected)}});
}

absl::Status BadFile(const std::string& what) {
  return MakeError(absl::StatusCode::kDataLoss, reason::kInvalidStateFile,
                   StrCat("the state file that came is none: ", what, "; ask for it again"));
}

// Returns nullopt if the text is not one whole number.
template <typename Number>
std::optional<Number> NumberOf(std::string_view text) {
  Number number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace

absl::Status CheckReplyEpoch(const v1::CheckpointSessionRequest& request,
                             const v1::CheckpointSessionResponse& response) {
  const int64_t epoch = response.checkpoint().epoch();
  if (!request.has_session_epoch() || epoch == request.session_epoch()) return absl::OkStatus();
  return OtherEpoch("the checkpoint", request.name(), epoch, request.session_epoch());
}

absl::Status CheckReplyEpoch(const v1::RestoreCheckpointRequest& request,
                             const v1::RestoreCheckpointResponse& response) {
  const int64_t before = response.session().epoch() - 1;
  if (!request.has_session_epoch() || before == request.session_epoch()) return absl::OkStatus();
  return OtherEpoch("the state before the restore", request.name(), before, request.session_epoch());
}

absl::StatusOr<StateFileOrigin> ReadStateFileOrigin(std::string_view bytes) {
  GDN_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::ParseHeader(bytes, /*file_bytes=*/0));
  StateFileOrigin origin;
  for (const auto& [key, value] : file.metadata()) {
    if (key == "epoch") {
      const auto epoch = NumberOf<int64_t>(value);
      if (!epoch.has_value()) return BadFile(StrCat("its epoch is '", value, "'"));
      origin.epoch = *epoch;
    }
    std::string_view name = key;
    if (!name.starts_with(kLayerPrefix)) continue;
    name.remove_prefix(kLayerPrefix.size());
    const auto layer = NumberOf<int32_t>(name);
    const nlohmann::json entry = nlohmann::json::parse(value, nullptr, /*allow_exceptions=*/false);
    if (!layer.has_value() || !entry.is_object() || !entry.contains("token_count") ||
        !entry["token_count"].is_number_integer()) {
      return BadFile(StrCat("its entry '", key, "' has no token_count"));
    }
    SeenTokens& seen = origin.seen[*layer];
    seen.tokens = entry["token_count"].get<int64_t>();
    const auto draft = entry.find("draft_length");
    if (draft != entry.end() && draft->is_number_integer()) seen.draft = draft->get<int64_t>();
  }
  return origin;
}

absl::Status CheckFileEpoch(const std::string& session, int64_t epoch, std::string_view bytes) {
  GDN_ASSIGN_OR_RETURN(const StateFileOrigin origin, ReadStateFileOrigin(bytes));
  if (origin.epoch == epoch) return absl::OkStatus();
  return OtherEpoch("the state file", session, origin.epoch, epoch);
}

absl::Status EpochCheckedSink::Take(std::string_view piece) {
  if (checked_) return sink_(piece);
  if (!begun_.empty()) {
    begun_.append(piece);
    piece = begun_;
  }
  const absl::StatusOr<uint64_t> end = SafetensorsHeaderEnd(piece);
  if (!end.ok() || *end > piece.size()) {
    if (begun_.empty()) begun_ = piece;
    return absl::OkStatus();
  }
  GDN_RETURN_IF_ERROR(CheckFileEpoch(session_, epoch_, piece));
  checked_ = true;
  return sink_(piece);
}

absl::Status EpochCheckedSink::End() {
  return checked_ ? absl::OkStatus() : BadFile(StrCat("its ", begun_.size(), " bytes have no header"));
}

}  // namespace gdn
