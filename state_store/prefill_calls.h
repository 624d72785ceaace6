// Records which calls have built a state from zero: prefills only, with their boundaries, or anything else.
//
// The bits of a state depend on its inputs and on where the prefill calls ended (ARCHITECTURE.md, "Batching never
// changes an answer"). So states of equal inputs and equal calls are equal.
// Thread safety: plain values. Ownership: none.
//
//   PrefillCalls calls;                             // for a state that has seen no token
//   calls = calls.Then(2048).Then(100);             // two prefills
//   if (calls == PrefillCalls().Then(2048).Then(100)) { ... }
#pragma once

#include <cstdint>

#include "base/hash.h"

namespace gdn {

class PrefillCalls {
 public:
  PrefillCalls() = default;
  // Returns the value of a state that also had decodes, was imported, or whose calls are not known.
  static PrefillCalls Other();

  // Returns these calls and one more prefill of `tokens` tokens. A prefill of 0 tokens changes nothing, and Other()
  // stays Other().
  PrefillCalls Then(int64_t tokens) const;
  bool only_prefills() const { return only_prefills_; }

  // True if both are prefills only, with equal boundaries. Other() equals nothing, not even itself.
  friend bool operator==(const PrefillCalls& a, const PrefillCalls& b) {
    return a.only_prefills_ && b.only_prefills_ && a.digest_ == b.digest_;
  }

 private:
  Hash128 digest_;
  bool only_prefills_ = true;
};

}  // namespace gdn
