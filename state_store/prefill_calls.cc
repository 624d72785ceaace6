#include "state_store/prefill_calls.h"

namespace gdn {

PrefillCalls PrefillCalls::Other() {
  PrefillCalls calls;
  calls.only_prefills_ = false;
  return calls;
}

PrefillCalls PrefillCalls::Then(int64_t tokens) const {
  PrefillCalls calls = *this;
  if (!only_prefills_ || tokens == 0) return calls;
  Hasher hasher;
  hasher.UpdateInt(static_cast<int64_t>(digest_.high));
  hasher.UpdateInt(static_cast<int64_t>(digest_.low));
  hasher.UpdateInt(tokens);
  calls.digest_ = hasher.Finish();
  return calls;
}

}  // namespace gdn
