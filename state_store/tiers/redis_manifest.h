// What a RedisTier keeps of a state beside its chunks: how many they are and what they hold.
//
// Thread safety: a plain value and free functions.
//
//   RedisManifest manifest{.version = RandomId(), .bytes = file.bytes(), .chunk_bytes = 1 << 20, .xxh3 = hash.ToHex()};
//   std::string json = manifest.ToJson();
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "state_store/tiers/state_tier.h"

namespace gdn {

struct RedisManifest {
  std::string version;  // of the chunks' names; no two files share one
  int64_t bytes = 0;    // the file's
  int64_t chunk_bytes = 0;
  std::string xxh3;  // of the whole file

  int64_t chunks() const { return (bytes + chunk_bytes - 1) / chunk_bytes; }
  std::string ChunkName(std::string_view session, int64_t chunk) const;
  std::vector<std::string> ChunkNames(std::string_view session) const;

  std::string ToJson() const;
  // nullopt for what is not a manifest, or one whose numbers contradict each other.
  static std::optional<RedisManifest> Parse(std::string_view json);
};

// The manifest's field in the session's hash: "state" or "checkpoint:NAME", and back into a checkpoint id.
std::string ManifestField(const StateKey& key);
std::optional<std::string> CheckpointOfField(std::string_view field);

}  // namespace gdn
