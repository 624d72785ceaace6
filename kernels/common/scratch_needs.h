// How much scratch CPU operators of decodes and folds take of a ScratchArena (worker_scratch.h), in floats, by the
// formula that the operator itself uses. Params are valid.
//
// Thread safety: free functions. Ownership: none.
//
//   GDN_RETURN_IF_ERROR(arena.Reserve(ScratchFloats(params, pool.threads())));
#pragma once

#include <cstdint>

namespace gdn {

struct DeltaRuleDecodeParams;
struct MaterializeStateParams;
struct ProjectionParams;

// 0 for a projection that takes the GEMM, which serves prefills alone and allocates for itself.
int64_t ScratchFloats(const ProjectionParams& params, int threads);
int64_t ScratchFloats(const DeltaRuleDecodeParams& params, int threads);
int64_t ScratchFloats(const MaterializeStateParams& params, int threads);

}  // namespace gdn
