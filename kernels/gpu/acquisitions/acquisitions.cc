#include "kernels/gpu/acquisitions/acquisitions.h"

#include <atomic>
#include <set>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/error.h"

namespace gdn {
namespace {

constexpr int64_t kNotCounting = -1;

std::atomic<int64_t> asked{kNotCounting};
std::atomic<int64_t> first_to_fail{0};
std::atomic<bool> all_after_fail{false};

// Kernels whose code is on the device.
struct LoadedCode {
  absl::Mutex mu;
  std::set<std::string> kernels ABSL_GUARDED_BY(mu);
};

LoadedCode& TheLoadedCode() {
  static auto* const loaded = new LoadedCode();  // never destroyed: streams may outlive main
  return *loaded;
}

}  // namespace

void Acquisitions::Fail(const Failing& failing) {
  first_to_fail = failing.first;
  all_after_fail = failing.all_after;
  asked = 0;
}

int64_t Acquisitions::Stop() { return asked.exchange(kNotCounting); }

bool Acquisitions::MayAcquire() {
  int64_t number = asked.load();
  do {
    if (number == kNotCounting) return true;
  } while (!asked.compare_exchange_weak(number, number + 1));
  return all_after_fail ? number < first_to_fail : number != first_to_fail;
}

absl::Status Acquisitions::Acquire(const char* what) {
  if (MayAcquire()) return absl::OkStatus();
  return MakeError(absl::StatusCode::kResourceExhausted, reason::kStateBudgetExhausted,
                   absl::StrCat("a test has ", what, " fail"));
}

absl::Status Acquisitions::AcquireCode(const std::string& kernel) {
  LoadedCode& loaded = TheLoadedCode();
  absl::MutexLock lock(&loaded.mu);
  if (loaded.kernels.contains(kernel)) return absl::OkStatus();
  absl::Status status = Acquire("a kernel's code");
  if (status.ok()) loaded.kernels.insert(kernel);
  return status;
}

void Acquisitions::ForgetCode() {
  LoadedCode& loaded = TheLoadedCode();
  absl::MutexLock lock(&loaded.mu);
  loaded.kernels.clear();
}

}  // namespace gdn
