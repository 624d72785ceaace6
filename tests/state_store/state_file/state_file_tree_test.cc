// Drafts that are trees in state files: a version of their own, whole files and deltas.
#include "base/error.h"
#include "base/files/safetensors.h"
#include "gtest/gtest.h"
#include "state_store/state_file/image.h"
#include "state_store/state_file/parse.h"
#include "tests/state_store/test_image.h"
#include "tests/support/assert_ok.h"

namespace gdn::state_file_tree_test {
namespace {

TestSession WithTree() {
  TestSession session = MakeModelSession();
  session.layers[2].extent.draft_parents = {-1, 0, 0};
  session.header.accept_request_id = "verdict";
  session.header.accepted_tokens = 2;
  session.header.accepted_path = {0, 2};
  return session;
}

TestSession Read(const std::string& bytes) {
  const auto owner = std::make_shared<const std::string>(bytes);
  return TakeApart(*ReadImage(*ParseStateFile(*owner), *StateLayout::Make(kModelDims, 8), owner));
}

std::string VersionOf(const std::string& bytes) {
  return SafetensorsFile::Parse(bytes)->metadata().at("format_version");
}

TEST(StateFileTree, RoundTripsInAVersionOfItsOwn) {
  TestMemory memory;
  TestSession session = WithTree();
  const std::string bytes = Encode(session, memory.host, {});
  EXPECT_EQ(VersionOf(bytes), "5") << "others would take the tree for a chain";
  const TestSession read = Read(bytes);
  ExpectSame(read, session);
  EXPECT_EQ(read.layers[2].extent.draft_parents, session.layers[2].extent.draft_parents);
  EXPECT_EQ(read.header.accepted_path, session.header.accepted_path);
  session.layers[2].extent.draft_parents.clear();
  EXPECT_EQ(VersionOf(Encode(session, memory.host, {})), "2");
}

TEST(StateFileTree, GoesThroughDeltas) {
  TestMemory memory;
  TestSession session = WithTree();
  for (size_t i = 0; i < session.layers.size(); ++i) session.layers[i].base_version = 100 + i;
  const auto full = EncodeStateFile(MakeImage(session, memory.host), {});
  const std::string delta =
      FileBytes(*EncodeStateFile(MakeImage(session, memory.host), {.base_snapshot_id = full->snapshot_id(),
                                                                   .known_bases = {{0, 100}, {2, 101}, {11, 102}}}));
  GDN_ASSERT_OK_AND_ASSIGN(const auto merged, MergeDelta(FileBytes(*full), delta));
  EXPECT_EQ(VersionOf(merged), "5");
  EXPECT_EQ(Read(merged).layers[2].extent.draft_parents, session.layers[2].extent.draft_parents);
}

TEST(StateFileTree, ThatIsNoneIsNotWritten) {
  TestMemory memory;
  for (const std::vector<int32_t>& parents : {std::vector<int32_t>{-1, 0}, {-1, 1, 0}, {-1, 0, -2}}) {
    TestSession session = WithTree();
    session.layers[2].extent.draft_parents = parents;
    EXPECT_EQ(EncodeStateFile(MakeImage(session, memory.host), {}).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace gdn::state_file_tree_test
