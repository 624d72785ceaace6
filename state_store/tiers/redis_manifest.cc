#include "state_store/tiers/redis_manifest.h"

#include <nlohmann/json.hpp>

#include "base/string_cat.h"

namespace gdn {

namespace {

constexpr std::string_view kState = "state";
constexpr std::string_view kCheckpoint = "checkpoint:";
// Against a manifest that lies: no state comes near.
constexpr int64_t kMaxFileBytes = int64_t{1} << 42;

}  // namespace

std::string RedisManifest::ChunkName(std::string_view session, int64_t chunk) const {
  return StrCat(session, ":", version, ":", chunk);
}

std::vector<std::string> RedisManifest::ChunkNames(std::string_view session) const {
  std::vector<std::string> names;
  for (int64_t i = 0; i < chunks(); ++i) names.push_back(ChunkName(session, i));
  return names;
}

std::string RedisManifest::ToJson() const {
  return nlohmann::json{
      {"version", version}, {"bytes", bytes}, {"chunk_bytes", chunk_bytes}, {"chunks", chunks()}, {"xxh3", xxh3}}
      .dump();
}

std::optional<RedisManifest> RedisManifest::Parse(std::string_view json) {
  const auto parsed = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) return std::nullopt;
  for (const char* name : {"version", "xxh3"}) {
    if (!parsed.contains(name) || !parsed[name].is_string()) return std::nullopt;
  }
  for (const char* name : {"bytes", "chunk_bytes", "chunks"}) {
    if (!parsed.contains(name) || !parsed[name].is_number_integer()) return std::nullopt;
  }
  RedisManifest manifest{.version = parsed["version"].get<std::string>(),
                         .bytes = parsed["bytes"].get<int64_t>(),
                         .chunk_bytes = parsed["chunk_bytes"].get<int64_t>(),
                         .xxh3 = parsed["xxh3"].get<std::string>()};
  if (manifest.bytes < 1 || manifest.bytes > kMaxFileBytes || manifest.chunk_bytes < 1 ||
      manifest.chunk_bytes > kMaxFileBytes || parsed["chunks"].get<int64_t>() != manifest.chunks()) {
    return std::nullopt;
  }
  return manifest;
}

std::string ManifestField(const StateKey& key) {
  return key.checkpoint.empty() ? std::string(kState) : StrCat(kCheckpoint, key.checkpoint);
}

std::optional<std::string> CheckpointOfField(std::string_view field) {
  if (field == kState) return "";
  if (!field.starts_with(kCheckpoint) || field.size() == kCheckpoint.size()) return std::nullopt;
  return std::string(field.substr(kCheckpoint.size()));
}

}  // namespace gdn
