// Checks ids and free texts from requests, state files and tiers.
//
// Thread safety: pure functions. Ownership: none.
//
//   if (!IsId(request_id, kMaxRequestIdLength)) return Refuse(StrCat("request_id is '", Shown(request_id), "'"));
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

namespace gdn {

// Lengths of the longest texts that are accepted, in bytes.
inline constexpr size_t kMaxSessionIdLength = 128;
inline constexpr size_t kMaxRequestIdLength = 64;
inline constexpr size_t kMaxAffinityLength = 256;

// True for at most `most` characters of [A-Za-z0-9._~-]; the empty text passes too.
inline bool IsId(std::string_view text, size_t most) {
  const auto is_id_character = [](char c) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    return letter || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '~' || c == '-';
  };
  return text.size() <= most && std::all_of(text.begin(), text.end(), is_id_character);
}

// A snapshot is stored as a session with the id kSnapshotMark + key. No session's id begins with this character, and it
// sorts before all characters of ids.
inline constexpr char kSnapshotMark = '+';

inline bool IsSnapshotId(std::string_view id) { return !id.empty() && id.front() == kSnapshotMark; }
// True for an id of a session or of a snapshot; not for the empty text.
inline bool IsStateId(std::string_view id) {
  const std::string_view name = IsSnapshotId(id) ? id.substr(1) : id;
  return !name.empty() && IsId(name, kMaxSessionIdLength);
}
// Returns "snapshots/KEY" for a snapshot's id, else "sessions/ID", for errors and log lines. Does not check the id.
inline std::string StateName(std::string_view id) {
  std::string name(IsSnapshotId(id) ? "snapshots/" : "sessions/");
  return name.append(IsSnapshotId(id) ? id.substr(1) : id);
}

// True for at most `most` printable ASCII characters, of which the space is one; the empty text passes too.
inline bool IsPrintable(std::string_view text, size_t most) {
  return text.size() <= most && std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; });
}

// Returns `text`, to show in an error or a log line: unprintable bytes become '?', and a text of more than `most` bytes
// is cut there and ends with "...".
inline std::string Shown(std::string_view text, size_t most = 64) {
  std::string shown(text.substr(0, most));
  std::replace_if(
      shown.begin(), shown.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  if (text.size() > most) shown += "...";
  return shown;
}

}  // namespace gdn
