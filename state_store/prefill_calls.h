// By which calls a state has come from zero to where it is: prefills alone, cut where, or in another way.
//
// The bits of a state follow from its inputs and from where the prefill calls that brought them ended
// (ARCHITECTURE.md, "Batching never changes an answer"). So states of equal inputs and equal calls are equal.
// Thread safety: plain values. Ownership: none.
//
//   PrefillCalls calls;                             // of a state that has seen nothing
//   calls = calls.Then(2048).Then(100);             // two prefills
//   if (calls == PrefillCalls().Then(2048).Then(100)) { ... }
#pragma once

#include <cstdint>

#include "base/hash.h"

namespace gdn {

class PrefillCalls {
 public:
  PrefillCalls() = default;
  // Decodes, states that came from elsewhere, or nobody knows.
  static PrefillCalls Other();

  // One more prefill; of no tokens: the same.
  PrefillCalls Then(int64_t tokens) const;
  bool only_prefills() const { return only_prefills_; }

  // What came in another way equals nothing.
  friend bool operator==(const PrefillCalls& a, const PrefillCalls& b) {
    return a.only_prefills_ && b.only_prefills_ && a.digest_ == b.digest_;
  }

 private:
  Hash128 digest_;
  bool only_prefills_ = true;
};

}  // namespace gdn
