#include "base/hash.h"

#include <xxhash.h>
#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h>  // takes the widest vectors that the machine has: twice as fast, the same digests
#endif

#include <algorithm>
#include <new>

#include "absl/strings/escaping.h"
#include "base/this_thread.h"

namespace gdn {
namespace {

// Integers are hashed as 8 little-endian bytes on every platform.
void StoreLittleEndian(uint64_t value, char (&bytes)[8]) {
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<char>(value >> (8 * i));
}

}  // namespace

struct Hasher::State {
  XXH3_state_t* xxh = XXH3_createState();
  ~State() { XXH3_freeState(xxh); }
};

std::string Hash128::ToHex() const {
  char bytes[16];
  for (int i = 0; i < 8; ++i) {
    bytes[i] = static_cast<char>(high >> (56 - 8 * i));
    bytes[8 + i] = static_cast<char>(low >> (56 - 8 * i));
  }
  return absl::BytesToHexString(absl::string_view(bytes, sizeof(bytes)));
}

Hash128 HashBytes(std::string_view bytes) {
  if (bytes.size() > kGiveWayBytes && GivesWay::here()) {
    Hasher hasher;
    for (; !bytes.empty(); bytes.remove_prefix(std::min(bytes.size(), kGiveWayBytes))) {
      hasher.Update(bytes.substr(0, kGiveWayBytes));
      GiveWay();
    }
    return hasher.Finish();
  }
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {.high = hash.high64, .low = hash.low64};
}

uint64_t Hash64(std::string_view bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

Hasher::Hasher() : state_(std::make_unique<State>()) {
  if (state_->xxh == nullptr) throw std::bad_alloc();
  XXH3_128bits_reset(state_->xxh);
}

Hasher::~Hasher() = default;

void Hasher::Update(std::string_view bytes) {
  if (!bytes.empty()) XXH3_128bits_update(state_->xxh, bytes.data(), bytes.size());
}

void Hasher::UpdateField(std::string_view bytes) {
  UpdateInt(static_cast<int64_t>(bytes.size()));
  Update(bytes);
}

void Hasher::UpdateInt(int64_t value) {
  char bytes[8];
  StoreLittleEndian(static_cast<uint64_t>(value), bytes);
  Update(std::string_view(bytes, sizeof(bytes)));
}

Hash128 Hasher::Finish() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(state_->xxh);
  return {.high = hash.high64, .low = hash.low64};
}

// Both widths are digests of one state.
uint64_t Hasher::Finish64() const { return XXH3_64bits_digest(state_->xxh); }

}  // namespace gdn
