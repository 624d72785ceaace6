// Every operator on every backend: bad params get the error of the operator's check, whole and before anything runs.

#include "gtest/gtest.h"
#include "kernels/backend.h"
#include "tests/support/test_backend.h"

namespace gdn::operators_test {
namespace {

using Operators = BackendTest;
GDN_ON_BACKENDS(Operators, WithGpus({"cpu", "null"}));

TEST_P(Operators, RefuseParamsAsTheirChecksDo) {
#define GDN_EXPECT_REFUSED(Name, Params, Check) \
  ASSERT_FALSE(Check(Params{}).ok()) << #Name;  \
  EXPECT_EQ(backend().Name(Params{}), Check(Params{})) << #Name;
  GDN_OPERATORS(GDN_EXPECT_REFUSED)
  GDN_EXPECT_REFUSED(MixerInput, MixerInputParams, ValidateMixerInput)
  GDN_EXPECT_REFUSED(MixedDecode, MixedDecodeParams, ValidateMixedDecode)
  GDN_EXPECT_REFUSED(Convert, ConvertParams, ValidateConvert)
#undef GDN_EXPECT_REFUSED
  const ProjectionParams bad;
  EXPECT_EQ(backend().Projections({&bad, 1}), ValidateProjection(bad));
}

}  // namespace
}  // namespace gdn::operators_test
