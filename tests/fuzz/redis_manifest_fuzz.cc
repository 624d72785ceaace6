// The manifest of a state in Redis, and the address of a Redis. The first byte chooses which of the two is parsed.
#include "state_store/tiers/redis/redis_endpoint.h"
#include "state_store/tiers/redis/redis_folder.h"
#include "tests/fuzz/fuzz_target.h"

namespace gdn {
namespace {

void ReadManifest(std::string_view text) {
  const auto manifest = RedisManifest::Parse(text);
  if (!manifest.has_value()) return;
  GDN_FUZZ_CHECK(manifest->bytes > 0 && manifest->chunk_bytes > 0 && manifest->chunks() > 0, "numbers of no file");
  // The number of chunks must be bounded, because a reader makes their keys one by one.
  GDN_FUZZ_CHECK(manifest->chunks() <= (int64_t{1} << 32), "more chunks than any file has");
  const auto again = RedisManifest::Parse(manifest->ToJson());
  GDN_FUZZ_CHECK(again.has_value() && again->bytes == manifest->bytes && again->chunks() == manifest->chunks(),
                 "the manifest that was written is not the one that was read");
}

void ReadEndpoint(std::string_view text) {
  const auto endpoint = ParseRedisEndpoint(text);
  fuzz::CheckRefusal(endpoint.status());
  if (!endpoint.ok()) return;
  const bool socket = !endpoint->unix_path.empty();
  const bool server = !endpoint->host.empty();
  const bool sentinels = !endpoint->sentinels.empty();
  GDN_FUZZ_CHECK(socket + server + sentinels == 1, "not one of the three places a Redis can be");
  GDN_FUZZ_CHECK(!server || (endpoint->port > 0 && endpoint->port <= 65535), "a server without a port");
  GDN_FUZZ_CHECK(sentinels == !endpoint->master_name.empty(), "Sentinels and the name of their master go together");
  for (const RedisAddress& sentinel : endpoint->sentinels) {
    GDN_FUZZ_CHECK(!sentinel.host.empty() && sentinel.port > 0 && sentinel.port <= 65535, "a Sentinel without a place");
  }
  endpoint->ToString();
}

}  // namespace
}  // namespace gdn

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  gdn::fuzz::Input input(data, size);
  if (input.Byte() % 2 == 0) {
    gdn::ReadManifest(input.Rest());
  } else {
    gdn::ReadEndpoint(input.Rest());
  }
  return 0;
}
