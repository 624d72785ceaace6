#include "server/session/room/state_copier.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "base/error.h"
#include "server/session/session_errors.h"
#include "tests/server/session/tiered_world.h"
#include "tests/support/assert_ok.h"

namespace gdn::state_copier_test {
namespace {

TEST(StateCopy, LeavesOutBasesThatAreKnownAndRefusesToComeBackWithoutThem) {
  TieredWorld world;
  const auto a = world.Make("a", 5);
  SessionLease lease = a->TryLock();
  GDN_ASSERT_OK_AND_ASSIGN(const auto whole, world.copier.CopyOut(lease, {}));
  const BaseVersions known{{0, whole->layers[0].base_version}, {1, whole->layers[1].base_version + 1}};
  GDN_ASSERT_OK_AND_ASSIGN(const auto part, world.copier.CopyOut(lease, known));
  EXPECT_FALSE(part->layers[0].has_base);
  EXPECT_TRUE(part->layers[1].has_base) << "another version is not the same base";
  const int64_t tail = part->layout.log_k_offset();
  EXPECT_EQ(part->layers[0].slot.floats()[tail], TieredWorld::MarkOf(5, 0).tail);

  lease.Unload();
  EXPECT_EQ(world.store.used_bytes(), 0);
  const auto refused = world.copier.CopyIn(*part, world.store.Reserve(world.spec.dims, 2).value(), lease);
  EXPECT_EQ(ErrorReason(refused), reason::kInternal);
  EXPECT_FALSE(lease.resident());
  EXPECT_EQ(world.store.used_bytes(), 0) << "an error takes nothing";
  ASSERT_TRUE(world.copier.CopyIn(*whole, world.store.Reserve(world.spec.dims, 2).value(), lease).ok());
  EXPECT_EQ(ReadContents(lease, 0), TieredWorld::MarkOf(5, 0));
  EXPECT_EQ(lease.Describe("").layers[0].base_version, whole->layers[0].base_version) << "the same bits, the same name";
}

TEST(StateCopy, LayersWithoutAStateTakeClaimsAndNoCopy) {
  TieredWorld world({.layers = 3, .device_sessions = 1});
  const auto a = world.Make("a");
  ASSERT_TRUE(Decode(AdmitStep(a, PlainStep(1)), {.base = 4, .tail = 4}, /*fold=*/true).ok());
  const auto b = world.Make("b");
  EXPECT_EQ(world.PlaceOf(a), "host");
  GDN_ASSERT_OK_AND_ASSIGN(const auto pin, world.PinOne(a));
  EXPECT_TRUE(AdmitStep(a, PlainStep(0)).fresh());
  EXPECT_EQ(ReadContents(AdmitStep(a, PlainStep(1))), (Contents{4, 4}));
  for (int layer = 0; layer < 3; ++layer) {
    EXPECT_TRUE(Decode(AdmitStep(a, PlainStep(layer)), {.base = 5, .tail = 5}, /*fold=*/true).ok());
  }
}

TEST(StateCopy, RepliesTravelWithTheSession) {
  TieredWorld world({.device_sessions = 1});
  const auto a = world.Make("a");
  StepRequest request = PlainStep(1);
  request.request_id = "r";
  request.payload = HashBytes("p");
  auto reply = std::make_shared<StoredReply>();
  reply->output = "kept";
  ASSERT_TRUE(Decode(AdmitStep(a, request), {.tail = 1}, false, reply).ok());
  EXPECT_EQ(world.environment.replies().bytes(), 4);
  const auto b = world.Make("b");
  EXPECT_EQ(world.PlaceOf(a), "host");
  EXPECT_EQ(world.environment.replies().bytes(), 0) << "it counts where it is";
  const auto pin = world.PinOne(a);
  const auto again = a->Admit(pin->Another(), request, nullptr);
  ASSERT_TRUE(again.ok() && again->stored != nullptr);
  EXPECT_EQ(again->stored->output, "kept");
  EXPECT_EQ(world.environment.replies().bytes(), 4);
}

TEST(StateCopy, AStateOfSomethingElseDoesNotFit) {
  const SessionSpec spec = ModelSessionSpec();
  SessionHeader header;
  header.fingerprint = spec.fingerprint;
  header.dims = spec.dims;
  EXPECT_TRUE(CheckStateFits(header, {1, 5}, spec).ok());
  const auto field = [&](const SessionHeader& found, const std::vector<int32_t>& layers) {
    const absl::Status status = CheckStateFits(found, layers, spec);
    ExpectError(status, absl::StatusCode::kFailedPrecondition, reason::kStateMismatch);
    return ErrorMetadata(status)["field"];
  };
  EXPECT_EQ(field(header, {1, 3}), "layer");
  SessionHeader other = header;
  other.fingerprint = "g";
  EXPECT_EQ(field(other, {1}), "model_fingerprint");
  other = header;
  other.dims.value_dim = 16;
  EXPECT_EQ(field(other, {1}), "dims");
}

TEST(StateCopy, AStateOfOtherHeadsDoesNotFit) {
  SessionSpec spec = ModelSessionSpec();
  spec.slice = {.heads = {.first = 0, .count = 2, .total = 4}, .model_fingerprint = "f"};
  spec.fingerprint = SliceFingerprint("f", spec.slice.heads);
  SessionHeader header;
  header.dims = spec.dims;
  const auto field = [&] { return ErrorMetadata(CheckStateFits(header, {1}, spec))["field"]; };
  header.fingerprint = spec.fingerprint;
  header.slice = spec.slice;
  EXPECT_TRUE(CheckStateFits(header, {1}, spec).ok());
  header.slice.heads.first = 2;
  header.fingerprint = SliceFingerprint("f", header.slice.heads);
  EXPECT_EQ(field(), "heads");
  header.slice = {};
  header.fingerprint = "f";  // all heads of the same model
  EXPECT_EQ(field(), "heads");
  header.fingerprint = "g";
  EXPECT_EQ(field(), "model_fingerprint");
}

}  // namespace
}  // namespace gdn::state_copier_test
