// The reasons in base/error.h are those that the API documents.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "gdn/v1/errors.pb.h"

namespace gdn {
namespace {

constexpr char kPrefix[] = "ERROR_REASON_";

TEST(ErrorReasons, OfTheSourceAreTheNamesOfTheApiWithoutTheirPrefix) {
  std::vector<std::string> documented;
  const auto* values = v1::ErrorReason_descriptor();
  for (int i = 0; i < values->value_count(); ++i) {
    const std::string& name = values->value(i)->name();
    ASSERT_EQ(name.rfind(kPrefix, 0), 0u) << name;
    if (values->value(i)->number() != v1::ERROR_REASON_UNSPECIFIED)
      documented.push_back(name.substr(sizeof(kPrefix) - 1));
  }
  std::stringstream header;
  header << std::ifstream(GDN_SOURCE_DIR "/base/error.h").rdbuf();
  const std::string text = header.str();
  const std::regex constant(R"re(constexpr std::string_view k\w+ = "(\w+)";)re");
  std::vector<std::string> written;
  for (auto it = std::sregex_iterator(text.begin(), text.end(), constant); it != std::sregex_iterator(); ++it) {
    written.push_back((*it)[1]);
  }
  ASSERT_GT(written.size(), 30u) << "the header is written otherwise now; read it otherwise";
  EXPECT_THAT(written, ::testing::UnorderedElementsAreArray(documented));
}

}  // namespace
}  // namespace gdn
