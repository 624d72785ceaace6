#include "tests/state_store/test_image.h"

#include <utility>

#include "gtest/gtest.h"
#include "kernels/null/null_backend.h"
#include "tests/support/compare.h"

namespace gdn {

TestMemory::TestMemory() : backend(MakeNullBackend()), host(*backend, /*keep_bytes=*/int64_t{1} << 24) {}

SlotView TestLayer::view() const {
  return {.base = base, .log_k = log_k, .log_u = log_u, .log_g = log_g, .conv = conv, .draft_conv = draft_conv};
}

TestLayer MakeLayer(const LayerDims& dims, int32_t layer, const SlotExtent& extent, Random& random) {
  const int64_t entries = int64_t{extent.log_length} + extent.draft_length;
  TestLayer made;
  made.layer = layer;
  made.extent = extent;
  made.kind = dims.has_layer() ? InputKind::kHiddenStates : InputKind::kDeltaRule;
  made.base = random.Normal(dims.state_elements());
  made.log_k = random.Normal(entries * dims.key_features());
  made.log_u = random.Normal(entries * dims.value_features());
  made.log_g = random.Uniform(entries * dims.decay_features(), -3.0f, 0.0f);
  if (dims.conv_width > 0) {
    made.conv = random.Normal(dims.conv_channels() * (dims.conv_width - 1));
    made.draft_conv = random.Normal(dims.conv_channels() * extent.draft_length);
  }
  return made;
}

StoredReplyPtr MakeReply(std::string request_id, std::string output) {
  return std::make_shared<const StoredReply>(StoredReply{.request_id = std::move(request_id),
                                                         .payload = {.high = 0x0123456789abcdef, .low = 42},
                                                         .output = std::move(output),
                                                         .token_count = 41,
                                                         .compute_time_us = 1234});
}

std::string RepliedBytes(const LayerDims& dims, int tokens) {
  const int64_t features = dims.has_layer() ? dims.hidden_size : dims.value_features();
  std::string bytes("\x00\x01reply\xff", 8);
  bytes.resize(static_cast<size_t>(features * tokens) * sizeof(float), 'r');
  return bytes;
}

TestSession MakeModelSession(uint64_t seed) {
  Random random(seed);
  TestSession session;
  SessionHeader& header = session.header;
  header.principal = "ab12";
  header.id = "chat-1";
  header.affinity = "node~7";
  header.model = "qwen";
  header.family = "qwen3_next";
  header.fingerprint = "0123456789abcdef0123456789abcdef";
  header.dims = kModelDims;
  for (int32_t layer = 0; layer < 12; ++layer) header.layers.push_back(layer);
  header.request = {.high = 7, .low = 0xfedcba9876543210};
  header.epoch = 3;
  header.create_time = absl::FromUnixMillis(1'700'000'000'123);
  header.idle_ttl = absl::Seconds(90);
  header.accept_request_id = "accept~1";
  header.accepted_tokens = 2;
  session.layers.push_back(MakeLayer(kModelDims, 0, {.token_count = 37}, random));
  session.layers.push_back(MakeLayer(kModelDims, 2, {.token_count = 41, .log_length = 4}, random));
  session.layers.push_back(
      MakeLayer(kModelDims, 11, {.token_count = int64_t{1} << 40, .log_length = 15, .draft_length = 3}, random));
  session.layers[1].reply = MakeReply("step-41", RepliedBytes(kModelDims, 2));
  session.layers[2].reply = MakeReply("step-1", "");
  return session;
}

TestSession MakeOperatorSession(uint64_t seed) {
  Random random(seed);
  TestSession session;
  session.header.id = "op";
  session.header.dims = kOperatorDims;
  session.header.layers = {0};
  session.layers.push_back(MakeLayer(kOperatorDims, 0, {.token_count = 9, .log_length = 3, .draft_length = 2}, random));
  return session;
}

TestSession MakeStep(int64_t step) {
  TestSession session;
  session.header.id = "s";
  session.header.dims = kLargeDims;
  session.header.layers = {0, 1};
  session.header.epoch = step + 1;
  for (const int32_t layer : session.header.layers) {
    Random bases(static_cast<uint64_t>(step / 8 * 2 + layer));
    Random logs(static_cast<uint64_t>(1000000 + step * 2 + layer));
    session.layers.push_back(
        MakeLayer(kLargeDims, layer, {.token_count = step + 8, .log_length = static_cast<int32_t>(step % 8)}, logs));
    session.layers.back().base = bases.Normal(kLargeDims.state_elements());
    session.layers.back().base_version = static_cast<BaseVersion>(step / 8 + 1);
  }
  return session;
}

SessionImagePtr MakeImage(const TestSession& session, HostBlockPool& blocks, const TestImageOptions& options) {
  auto image = std::make_shared<SessionImage>();
  image->header = session.header;
  image->numerics_id = session.numerics_id;
  image->layout = StateLayout::Make(session.header.dims, options.max_draft, options.base_dtype).value();
  image->transposed_base = options.transposed_base;
  for (const TestLayer& layer : session.layers) {
    LayerImage& made = image->layers.emplace_back();
    made.layer = layer.layer;
    made.extent = layer.extent;
    made.kind = layer.kind;
    made.base_version = layer.base_version;
    made.has_base = layer.has_base;
    made.reply = layer.reply;
    made.slot = blocks.Take(static_cast<size_t>(image->layout.slot_bytes())).value();
    FillSlot(image->layout, options.transposed_base, layer.extent, layer.view(), made.slot.floats());
    // A base that was not copied has unknown contents.
    if (!layer.has_base) std::fill_n(made.slot.floats(), image->layout.log_k_offset(), -77.0f);
  }
  return image;
}

TestSession WithRoundedBases(TestSession session) {
  for (TestLayer& layer : session.layers) {
    RoundElements(DType::kBF16, layer.base.data(), static_cast<int64_t>(layer.base.size()));
  }
  return session;
}

TestSession TakeApart(const SessionImage& image) {
  TestSession session;
  session.header = image.header;
  session.numerics_id = image.numerics_id;
  for (const LayerImage& layer : image.layers) {
    std::vector<float> scratch;
    const SlotView view = ViewLayer(image, layer, /*base=*/true, scratch);
    const auto copy = [](absl::Span<const float> part) { return std::vector<float>(part.begin(), part.end()); };
    session.layers.push_back({.layer = layer.layer,
                              .extent = layer.extent,
                              .kind = layer.kind,
                              .base_version = layer.base_version,
                              .has_base = layer.has_base,
                              .base = view.base_bf16.empty() ? copy(view.base) : std::vector<float>(),
                              .log_k = copy(view.log_k),
                              .log_u = copy(view.log_u),
                              .log_g = copy(view.log_g),
                              .conv = copy(view.conv),
                              .draft_conv = copy(view.draft_conv),
                              .reply = layer.reply});
    std::vector<float>& base = session.layers.back().base;
    if (view.base_bf16.empty()) continue;
    base.resize(view.base_bf16.size());
    ConvertToFloat(DType::kBF16, view.base_bf16.data(), base.size(), base.data());
  }
  return session;
}

namespace {

bool SameLayer(const TestLayer& a, const TestLayer& b) {
  const bool replies = a.reply == nullptr || b.reply == nullptr ? a.reply == b.reply : *a.reply == *b.reply;
  return replies && a.layer == b.layer && a.extent == b.extent && a.kind == b.kind && BitEqual(a.base, b.base) &&
         BitEqual(a.log_k, b.log_k) && BitEqual(a.log_u, b.log_u) && BitEqual(a.log_g, b.log_g) &&
         BitEqual(a.conv, b.conv) && BitEqual(a.draft_conv, b.draft_conv);
}

}  // namespace

bool SameStates(const TestSession& a, const TestSession& b) {
  if (a.layers.size() != b.layers.size()) return false;
  for (size_t i = 0; i < a.layers.size(); ++i) {
    if (!SameLayer(a.layers[i], b.layers[i])) return false;
  }
  return a.header.epoch == b.header.epoch && a.header.accept_request_id == b.header.accept_request_id;
}

void ExpectSame(const TestSession& a, const TestSession& b, bool owner) {
  EXPECT_EQ(a.numerics_id, b.numerics_id);
  EXPECT_EQ(a.header.model, b.header.model);
  EXPECT_EQ(a.header.family, b.header.family);
  EXPECT_EQ(a.header.fingerprint, b.header.fingerprint);
  EXPECT_EQ(a.header.dims, b.header.dims);
  EXPECT_EQ(a.header.epoch, b.header.epoch);
  EXPECT_EQ(a.header.accept_request_id, b.header.accept_request_id);
  EXPECT_EQ(a.header.accepted_tokens, b.header.accepted_tokens);
  if (owner) {
    EXPECT_EQ(a.header.principal, b.header.principal);
    EXPECT_EQ(a.header.id, b.header.id);
    EXPECT_EQ(a.header.affinity, b.header.affinity);
    EXPECT_EQ(a.header.layers, b.header.layers);
    EXPECT_EQ(a.header.request, b.header.request);
    EXPECT_EQ(a.header.create_time, b.header.create_time);
    EXPECT_EQ(a.header.idle_ttl, b.header.idle_ttl);
    EXPECT_EQ(a.header.max_lifetime, b.header.max_lifetime);
    EXPECT_EQ(a.header.lease, b.header.lease);
    EXPECT_EQ(a.header.lease_grace, b.header.lease_grace);
  }
  ASSERT_EQ(a.layers.size(), b.layers.size());
  for (size_t i = 0; i < a.layers.size(); ++i) {
    EXPECT_TRUE(SameLayer(a.layers[i], b.layers[i])) << "layer " << a.layers[i].layer;
  }
}

void ExpectLoads(StateTier& tier, const StateKey& key, const TestSession& session) {
  const absl::StatusOr<SessionImagePtr> loaded = tier.Load(key);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  ExpectSame(TakeApart(**loaded), session, /*owner=*/true);
}

std::string FileBytes(const EncodedStateFile& file) {
  std::string bytes;
  for (const std::string_view piece : file.pieces()) bytes += piece;
  EXPECT_EQ(static_cast<int64_t>(bytes.size()), file.bytes());
  return bytes;
}

std::string Encode(const TestSession& session, HostBlockPool& blocks, const StateFileOptions& options) {
  const auto file = EncodeStateFile(MakeImage(session, blocks), options);
  EXPECT_TRUE(file.ok()) << file.status();
  return FileBytes(*file);
}

}  // namespace gdn
