// Suite "phases", phases 5 to 8.

#include "tools/gdn_parity/phases_cases.h"

namespace gdn::parity {

void AddPhasesCases(std::vector<ParityCase>& cases) { AddChunkPhases(cases); }

}  // namespace gdn::parity
