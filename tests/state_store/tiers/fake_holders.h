// TierHolders with one holder for each principal, each with the same share of bytes in every tier.
//
// Thread safety: safe from any thread. Ownership: must outlive the stack that uses it.
//
//   FakeHolders holders(/*share=*/200);
//   TierStack stack({&host, &disk}, {.holders = &holders});
//   EXPECT_THAT(holders.held(), ElementsAre(Pair("host p", 100)));
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "base/string_cat.h"
#include "state_store/tiers/tier_holders.h"

namespace gdn {

inline StateKey KeyOf(std::string principal, std::string id, std::string checkpoint = "") {
  return {.principal = std::move(principal), .id = std::move(id), .checkpoint = std::move(checkpoint)};
}

class FakeHolders final : public TierHolders {
 public:
  explicit FakeHolders(int64_t share) : share_(share) {}

  Holder HolderOf(const StateKey& key) override {
    absl::MutexLock lock(&mu_);
    auto& holder = holders_[key.principal];
    if (holder == nullptr) holder = std::make_shared<std::string>(key.principal);
    return holder;
  }
  std::shared_ptr<void> Charge(std::string_view tier, const StateKey& /*key*/, const Holder& holder,
                               int64_t bytes) override {
    const std::string line = LineOf(tier, holder);
    Add(line, bytes);
    return {nullptr, [this, line, bytes](void*) { Add(line, -bytes); }};
  }
  double SharesHeld(std::string_view tier, const Holder& holder) const override {
    absl::MutexLock lock(&mu_);
    const auto it = held_.find(LineOf(tier, holder));
    const int64_t bytes = it == held_.end() ? 0 : it->second;
    return std::max(1.0, static_cast<double>(bytes) / static_cast<double>(share_));
  }

  // Returns the bytes that are not 0, by "TIER PRINCIPAL".
  std::map<std::string, int64_t> held() const {
    absl::MutexLock lock(&mu_);
    return held_;
  }

 private:
  static std::string LineOf(std::string_view tier, const Holder& holder) {
    return StrCat(tier, " ", *std::static_pointer_cast<std::string>(holder));
  }
  void Add(const std::string& line, int64_t bytes) {
    absl::MutexLock lock(&mu_);
    if ((held_[line] += bytes) == 0) held_.erase(line);
  }

  const int64_t share_;
  mutable absl::Mutex mu_;
  std::map<std::string, std::shared_ptr<std::string>> holders_;
  std::map<std::string, int64_t> held_;
};

}  // namespace gdn
