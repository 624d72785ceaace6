// Session images for tests: makes them from parts in wire order, and takes them apart again.
//
// Thread safety: free functions; TestMemory as HostBlockPool. Ownership: images borrow the TestMemory.
//
//   TestMemory memory;
//   const TestSession session = MakeModelSession();
//   SessionImagePtr image = MakeImage(session, memory.host, {.max_draft = 4, .transposed_base = true});
//   ExpectSame(TakeApart(*image), session);
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/slot_codec.h"
#include "state_store/session_image.h"
#include "state_store/state_file/encode.h"
#include "state_store/tiers/state_tier.h"
#include "tests/support/assert_ok.h"
#include "tests/support/random.h"

namespace gdn {

struct TestMemory {
  TestMemory();
  std::unique_ptr<Backend> backend;
  HostBlockPool host;
};

struct TestLayer {
  int32_t layer = 0;
  SlotExtent extent;
  InputKind kind = InputKind::kDeltaRule;
  BaseVersion base_version = 0;
  bool has_base = true;
  std::vector<float> base, log_k, log_u, log_g, conv, draft_conv;  // as SlotView's
  StoredReplyPtr reply;

  SlotView view() const;
};

struct TestSession {
  SessionHeader header;
  std::string numerics_id = "cpu/\"avx2\"/1";
  std::vector<TestLayer> layers;
};

inline constexpr LayerDims kModelDims{
    .key_heads = 2, .value_heads = 4, .key_dim = 6, .value_dim = 5, .conv_width = 4, .hidden_size = 16};
inline constexpr LayerDims kOperatorDims{.key_heads = 1, .value_heads = 3, .key_dim = 4, .value_dim = 7};

// Dims whose tensors are large enough to have 4 KiB boundaries inside.
inline constexpr LayerDims kLargeDims{
    .key_heads = 2, .value_heads = 4, .key_dim = 32, .value_dim = 24, .conv_width = 4, .hidden_size = 16};

TestLayer MakeLayer(const LayerDims& dims, int32_t layer, const SlotExtent& extent, Random& random);
// Makes the reply to a step after which its layer had seen 41 tokens.
StoredReplyPtr MakeReply(std::string request_id, std::string output);
// Returns an output of `tokens` tokens in F32, with bytes that do not occur in text.
std::string RepliedBytes(const LayerDims& dims, int tokens);

// Makes 12 layers. Layers 0, 2 and 11 have states: no log; a log and a reply; a log, a draft and a reply.
TestSession MakeModelSession(uint64_t seed = 5);
TestSession MakeOperatorSession(uint64_t seed = 9);
// Makes state number `step` of session "s", with kLargeDims. The bases change every 8 steps, the logs with every step,
// and the epoch is step + 1. Equal numbers give equal states.
TestSession MakeStep(int64_t step);

struct TestImageOptions {
  int32_t max_draft = 8;
  bool transposed_base = false;
  DType base_dtype = DType::kF32;
};
SessionImagePtr MakeImage(const TestSession& session, HostBlockPool& blocks, const TestImageOptions& options = {});
TestSession TakeApart(const SessionImage& image);

// Returns the session with its bases rounded to bfloat16.
TestSession WithRoundedBases(TestSession session);
// Checks that both are equal, except base versions and has_base. Compares the owner's fields only if `owner` is true.
void ExpectSame(const TestSession& a, const TestSession& b, bool owner = false);
// Checks that the tier returns this session, with its owner's fields.
void ExpectLoads(StateTier& tier, const StateKey& key, const TestSession& session);
bool SameStates(const TestSession& a, const TestSession& b);

std::string FileBytes(const EncodedStateFile& file);
std::string Encode(const TestSession& session, HostBlockPool& blocks, const StateFileOptions& options = {});

}  // namespace gdn
