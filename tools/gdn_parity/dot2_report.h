// Says for people what a device's Dot2 computes: the variant that it answers like, or how it differs from the nearest.
//
// Thread safety: pure functions.
//
//   GDN_ASSIGN_OR_RETURN(const std::vector<float> answers, gpu::AskDot2(stream));
//   std::cout << Dot2Report(answers);
#pragma once

#include <string>
#include <vector>

namespace gdn::parity {

// `answers`: to gpu::Dot2Questions(). The first line is "dot2: " and the variant's name or "like no known variant". If
// there is none, the report has the answers that agree with each variant, and the first ones that differ from the
// nearest.
std::string Dot2Report(const std::vector<float>& answers);

}  // namespace gdn::parity
