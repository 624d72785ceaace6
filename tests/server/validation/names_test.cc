#include "server/validation/names.h"

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"
#include "tests/support/assert_ok.h"

namespace gdn::names_test {
namespace {

const std::string kLongestId(kMaxSessionIdLength, 'a');
const std::string kTooLongId(kMaxSessionIdLength + 1, 'a');

TEST(Names, IdsComeOutOfNamesAsTheyWentIn) {
  for (const std::string& id : {std::string("a"), std::string("A.b_c~d-9"), std::string("..."), kLongestId}) {
    EXPECT_EQ(*ParseSessionName(SessionName(id)), id);
    EXPECT_EQ(*ParseModelName(ModelName(id)), id);
    EXPECT_TRUE(CheckSessionId(id).ok());
  }
  EXPECT_EQ(SessionName("a"), "sessions/a");
  EXPECT_EQ(ModelName("a"), "models/a");
}

TEST(Names, MalformedNamesAreRefusedWithTheFieldAndValue) {
  for (const std::string& name :
       {std::string(), std::string("a"), std::string("sessions/"), std::string("session/a"), std::string("models/a"),
        std::string("Sessions/a"), std::string("/sessions/a"), std::string("sessions/a/b"), std::string("sessions/a b"),
        std::string("sessions/a\n"), std::string("sessions/\xc3\xa4"), std::string("sessions/a\0b", 12),
        "sessions/" + kTooLongId}) {
    const absl::Status status = ParseSessionName(name).status();
    ExpectError(status, absl::StatusCode::kInvalidArgument, reason::kInvalidName, name);
    EXPECT_EQ(ErrorMetadata(status).at("field"), "session");
  }
  EXPECT_EQ(ErrorMetadata(ParseModelName("sessions/a").status()).at("field"), "model");
  EXPECT_EQ(ErrorMetadata(ParseModelName("sessions/a").status()).at("value"), "sessions/a");
}

TEST(Names, AnErrorShowsAPrintableBeginningOfTheValue) {
  const absl::Status status = ParseSessionName("sessions/\x01\xff" + std::string(100'000, 'x')).status();
  EXPECT_LT(status.message().size(), 300u);
  for (const char c : status.message()) EXPECT_TRUE(c >= ' ' && c <= '~');
}

TEST(Names, ChosenIdsMayBeEmptyButNotWrong) {
  EXPECT_TRUE(CheckSessionId("").ok());
  EXPECT_TRUE(CheckRequestId("").ok());
  EXPECT_TRUE(CheckAffinity("").ok());
  EXPECT_EQ(ErrorMetadata(CheckSessionId("a/b")).at("field"), "session_id");
  EXPECT_EQ(ErrorReason(CheckSessionId(kTooLongId)), reason::kInvalidName);
  EXPECT_TRUE(CheckRequestId(std::string(kMaxRequestIdLength, 'r')).ok());
  EXPECT_EQ(ErrorMetadata(CheckRequestId(std::string(kMaxRequestIdLength + 1, 'r'))).at("field"), "request_id");
  EXPECT_EQ(ErrorReason(CheckRequestId("r r")), reason::kInvalidName);
}

TEST(Names, AnAffinityIsAnyPrintableText) {
  EXPECT_TRUE(CheckAffinity("tenant 7 / group #3").ok());
  EXPECT_TRUE(CheckAffinity(std::string(kMaxAffinityLength, ' ')).ok());
  for (const std::string& bad : {std::string(kMaxAffinityLength + 1, 'a'), std::string("tab\t"),
                                 std::string("\xc3\xa4"), std::string("nul\0", 4)}) {
    EXPECT_EQ(ErrorReason(CheckAffinity(bad)), reason::kInvalidName);
    EXPECT_EQ(ErrorMetadata(CheckAffinity(bad)).at("field"), "affinity");
  }
}

}  // namespace
}  // namespace gdn::names_test
