// The runner of binary operations, for rows that follow one by a reduction.
//
// Thread safety: free functions.
//
//   GDN_ASSIGN_OR_RETURN(Difference worst, RunBinary({"add", BinaryOp::kAdd}, 1000, false, backend, random));
#pragma once

#include <cstdint>

#include "kernels/primitives/elementwise/elementwise.h"
#include "tools/gdn_parity/parity_case.h"

namespace gdn::parity {

struct NamedBinary {
  const char* name;
  BinaryOp op;
};

CaseResult RunBinary(const NamedBinary& binary, int64_t count, bool in_place, Backend& backend, RandomTensor& random);

}  // namespace gdn::parity
