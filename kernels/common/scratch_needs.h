// Scratch that the CPU operators of decodes and folds take from a ScratchArena (worker_scratch.h), in floats, by the
// same formula that the operators use. Params must be valid.
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

// 0 for a projection by GEMM: GEMMs serve only prefills, which allocate their own memory.
int64_t ScratchFloats(const ProjectionParams& params, int threads);
int64_t ScratchFloats(const DeltaRuleDecodeParams& params, int threads);
int64_t ScratchFloats(const MaterializeStateParams& params, int threads);

}  // namespace gdn
