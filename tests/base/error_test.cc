#include "base/error.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gdn {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

absl::Status Sample() {
  return MakeError(absl::StatusCode::kNotFound, reason::kSessionNotFound, "no session named 'a'",
                   {{"session", "a"}, {"layer", "3"}});
}

TEST(Error, CarriesCodeMessageReasonAndMetadata) {
  const absl::Status status = Sample();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(status.message(), "no session named 'a'");
  EXPECT_EQ(ErrorReason(status), "SESSION_NOT_FOUND");
  EXPECT_THAT(ErrorMetadata(status), ElementsAre(Pair("layer", "3"), Pair("session", "a")));
}

TEST(Error, PlainAndOkStatusesHaveNoReason) {
  for (const absl::Status& status : {absl::OkStatus(), absl::InternalError("x")}) {
    EXPECT_EQ(ErrorReason(status), "");
    EXPECT_THAT(ErrorMetadata(status), IsEmpty());
  }
}

TEST(Error, MetadataIsAddedAndReplaced) {
  absl::Status status = WithMetadata(Sample(), "session", "b");
  status = WithMetadata(status, "token", "9");
  EXPECT_THAT(ErrorMetadata(status), ElementsAre(Pair("layer", "3"), Pair("session", "b"), Pair("token", "9")));
  EXPECT_EQ(ErrorReason(status), reason::kSessionNotFound);
  EXPECT_TRUE(WithMetadata(absl::OkStatus(), "k", "v").ok());
}

TEST(Error, PrefixKeepsEverythingElse) {
  const absl::Status status = WithPrefix(Sample(), "row 4");
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(status.message(), "row 4: no session named 'a'");
  EXPECT_EQ(ErrorReason(status), reason::kSessionNotFound);
  EXPECT_EQ(ErrorMetadata(status), ErrorMetadata(Sample()));
  EXPECT_TRUE(WithPrefix(absl::OkStatus(), "row 4").ok());
}

TEST(Error, ValuesMayHoldAnyBytes) {
  const std::string value("a\0b/\xff", 5);
  const absl::Status status = WithMetadata(Sample(), "odd/key", value);
  EXPECT_EQ(ErrorMetadata(status).at("odd/key"), value);
}

}  // namespace
}  // namespace gdn
