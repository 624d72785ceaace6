#include "base/error.h"

#include <regex>
#include <vector>

#include "gdn/v1/errors.pb.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_folder.h"

namespace gdn::error_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAreArray;

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

// The reasons in base/error.h and server/security/reasons.h are those that the API documents.
TEST(ErrorReasons, OfTheSourceAreTheNamesOfTheApiWithoutTheirPrefix) {
  constexpr char kPrefix[] = "ERROR_REASON_";
  std::vector<std::string> documented;
  const auto* values = v1::ErrorReason_descriptor();
  for (int i = 0; i < values->value_count(); ++i) {
    const std::string& name = values->value(i)->name();
    ASSERT_EQ(name.rfind(kPrefix, 0), 0u) << name;
    if (values->value(i)->number() != v1::ERROR_REASON_UNSPECIFIED)
      documented.push_back(name.substr(sizeof(kPrefix) - 1));
  }
  const std::string text =
      ReadFile(GDN_SOURCE_DIR "/base/error.h") + ReadFile(GDN_SOURCE_DIR "/server/security/reasons.h");
  const std::regex constant(R"re(constexpr std::string_view k\w+ = "(\w+)";)re");
  std::vector<std::string> written;
  for (auto it = std::sregex_iterator(text.begin(), text.end(), constant); it != std::sregex_iterator(); ++it) {
    written.push_back((*it)[1]);
  }
  ASSERT_GT(written.size(), 30u) << "the header is written otherwise now; read it otherwise";
  EXPECT_THAT(written, UnorderedElementsAreArray(documented));
}

}  // namespace
}  // namespace gdn::error_test
