// Launches that bring their kernels' code to the device and run nothing: a runtime may load code when it is first
// launched, and have no memory for it then.
//
// Thread safety: of the calling thread. Ownership: none.
//
//   { const LoadingOnly loading; GDN_RETURN_IF_ERROR(GatingGpu(params, stream)); }  // nothing is computed
#pragma once

namespace gdn::gpu {

// While one lives, the thread's launches only load.
class LoadingOnly {
 public:
  LoadingOnly() { active_ = true; }
  LoadingOnly(const LoadingOnly&) = delete;
  ~LoadingOnly() { active_ = false; }

  static bool active() { return active_; }

  // While it lives, launches run all the same.
  class Paused {
   public:
    Paused() : was_active_(active_) { active_ = false; }
    Paused(const Paused&) = delete;
    ~Paused() { active_ = was_active_; }

   private:
    const bool was_active_;
  };

 private:
  static inline thread_local bool active_ = false;
};

}  // namespace gdn::gpu
