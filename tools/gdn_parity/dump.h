// Writes the inputs, attributes and outputs of parity rows to files, for a checker that shares no code with the
// references (scripts/check_parity_dump.py). One safetensors file a row: tensors "in.NAME" and "out.NAME" (float32;
// indices too, exact below 2^24), metadata "op", "suite", "test", "shape", "tolerance" and the operator's attributes.
//
// Off until a directory is set. Thread safety: for one thread. Ownership: the directory must exist.
//
//   GDN_RETURN_IF_ERROR(SetDumpDirectory(absl::GetFlag(FLAGS_dump)));  // main
//   SetDumpRow(c.suite, c.test, c.shape, c.tolerance);  // before a case runs
//   GDN_RETURN_IF_ERROR(Dump("l2norm", {{"epsilon", "1e-06"}}, {{"in.x", {n, width}, x}, {"out.y", {n, width}, y}}));
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace gdn::parity {

using Attributes = std::map<std::string, std::string>;
using Shape = std::vector<int64_t>;

struct DumpTensor {
  std::string name;  // "in.x", "out.y"
  Shape shape;
  std::vector<float> values;
};

// Sets the folder for dumps; empty: off. INVALID_ARGUMENT if it is not a folder that can be written to.
absl::Status SetDumpDirectory(std::string directory);
bool Dumping();
// Sets the case that later dumps belong to.
void SetDumpRow(const std::string& suite, const std::string& test, const std::string& shape, double tolerance);

// Writes DIRECTORY/NNNN-op.safetensors, NNNN counted from 0000; does nothing if dumps are off. Errors of
// SerializeSafetensors and WriteOutputFile.
absl::Status Dump(const std::string& op, const Attributes& attributes, const std::vector<DumpTensor>& tensors);

}  // namespace gdn::parity
