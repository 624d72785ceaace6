#include "state_store/tiers/disk/clean_marker.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "base/hash.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

constexpr std::string_view kFirstLine = "gdn-clean 2\n";
constexpr std::string_view kRedis = "redis ";
constexpr std::string_view kEnd = "end ";
constexpr size_t kEndBytes = kEnd.size() + 32 + 1;  // with the digits of a checksum and the end of the line
constexpr size_t kMostRedisBytes = 64;

bool IsWord(std::string_view text) {
  return !text.empty() && text.size() <= kMostRedisBytes &&
         std::ranges::all_of(text, [](unsigned char c) { return absl::ascii_isalnum(c); });
}

std::string LineOf(const StateKey& session, const CleanMarker::Copy& copy) {
  return StrCat(session.principal, "/", session.id, " ", copy.tier, " ", copy.version.created, " ", copy.version.epoch,
                " ", copy.version.changes, "\n");
}

std::optional<std::pair<StateKey, CleanMarker::Copy>> ParseLine(absl::string_view line) {
  const std::vector<absl::string_view> fields = absl::StrSplit(line, ' ');
  if (fields.size() != 5 || fields[1].empty()) return std::nullopt;
  const size_t slash = fields[0].find('/');
  if (slash == absl::string_view::npos || slash + 1 == fields[0].size()) return std::nullopt;
  std::pair<StateKey, CleanMarker::Copy> entry;
  entry.first.principal = std::string(fields[0].substr(0, slash));
  entry.first.id = std::string(fields[0].substr(slash + 1));
  entry.second.tier = std::string(fields[1]);
  StateVersion& version = entry.second.version;
  const std::array<int64_t*, 3> numbers = {&version.created, &version.epoch, &version.changes};
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (!absl::SimpleAtoi(fields[2 + i], numbers[i])) return std::nullopt;
  }
  return entry;
}

}  // namespace

const CleanMarker::Copy* CleanMarker::Find(const StateKey& session) const {
  const auto it = sessions.find(session);
  return it == sessions.end() ? nullptr : &it->second;
}

std::string CleanMarker::ToText() const {
  std::string text = StrCat(kFirstLine, kRedis, redis, "\n");
  for (const auto& [session, copy] : sessions) {
    const std::string line = LineOf(session, copy);
    if (text.size() + line.size() + kEndBytes > kMostBytes) break;
    text += line;
  }
  const std::string checksum = HashBytes(text).ToHex();
  StrAppend(&text, kEnd, checksum, "\n");
  return text;
}

std::optional<CleanMarker> CleanMarker::Parse(std::string_view text) {
  if (text.size() > kMostBytes || text.size() < kFirstLine.size() + kEndBytes) return std::nullopt;
  if (!text.starts_with(kFirstLine)) return std::nullopt;
  const std::string_view before_end = text.substr(0, text.size() - kEndBytes);
  if (text.substr(before_end.size()) != StrCat(kEnd, HashBytes(before_end).ToHex(), "\n")) return std::nullopt;

  const std::string_view rest = before_end.substr(kFirstLine.size());
  if (!rest.starts_with(kRedis) || !rest.ends_with('\n')) return std::nullopt;
  const std::vector<absl::string_view> lines = absl::StrSplit(AbslView(rest.substr(0, rest.size() - 1)), '\n');
  CleanMarker marker;
  marker.redis = std::string(lines[0].substr(kRedis.size()));
  if (!IsWord(marker.redis)) return std::nullopt;
  for (size_t i = 1; i < lines.size(); ++i) {
    auto entry = ParseLine(lines[i]);
    if (!entry.has_value()) return std::nullopt;
    marker.sessions.insert(*std::move(entry));
  }
  return marker;
}

}  // namespace gdn
