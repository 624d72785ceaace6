#include "server/session/session_state.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>

#include "base/error.h"
#include "tests/server/session_test_support.h"

namespace gdn {
namespace {

class SessionStateTest : public ::testing::Test {
 protected:
  // Puts recognisable numbers, as many log entries and a count into the index-th layer.
  void Fill(const std::shared_ptr<Session>& session, size_t index, int64_t token_count, int32_t log_length) {
    auto lease = session->LockAll();
    ASSERT_TRUE(lease.ok());
    const LayerDims& dims = session->spec().dims;
    SlotImage image;
    const auto numbers = [&](int64_t count) {
      std::vector<float> values(static_cast<size_t>(count));
      std::iota(values.begin(), values.end(), static_cast<float>(index) + 0.5f);
      return values;
    };
    image.base = numbers(dims.state_elements());
    image.log_k = numbers(log_length * dims.key_features());
    image.log_u = numbers(log_length * dims.value_features());
    image.log_g = numbers(log_length * dims.value_heads);
    if (dims.has_layer()) image.conv = numbers(dims.conv_channels() * (dims.conv_width - 1));
    ASSERT_TRUE(world_.backend->WriteSlot(session->slots().view(), lease->TakeSlot(index), token_count, image).ok());
    lease->SetLayer(index, {.token_count = token_count, .log_length = log_length}, InputKind::kHiddenStates);
  }
  std::string Export(const std::shared_ptr<Session>& session) {
    auto lease = session->LockAll();
    const auto file = ExportSession(*world_.backend, *lease, /*include_recurrent_state=*/false);
    EXPECT_TRUE(file.ok()) << file.status();
    return file.value_or("");
  }

  SessionWorld world_;
};

TEST_F(SessionStateTest, AModelsSparseLayersComeBackAsTheyWere) {
  const auto session = world_.MakeSession(ModelSessionSpec());  // layers 1, 2, 5
  Fill(session, 0, /*token_count=*/20, /*log_length=*/4);
  Fill(session, 2, /*token_count=*/7, /*log_length=*/0);
  const std::string file = Export(session);
  const auto snapshot = DecodeSnapshot(file);
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  ASSERT_EQ(snapshot->layers.size(), 2u);
  EXPECT_EQ(snapshot->layers[0].layer, 1);
  EXPECT_EQ(snapshot->layers[1].layer, 5);
  EXPECT_TRUE(CheckSnapshotFits(*snapshot, session->spec()).ok());

  const auto restored = world_.MakeSession(ModelSessionSpec(), "b");
  {
    auto lease = restored->LockAll();
    ASSERT_TRUE(RestoreSession(*world_.backend, *snapshot, *lease).ok());
    EXPECT_EQ(lease->slot(1), -1) << "a layer that saw nothing takes no slot";
  }
  EXPECT_EQ(Export(restored), file);
  EXPECT_EQ(restored->Layers()[0].progress.log_length, 4);
  EXPECT_EQ(restored->Layers()[2].progress.token_count, 7);
  EXPECT_EQ(restored->Layers()[2].kind, InputKind::kHiddenStates);
}

TEST_F(SessionStateTest, ASnapshotOfSomethingElseDoesNotFit) {
  const auto session = world_.MakeSession(ModelSessionSpec());
  Fill(session, 0, 20, 4);
  const Snapshot snapshot = DecodeSnapshot(Export(session)).value();
  const auto field = [](const Snapshot& s, const SessionSpec& spec) {
    const absl::Status status = CheckSnapshotFits(s, spec);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(ErrorReason(status), reason::kStateMismatch);
    return ErrorMetadata(status)["field"];
  };
  SessionSpec spec = ModelSessionSpec();
  spec.fingerprint = "g";
  EXPECT_EQ(field(snapshot, spec), "model_fingerprint");
  spec = ModelSessionSpec();
  spec.dims.value_dim = 16;
  EXPECT_EQ(field(snapshot, spec), "dims");
  spec = ModelSessionSpec();
  spec.layers = {2, 5};
  EXPECT_EQ(field(snapshot, spec), "layer");
  Snapshot full = snapshot;
  full.layers[0].log_length = kLogCapacity;
  EXPECT_EQ(field(full, ModelSessionSpec()), "log_length");
}

}  // namespace
}  // namespace gdn
