// Lets ThreadSanitizer see absl::Mutex and absl::CondVar. Linked into every program of the tsan preset, and into no
// other. Debian's Abseil is built without ThreadSanitizer, so its locks order nothing in the sanitizer's eyes, and all
// that they guard looks like a race. Defined here, these members take the place of the library's for the program and
// for the libraries it loads (gRPC among them): each tells the sanitizer what happens and calls the library's own.
// Suppressing the reports instead would hide real races. Await on a lock held by ReaderLock is not told apart from one
// held by Lock; nothing here does that.
#include <dlfcn.h>
#include <sanitizer/tsan_interface.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "absl/base/options.h"
#include "absl/synchronization/mutex.h"

namespace {

#define TSAN_STRING_INNER(x) #x
#define TSAN_STRING(x) TSAN_STRING_INNER(x)

// The library's definition of a member, by the part of its mangled name that follows the namespace.
template <typename Function>
Function* Library(const char* mangled) {
  constexpr const char* kNamespace = TSAN_STRING(ABSL_OPTION_INLINE_NAMESPACE_NAME);
  const std::string name = "_ZN4absl" + std::to_string(std::strlen(kNamespace)) + kNamespace + mangled;
  void* symbol = dlsym(RTLD_NEXT, name.c_str());
  if (symbol == nullptr) {
    std::fprintf(stderr, "%s: the Abseil library does not define %s\n", __FILE__, name.c_str());
    std::abort();
  }
  return reinterpret_cast<Function*>(symbol);
}

// Abseil implements some of these members by others; only the outermost is annotated.
thread_local int depth = 0;

struct Nested {
  const bool outermost = depth++ == 0;
  ~Nested() { --depth; }
};

template <typename Call>
void Locking(void* mu, unsigned flags, Call call) {
  Nested nested;
  if (nested.outermost) __tsan_mutex_pre_lock(mu, flags);
  call();
  if (nested.outermost) __tsan_mutex_post_lock(mu, flags, 0);
}

template <typename Call>
bool TryLocking(void* mu, unsigned flags, Call call) {
  Nested nested;
  if (nested.outermost) __tsan_mutex_pre_lock(mu, flags | __tsan_mutex_try_lock);
  const bool locked = call();
  if (nested.outermost)
    __tsan_mutex_post_lock(mu, flags | (locked ? __tsan_mutex_try_lock : __tsan_mutex_try_lock_failed), 0);
  return locked;
}

template <typename Call>
void Unlocking(void* mu, unsigned flags, Call call) {
  Nested nested;
  if (nested.outermost) __tsan_mutex_pre_unlock(mu, flags);
  call();
  if (nested.outermost) __tsan_mutex_post_unlock(mu, flags);
}

// Gives the lock up, waits, and has it again on return.
template <typename Call>
auto Waiting(void* mu, Call call) {
  Nested nested;
  if (nested.outermost) {
    __tsan_mutex_pre_unlock(mu, 0);
    __tsan_mutex_post_unlock(mu, 0);
    __tsan_mutex_pre_lock(mu, 0);
  }
  struct Relock {
    void* mu;
    bool outermost;
    ~Relock() {
      if (outermost) __tsan_mutex_post_lock(mu, 0, 0);
    }
  } relock{mu, nested.outermost};
  return call();
}

}  // namespace

namespace absl {
ABSL_NAMESPACE_BEGIN

Mutex::~Mutex() {
  static auto* const library = Library<void(Mutex*)>("5MutexD1Ev");
  library(this);
  __tsan_mutex_destroy(this, __tsan_mutex_not_static);
}

void Mutex::Lock() {
  static auto* const library = Library<void(Mutex*)>("5Mutex4LockEv");
  Locking(this, 0, [this] { library(this); });
}

void Mutex::Unlock() {
  static auto* const library = Library<void(Mutex*)>("5Mutex6UnlockEv");
  Unlocking(this, 0, [this] { library(this); });
}

bool Mutex::TryLock() {
  static auto* const library = Library<bool(Mutex*)>("5Mutex7TryLockEv");
  return TryLocking(this, 0, [this] { return library(this); });
}

void Mutex::ReaderLock() {
  static auto* const library = Library<void(Mutex*)>("5Mutex10ReaderLockEv");
  Locking(this, __tsan_mutex_read_lock, [this] { library(this); });
}

void Mutex::ReaderUnlock() {
  static auto* const library = Library<void(Mutex*)>("5Mutex12ReaderUnlockEv");
  Unlocking(this, __tsan_mutex_read_lock, [this] { library(this); });
}

bool Mutex::ReaderTryLock() {
  static auto* const library = Library<bool(Mutex*)>("5Mutex13ReaderTryLockEv");
  return TryLocking(this, __tsan_mutex_read_lock, [this] { return library(this); });
}

void Mutex::LockWhen(const Condition& cond) {
  static auto* const library = Library<void(Mutex*, const Condition&)>("5Mutex8LockWhenERKNS0_9ConditionE");
  Locking(this, 0, [&] { library(this, cond); });
}

bool Mutex::LockWhenWithDeadline(const Condition& cond, Time deadline) {
  static auto* const library =
      Library<bool(Mutex*, const Condition&, Time)>("5Mutex20LockWhenWithDeadlineERKNS0_9ConditionENS0_4TimeE");
  bool met = false;
  Locking(this, 0, [&] { met = library(this, cond, deadline); });
  return met;
}

bool Mutex::LockWhenWithTimeout(const Condition& cond, Duration timeout) {
  static auto* const library =
      Library<bool(Mutex*, const Condition&, Duration)>("5Mutex19LockWhenWithTimeoutERKNS0_9ConditionENS0_8DurationE");
  bool met = false;
  Locking(this, 0, [&] { met = library(this, cond, timeout); });
  return met;
}

void Mutex::Await(const Condition& cond) {
  static auto* const library = Library<void(Mutex*, const Condition&)>("5Mutex5AwaitERKNS0_9ConditionE");
  Waiting(this, [&] { library(this, cond); });
}

bool Mutex::AwaitWithDeadline(const Condition& cond, Time deadline) {
  static auto* const library =
      Library<bool(Mutex*, const Condition&, Time)>("5Mutex17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE");
  return Waiting(this, [&] { return library(this, cond, deadline); });
}

bool Mutex::AwaitWithTimeout(const Condition& cond, Duration timeout) {
  static auto* const library =
      Library<bool(Mutex*, const Condition&, Duration)>("5Mutex16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE");
  return Waiting(this, [&] { return library(this, cond, timeout); });
}

void CondVar::Wait(Mutex* mu) {
  static auto* const library = Library<void(CondVar*, Mutex*)>("7CondVar4WaitEPNS0_5MutexE");
  Waiting(mu, [&] { library(this, mu); });
}

bool CondVar::WaitWithDeadline(Mutex* mu, Time deadline) {
  static auto* const library =
      Library<bool(CondVar*, Mutex*, Time)>("7CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE");
  return Waiting(mu, [&] { return library(this, mu, deadline); });
}

bool CondVar::WaitWithTimeout(Mutex* mu, Duration timeout) {
  static auto* const library =
      Library<bool(CondVar*, Mutex*, Duration)>("7CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE");
  return Waiting(mu, [&] { return library(this, mu, timeout); });
}

ABSL_NAMESPACE_END
}  // namespace absl
