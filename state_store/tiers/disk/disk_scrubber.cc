#include "state_store/tiers/disk/disk_scrubber.h"

#include <algorithm>
#include <utility>

#include <spdlog/spdlog.h>

#include "absl/time/clock.h"

namespace gdn {
namespace {

using DamageOutcome = TierStack::DamageOutcome;

// Longest wait until the scrubber looks again.
constexpr absl::Duration kLook = absl::Seconds(1);
constexpr absl::Duration kShortest = absl::Milliseconds(10);

const char* Consequence(DamageOutcome outcome) {
  switch (outcome) {
    case DamageOutcome::kGone:
      break;
    case DamageOutcome::kCopyUsed:
      return "another copy has taken its place";
    case DamageOutcome::kNotDurable:
      return "the session goes on, and its next checkpoint writes it anew";
    case DamageOutcome::kLost:
      return "there is no other copy: calls for the session get DATA_LOSS; if it has a named checkpoint, restore that "
             "with RestoreCheckpoint; otherwise delete the session and create it again";
  }
  return "";
}

}  // namespace

DiskScrubber::DiskScrubber(DiskScrubberParts parts, const DiskScrubberOptions& options)
    : parts_(std::move(parts)), options_(options) {}

ScrubCounts DiskScrubber::counts() const {
  absl::MutexLock lock(&mu_);
  return counts_;
}

absl::Duration DiskScrubber::UntilIdle(SteadyTime now) {
  const ScrubActivity activity = parts_.activity();
  if (activity.busy || activity.work != work_) idle_since_ = now;
  work_ = activity.work;
  return std::max(options_.idle_after - (now - idle_since_), activity.busy ? kShortest : absl::ZeroDuration());
}

absl::Duration DiskScrubber::Step() {
  const SteadyTime now = options_.clock->Now();
  // A file that was replaced or removed takes up disk space as long as it is open.
  if (check_ != nullptr && !check_->IsThere()) EndState(/*verified=*/false);
  if (const absl::Duration wait = UntilIdle(now); wait > absl::ZeroDuration())
    return std::clamp(wait, kShortest, kLook);
  if (now < due_) return std::min(due_ - now, kLook);
  if (check_ == nullptr && !OpenNext(now)) return std::clamp(next_pass_ - now, kShortest, kLook);
  if (check_ != nullptr) Read(now);
  return std::clamp(due_ - now, absl::ZeroDuration(), kLook);
}

bool DiskScrubber::OpenNext(SteadyTime now) {
  if (!in_pass_) {
    if (now < next_pass_) return false;
    next_pass_ = now + options_.pass_every;
    in_pass_ = true;
    key_.reset();
  }
  key_ = parts_.disk.NextKey(key_);
  if (!key_.has_value()) {
    in_pass_ = false;
    Count([](ScrubCounts& counts) { counts.last_pass = absl::Now(); });
    return false;
  }
  if (!parts_.disk.damage(*key_).ok()) {
    // The state was set aside before. By now another tier may have a copy of it.
    const DamageOutcome outcome =
        parts_.tiers.HandleDamage(parts_.disk, *key_, [this] { return !parts_.disk.damage(*key_).ok(); });
    if (outcome == DamageOutcome::kCopyUsed)
      spdlog::info("disk scrubber: {}: {}", key_->ToString(), Consequence(outcome));
    return true;
  }
  files_ = parts_.disk.PathsOf(*key_);
  std::ranges::reverse(files_);
  OpenFile();
  return true;
}

void DiskScrubber::OpenFile() {
  check_ = nullptr;
  if (files_.empty()) return EndState(/*verified=*/true);
  absl::StatusOr<std::unique_ptr<FileCheck>> check = FileCheck::Open(*key_, files_.back());
  files_.pop_back();
  if (check.ok()) {
    check_ = *std::move(check);
    return;
  }
  EndState(/*verified=*/false);
  if (absl::IsNotFound(check.status())) return;  // the session has ended or moved meanwhile
  parts_.disk.CountFailure(check.status());
  spdlog::warn("disk scrubber: {} is passed over: {}", key_->ToString(), std::string(check.status().message()));
}

void DiskScrubber::EndState(bool verified) {
  check_ = nullptr;
  files_.clear();
  if (verified) Count([](ScrubCounts& counts) { ++counts.verified_states; });
}

void DiskScrubber::Read(SteadyTime now) {
  const int64_t before = check_->read_bytes();
  const absl::StatusOr<bool> whole = check_->Advance(kPieceBytes);
  const int64_t bytes = check_->read_bytes() - before;
  Count([bytes](ScrubCounts& counts) { counts.verified_bytes += bytes; });
  due_ = std::max(due_, now) +
         absl::Seconds(1) * (static_cast<double>(bytes) / static_cast<double>(options_.bytes_per_second));
  if (whole.ok()) {
    if (*whole) OpenFile();
    return;
  }
  if (absl::IsDataLoss(whole.status())) return Handle(whole.status());
  EndState(/*verified=*/false);
  if (!absl::IsUnavailable(whole.status())) return;  // undamaged, but of a build that this one refuses
  parts_.disk.CountFailure(whole.status());
  spdlog::warn("disk scrubber: {} cannot be read, look at the disk (dmesg, smartctl): {}", key_->ToString(),
               std::string(whole.status().message()));
}

void DiskScrubber::Handle(const absl::Status& damage) {
  const StateKey key = *key_;
  const std::string path = check_->path();
  const DamageOutcome outcome = parts_.tiers.HandleDamage(parts_.disk, key, [&] {
    const absl::StatusOr<bool> aside = parts_.disk.SetAside(key, *check_, damage);
    if (!aside.ok()) {
      spdlog::error("disk scrubber: {} is damaged and could not be set aside: {}", key.ToString(),
                    std::string(aside.status().message()));
    }
    return aside.ok() && *aside;
  });
  EndState(/*verified=*/false);
  if (outcome == DamageOutcome::kGone) return;
  Count([outcome](ScrubCounts& counts) {
    ++(outcome == DamageOutcome::kCopyUsed     ? counts.copy_used
       : outcome == DamageOutcome::kNotDurable ? counts.not_durable
                                               : counts.lost);
  });
  spdlog::warn(
      "disk scrubber: the state of {} on the disk is damaged: {}. It was set aside as {}; {}. Look at the disk "
      "(dmesg, smartctl)",
      key.ToString(), std::string(damage.message()), DiskFolder::AsidePath(path), Consequence(outcome));
  if (outcome == DamageOutcome::kNotDurable) parts_.on_not_durable(key);
}

}  // namespace gdn
