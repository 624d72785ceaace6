#include "kernels/qkvz_split/qkvz_split.h"

#include <numeric>

#include "gmock/gmock.h"
#include "tests/support/refusal.h"
#include "tests/support/test_backend.h"

namespace gdn::qkvz_split_test {
namespace {

using testing::ElementsAre;

struct Outputs {
  std::vector<float> mixed_qkv, z, b, a;
};

class QkvzSplit : public BackendTest {
 protected:
  // Inputs count up from 0 (qkvz) and 1000 (ba), so that every output says where it came from.
  Outputs Split(ProjectionLayout layout, const LayerDims& dims, int64_t rows) {
    std::vector<float> qkvz(rows * (dims.conv_channels() + dims.value_features())), ba(rows * 2 * dims.value_heads);
    std::iota(qkvz.begin(), qkvz.end(), 0.0f);
    std::iota(ba.begin(), ba.end(), 1000.0f);
    Outputs out{std::vector<float>(rows * dims.conv_channels()), std::vector<float>(rows * dims.value_features()),
                std::vector<float>(rows * dims.value_heads), std::vector<float>(rows * dims.value_heads)};
    EXPECT_EQ(backend().QkvzSplit({.layout = layout,
                                   .dims = dims,
                                   .rows = rows,
                                   .qkvz = qkvz.data(),
                                   .ba = ba.data(),
                                   .mixed_qkv = out.mixed_qkv.data(),
                                   .z = out.z.data(),
                                   .b = out.b.data(),
                                   .a = out.a.data()}),
              absl::OkStatus());
    return out;
  }
};
GDN_ON_EVERY_BACKEND(QkvzSplit);

// Two key heads of K = 1, each with two value heads of V = 1.
constexpr LayerDims kTiny{
    .key_heads = 2, .value_heads = 4, .key_dim = 1, .value_dim = 1, .conv_width = 4, .hidden_size = 8};

TEST_P(QkvzSplit, InterleavedGathersEachPartFromItsKeyHeads) {
  // A row is [q0 k0 v0 v1 z0 z1 | q1 k1 v2 v3 z2 z3] and [b0 b1 a0 a1 | b2 b3 a2 a3].
  const Outputs out = Split(ProjectionLayout::kInterleaved, kTiny, 1);
  EXPECT_THAT(out.mixed_qkv, ElementsAre(0, 6, 1, 7, 2, 3, 8, 9));
  EXPECT_THAT(out.z, ElementsAre(4, 5, 10, 11));
  EXPECT_THAT(out.b, ElementsAre(1000, 1001, 1004, 1005));
  EXPECT_THAT(out.a, ElementsAre(1002, 1003, 1006, 1007));
}

TEST_P(QkvzSplit, FlatCutsTheRowInFour) {
  const Outputs out = Split(ProjectionLayout::kFlat, kTiny, 1);
  EXPECT_THAT(out.mixed_qkv, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(out.z, ElementsAre(8, 9, 10, 11));
  EXPECT_THAT(out.b, ElementsAre(1000, 1001, 1002, 1003));
  EXPECT_THAT(out.a, ElementsAre(1004, 1005, 1006, 1007));
}

TEST_P(QkvzSplit, NoRowsAreNoWork) { EXPECT_TRUE(Split(ProjectionLayout::kFlat, kTiny, 0).mixed_qkv.empty()); }

TEST(QkvzSplitParams, BadOnesAreRefusedByName) {
  float data[64] = {};
  ExpectRefused<QkvzSplitParams>(
      ValidateQkvzSplit,
      {.dims = kTiny, .rows = 1, .qkvz = data, .ba = data, .mixed_qkv = data, .z = data, .b = data, .a = data},
      {{"a is null", [](auto& p) { p.a = nullptr; }},
       {"", [](auto& p) { p.dims.value_heads = 3; }},
       {"need no split", [](auto& p) { p.dims.decay = DecayKind::kPerChannel; }}});
}

}  // namespace
}  // namespace gdn::qkvz_split_test
