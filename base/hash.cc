#include "base/hash.h"

#include <xxhash.h>
#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h>  // takes the widest vectors that the machine has: twice as fast, the same digests
#endif

#include <algorithm>
#include <bit>
#include <new>

#include "absl/strings/str_cat.h"
#include "base/threads/this_thread.h"

namespace gdn {
namespace {

// Debian's AVX-512 versions leave the upper halves of the vector registers in use, and a new thread inherits that. Each
// change between SSE and AVX instructions then costs hundreds of cycles, until an instruction clears the halves.
struct UpperHalves {
#if defined(__x86_64__)
  ~UpperHalves() {
    static const bool has_avx = __builtin_cpu_supports("avx") != 0;
    if (has_avx) Clear();
  }
  [[gnu::target("avx")]] static void Clear() { __builtin_ia32_vzeroupper(); }
#else
  ~UpperHalves() {}
#endif
};

Hash128 Of(const XXH128_hash_t& hash) { return {.high = hash.high64, .low = hash.low64}; }

}  // namespace

struct Hasher::State {
  XXH3_state_t* xxh = XXH3_createState();
  ~State() { XXH3_freeState(xxh); }
};

std::string Hash128::ToHex() const {
  return absl::StrCat(absl::Hex(high, absl::kZeroPad16), absl::Hex(low, absl::kZeroPad16));
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
  const UpperHalves cleared;
  return Of(XXH3_128bits(bytes.data(), bytes.size()));
}

uint64_t Hash64(std::string_view bytes) {
  const UpperHalves cleared;
  return XXH3_64bits(bytes.data(), bytes.size());
}

Hasher::Hasher() : state_(std::make_unique<State>()) {
  if (state_->xxh == nullptr) throw std::bad_alloc();
  XXH3_128bits_reset(state_->xxh);
}

Hasher::~Hasher() = default;

void Hasher::Update(std::string_view bytes) {
  const UpperHalves cleared;
  if (!bytes.empty()) XXH3_128bits_update(state_->xxh, bytes.data(), bytes.size());
}

void Hasher::UpdateField(std::string_view bytes) {
  UpdateInt(static_cast<int64_t>(bytes.size()));
  Update(bytes);
}

void Hasher::UpdateInt(int64_t value) {
  static_assert(std::endian::native == std::endian::little, "integers are hashed as 8 little-endian bytes");
  Update(std::string_view(reinterpret_cast<const char*>(&value), sizeof(value)));
}

Hash128 Hasher::Finish() const {
  const UpperHalves cleared;
  return Of(XXH3_128bits_digest(state_->xxh));
}

// Both widths are digests of one state.
uint64_t Hasher::Finish64() const {
  const UpperHalves cleared;
  return XXH3_64bits_digest(state_->xxh);
}

}  // namespace gdn
