// A packed matrix that is not whole, or that the config contradicts, is refused by name.
#include <cmath>
#include <functional>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/checkpoint/packed_tensors.h"
#include "tests/server/checkpoint/packed_matrix.h"

namespace gdn::packed_refusals_test {
namespace {

using ::testing::HasSubstr;

TEST(PackedTensors, WhatIsNotWholeOrContradictsTheConfigIsRefusedByName) {
  struct Case {
    std::string what;
    std::function<void(PackedMatrix&)> make;
    std::vector<std::string> message;
  };
  const auto int4 = [](PackedMatrix& p) { p.Int4(32, /*symmetric=*/true, DType::kBF16); };
  const auto float1 = [](float value) { return TestTensor::Filled(DType::kF32, {1}, value); };
  const Case cases[] = {
      {"no scales",
       [&](PackedMatrix& p) {
         int4(p);
         p.Erase("weight_scale");
       },
       {"out_proj.weight_packed'", "is INT4 and has no", "out_proj.weight_scale'", "expected a scale for each group"}},
      {"no shape",
       [&](PackedMatrix& p) {
         int4(p);
         p.Erase("weight_shape");
       },
       {"has no", "out_proj.weight_shape'"}},
      {"another shape",
       [&](PackedMatrix& p) {
         int4(p);
         p["weight_shape"] = TensorOf("I64", {2}, std::vector<int64_t>{p.rows, p.cols + 8});
       },
       {"out_proj.weight_shape'", "says [64, 136]", "expected [64, 128]"}},
      {"cut",
       [&](PackedMatrix& p) {
         int4(p);
         p["weight_packed"] = TensorOf("I32", {p.rows, 8}, std::vector<int32_t>(64 * 8));
       },
       {"out_proj.weight_packed'", "[64, 8]", "expected [64, 16]"}},
      {"groups that do not divide a row",
       [&](PackedMatrix& p) {
         int4(p);
         p["weight_scale"] = TestTensor::Filled(DType::kBF16, {64, 3}, 1.0f);
       },
       {"out_proj.weight_scale'", "[64, 3]", "divide a row of 128"}},
      {"an order of activations",
       [&](PackedMatrix& p) {
         int4(p);
         p["weight_g_idx"] = TensorOf("I32", {128}, std::vector<int32_t>(128));
       },
       {"out_proj.weight_g_idx'", "activations", "convert"}},
      {"zero points that the config does not have",
       [](PackedMatrix& p) {
         p.Int4(32, /*symmetric=*/false, DType::kBF16);
         p.checkpoint.config["quantization_config"]["config_groups"]["group_0"]["weights"]["symmetric"] = true;
       },
       {"out_proj.weight'", "asymmetric", "config_groups says: 4 bits, int, symmetric"}},
      {"another group",
       [&](PackedMatrix& p) {
         int4(p);
         p.checkpoint.config["quantization_config"]["config_groups"]["group_0"]["weights"]["group_size"] = 128;
       },
       {"groups of 32", "groups of 128"}},
      {"another format",
       [&](PackedMatrix& p) {
         int4(p);
         p.checkpoint.config["quantization_config"]["format"] = "marlin-24";
       },
       {"out_proj.weight'", "is INT4", "'marlin-24'"}},
      {"an ignored module",
       [&](PackedMatrix& p) {
         int4(p);
         p.checkpoint.config["quantization_config"]["ignore"] = {"lm_head", kPackedModule};
       },
       {"out_proj.weight'", "not quantised", "fetch both anew"}},
      {"integers of another size",
       [&](PackedMatrix& p) {
         int4(p);
         p["weight_packed"] = TensorOf("I16", {64, 32}, std::vector<int16_t>(64 * 32));
       },
       {"out_proj.weight_packed'", "is I16", "expected I32 (INT4) or U8 (NVFP4)"}},
      {"both names",
       [&](PackedMatrix& p) {
         int4(p);
         p["weight"] = TestTensor::Filled(DType::kF32, {64, 128}, 1.0f);
       },
       {"out_proj.weight_packed'", "expected one of the two"}},
      {"a scale that is no number",
       [](PackedMatrix& p) {
         p.Int8(DType::kF32);
         p["weight_scale"] = TestTensor::Filled(DType::kF32, {64, 1}, NAN);
       },
       {"scale 0 of INT8", "nan", "fetch or convert"}},
      {"a scale that is too large",
       [](PackedMatrix& p) {
         p.Fp8({1}, DType::kF32);
         p["weight_scale"] = TestTensor::Filled(DType::kF32, {1}, 3e38f);
       },
       {"scale 0 of FP8", "too large"}},
      {"a weight that is no number",
       [](PackedMatrix& p) {
         p.Fp8({1}, DType::kF32);
         p["weight"].data[130] = '\x7f';
       },
       {"element [1, 2] is no number"}},
      {"scales by column",
       [](PackedMatrix& p) {
         p.Fp8({1}, DType::kF32);
         p["weight_scale"] = TestTensor::Filled(DType::kF32, {1, 128}, 1.0f);
       },
       {"out_proj.weight_scale'", "[1, 128]", "expected [1], [64, 1] or [1, 1]"}},
      {"eight-bit integers with zero points",
       [](PackedMatrix& p) {
         p.Int8(DType::kF32);
         p["weight_zero_point"] = TensorOf("I8", {64, 1}, std::vector<int8_t>(64));
       },
       {"out_proj.weight_zero_point'", "symmetric"}},
      {"NVFP4 without its global scale",
       [](PackedMatrix& p) {
         p.Nvfp4(false);
         p.Erase("weight_global_scale");
       },
       {"is NVFP4 and has no", "out_proj.weight_global_scale'"}},
      {"NVFP4 with a global scale of nothing",
       [&](PackedMatrix& p) {
         p.Nvfp4(false);
         p["weight_global_scale"] = float1(0.0f);
       },
       {"of NVFP4"}},
      {"MXFP4",
       [](PackedMatrix& p) {
         p.Nvfp4(false);
         p["weight_scale"] = TensorOf("U8", {64, 4}, std::vector<uint8_t>(256));
       },
       {"out_proj.weight_scale'", "is U8", "expected F8_E4M3"}},
      {"ModelOpt's AWQ",
       [](PackedMatrix& p) {
         p.Nvfp4(true);
         p["pre_quant_scale"] = TestTensor::Filled(DType::kF32, {128}, 1.0f);
       },
       {"out_proj.pre_quant_scale'", "ModelOpt AWQ"}},
  };
  for (const Case& c : cases) {
    PackedMatrix packed;
    c.make(packed);
    const absl::Status status = ReadBack(packed.checkpoint).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.what << ": " << status;
    for (const std::string& part : c.message) EXPECT_THAT(std::string(status.message()), HasSubstr(part)) << c.what;
  }
}

}  // namespace
}  // namespace gdn::packed_refusals_test
