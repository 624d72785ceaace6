// Launches that only load their kernels' code to the device. A runtime may load code at a kernel's first launch, and
// that fails if memory is short then.
//
// Thread safety: affects the calling thread only. Ownership: none.
//
//   { const LoadingOnly loading; GDN_RETURN_IF_ERROR(GatingGpu(params, stream)); }  // nothing is computed
#pragma once

namespace gdn::gpu {

// While one lives, launches of its thread load the kernel's code and run nothing. They do not nest: the end of one ends
// the mode for the thread.
class LoadingOnly {
 public:
  LoadingOnly() { active_ = true; }
  LoadingOnly(const LoadingOnly&) = delete;
  ~LoadingOnly() { active_ = false; }

  static bool active() { return active_; }

  // While one lives, launches of its thread run as usual. Its end restores the mode that it found.
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
