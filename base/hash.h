// XXH3 digests, for payload identity, fingerprints and checksums (not for security).
//
// Thread safety: Hasher is for one thread at a time. Ownership: Hasher owns its state.
//
//   Hasher hasher;
//   hasher.Update(bytes);
//   std::string hex = hasher.Finish().ToHex();
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace gdn {

struct Hash128 {
  uint64_t high = 0;
  uint64_t low = 0;

  std::string ToHex() const;  // 32 lower-case hexadecimal digits, canonical (big-endian) order
  friend bool operator==(const Hash128&, const Hash128&) = default;
};

// Returns the XXH3-128 digest of `bytes`.
Hash128 HashBytes(std::string_view bytes);

// XXH3-64, used as the checksum of a piece of a stream.
uint64_t Hash64(std::string_view bytes);

class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(const Hasher&) = delete;
  Hasher& operator=(const Hasher&) = delete;

  void Update(std::string_view bytes);
  // Hashes the length of `bytes` and then the bytes, so that the fields ("ab","c") and ("a","bc") give different
  // hashes.
  void UpdateField(std::string_view bytes);
  // Hashes the value as 8 little-endian bytes.
  void UpdateInt(int64_t value);
  // Returns the digest of all bytes hashed so far; more may follow.
  Hash128 Finish() const;
  uint64_t Finish64() const;  // Hash64 of all bytes hashed so far

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace gdn
