#include "base/random_id.h"

#include <set>

#include "gtest/gtest.h"

namespace gdn::random_id_test {
namespace {

TEST(RandomId, IsThirtyTwoLowerCaseDigitsAndNeverTheSame) {
  std::set<std::string> seen;
  for (int i = 0; i < 1000; ++i) {
    const std::string id = RandomId();
    ASSERT_EQ(id.size(), 32u);
    ASSERT_EQ(id.find_first_not_of("0123456789abcdef"), std::string::npos) << id;
    ASSERT_TRUE(seen.insert(id).second) << id;
  }
}

}  // namespace
}  // namespace gdn::random_id_test
