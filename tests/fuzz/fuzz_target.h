// Helpers of the fuzz targets: checks that end the process, a backend that only has memory, and parsing of bytes.
//
// A target is one file with LLVMFuzzerTestOneInput. clang's libFuzzer drives it under the preset `fuzz`; in every other
// build replay_main.cc runs the corpus through it, as a test.
// Thread safety: for one thread. Ownership: an Input borrows the bytes.
//
//   extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
//     gdn::fuzz::Input input(data, size);
//     const auto parsed = Parse(input.Rest());
//     if (parsed.ok()) GDN_FUZZ_CHECK(Parse(parsed->Text()).ok(), "what was read is not read again");
//     return 0;
//   }
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "base/error.h"
#include "kernels/backend.h"
#include "state_store/host_block_pool.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

// Ends the process if the condition is false, like a fault that a sanitizer finds.
#define GDN_FUZZ_CHECK(condition, what)                                                                   \
  do {                                                                                                    \
    if (!(condition)) {                                                                                   \
      std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, std::string(what).c_str()); \
      std::abort();                                                                                       \
    }                                                                                                     \
  } while (false)

namespace gdn::fuzz {

class Input {
 public:
  Input(const uint8_t* data, size_t size) : rest_(reinterpret_cast<const char*>(data), size) {}

  // Takes the next byte; 0 if none is left.
  uint8_t Byte() {
    if (rest_.empty()) return 0;
    const auto byte = static_cast<uint8_t>(rest_.front());
    rest_.remove_prefix(1);
    return byte;
  }
  std::string_view Take(size_t bytes) {
    const std::string_view taken = rest_.substr(0, bytes);
    rest_.remove_prefix(taken.size());
    return taken;
  }
  // Takes a length of two bytes (little-endian) and then that many bytes, or as many as are left.
  std::string_view Field() {
    const size_t low = Byte();
    return Take(low | size_t{Byte()} << 8);
  }
  std::string_view Rest() { return Take(rest_.size()); }
  bool empty() const { return rest_.empty(); }

 private:
  std::string_view rest_;
};

// Checks that an error has a message, and a code other than INTERNAL and UNKNOWN.
inline void CheckRefusal(const absl::Status& status) {
  if (status.ok()) return;
  GDN_FUZZ_CHECK(!status.message().empty(), status.ToString());
  GDN_FUZZ_CHECK(status.code() != absl::StatusCode::kInternal && status.code() != absl::StatusCode::kUnknown,
                 status.ToString());
}

// A backend with little host memory, so that inputs that need terabytes are refused at once.
class MemoryBackend final : public Backend {
 public:
  static constexpr size_t kMostBytes = size_t{64} << 20;

  const BackendInfo& info() const override { return info_; }
  absl::StatusOr<void*> AllocateHost(size_t bytes) override {
    if (bytes > kMostBytes) {
      return MakeError(absl::StatusCode::kResourceExhausted, reason::kStateBudgetExhausted, "no such memory");
    }
    return Backend::AllocateHost(bytes);
  }

  absl::Status Projection(const ProjectionParams&) override { return NoOperators(); }
  absl::Status QkvzSplit(const QkvzSplitParams&) override { return NoOperators(); }
  absl::Status CausalConv1d(const CausalConv1dParams&) override { return NoOperators(); }
  absl::Status Gating(const GatingParams&) override { return NoOperators(); }
  absl::Status QkL2Norm(const QkL2NormParams&) override { return NoOperators(); }
  absl::Status DeltaRuleChunk(const DeltaRuleParams&) override { return NoOperators(); }
  absl::Status DeltaRuleScan(const DeltaRuleParams&) override { return NoOperators(); }
  absl::Status DeltaRuleDecode(const DeltaRuleDecodeParams&) override { return NoOperators(); }
  absl::Status MaterializeState(const MaterializeStateParams&) override { return NoOperators(); }
  absl::Status GatedRmsNorm(const GatedRmsNormParams&) override { return NoOperators(); }

 private:
  static absl::Status NoOperators() { return absl::UnimplementedError("this backend only has memory"); }
  BackendInfo info_;
};

// Returns a pool that is never destroyed, because a fuzz target does not end.
inline HostBlockPool& Memory() {
  static auto* const backend = new MemoryBackend;
  static auto* const pool = new HostBlockPool(*backend, /*keep_bytes=*/int64_t{16} << 20);
  return *pool;
}

}  // namespace gdn::fuzz
