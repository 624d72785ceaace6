// Session images for tests: made from parts in wire order, and taken apart again.
//
// Thread safety: free functions; a TestMemory as HostBlockPool. Ownership: images borrow the TestMemory.
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

// Of a size that has 4 KiB boundaries inside tensors.
inline constexpr LayerDims kLargeDims{
    .key_heads = 2, .value_heads = 4, .key_dim = 32, .value_dim = 24, .conv_width = 4, .hidden_size = 16};

TestLayer MakeLayer(const LayerDims& dims, int32_t layer, const SlotExtent& extent, Random& random);
// The reply to a step after which its layer had seen 41 tokens.
StoredReplyPtr MakeReply(std::string request_id, std::string output);
// An output of so many tokens in F32, with bytes that text has not.
std::string RepliedBytes(const LayerDims& dims, int tokens);

// 12 layers, of which 0, 2 and 11 have states: no log, a log, a log and a draft. Layers 2 and 11 have a stored reply.
TestSession MakeModelSession(uint64_t seed = 5);
TestSession MakeOperatorSession(uint64_t seed = 9);
// State number `step` of session "s", of kLargeDims: the bases change every 8 steps, the logs with each, and the epoch
// is step + 1. Everything follows from the number.
TestSession MakeStep(int64_t step);

struct TestImageOptions {
  int32_t max_draft = 8;
  bool transposed_base = false;
  DType base_dtype = DType::kF32;
};
SessionImagePtr MakeImage(const TestSession& session, HostBlockPool& blocks, const TestImageOptions& options = {});
TestSession TakeApart(const SessionImage& image);

// What a server with bases of bfloat16 makes of the session: they are rounded.
TestSession WithRoundedBases(TestSession session);
// Everything but base versions and has_base; the owner's fields only where `owner`.
void ExpectSame(const TestSession& a, const TestSession& b, bool owner = false);
// The tier gives the session back, with its owner.
void ExpectLoads(StateTier& tier, const StateKey& key, const TestSession& session);
bool SameStates(const TestSession& a, const TestSession& b);

std::string FileBytes(const EncodedStateFile& file);
std::string Encode(const TestSession& session, HostBlockPool& blocks, const StateFileOptions& options = {});

}  // namespace gdn
