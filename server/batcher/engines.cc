#include "server/batcher/engines.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "base/threads/steady_clock.h"

namespace gdn {

void Engines::SetWeight(const std::string& account, double weight) {
  for (const auto& batcher : batchers_) batcher->SetWeight(account, weight);
}

absl::Status Engines::Submit(std::vector<Part> parts, Batcher::Where where) {
  Part& last = parts.back();
  if (parts.size() == 1) return at(last.device).Submit(std::move(last.job), where);
  std::vector<Batcher::Place> places;
  for (const Part& part : parts) {
    GDN_ASSIGN_OR_RETURN(places.emplace_back(), at(part.device).TakePlace());
  }
  // Only the last job may run on this thread, after the others were handed to their engines.
  for (size_t i = 0; i + 1 < parts.size(); ++i) {
    std::move(places[i]).Submit(std::move(parts[i].job), Batcher::Where::kEngineThread);
  }
  std::move(places.back()).Submit(std::move(last.job), where);
  return absl::OkStatus();
}

bool Engines::Drain(absl::Duration timeout) {
  const SteadyTime end = SteadyNow() + timeout;
  for (const auto& batcher : batchers_) batcher->RefuseSteps();
  bool drained = true;
  for (const auto& batcher : batchers_) {
    drained &= batcher->Drain(std::max(end - SteadyNow(), absl::ZeroDuration()));
  }
  return drained;
}

size_t Engines::queued_steps() const {
  size_t steps = 0;
  for (const auto& batcher : batchers_) steps += batcher->queued_steps();
  return steps;
}

}  // namespace gdn
