// The switch between stacks of one thread, on which the SIMT executor's fibers run.
//
// On x86-64 a switch saves the registers that a called function must preserve, and no floating-point modes: kernels do
// not change them, and saving them takes most of a switch's time in Boost.Context. Boost.Context switches on other
// processors, and under AddressSanitizer, so that both forms are tested.
// Thread safety: a fiber stays on the thread that made it. Ownership: a Fiber does not own its stack.
//
//   fiber = MakeFiber(stack_top, stack_bytes, [] { ...; SwitchFiber(fiber, main); });
//   SwitchFiber(main, fiber);
#pragma once

#include <cstddef>

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__)
#define GDN_OWN_FIBER_SWITCH 1
#else
#define GDN_OWN_FIBER_SWITCH 0
#endif

namespace gdn::gpu::simt {

// `context`: where the fiber goes on, valid while it does not run. `entry`: where it begins.
struct Fiber {
  void* context = nullptr;
  void (*entry)() = nullptr;
};

// Makes a fiber that runs `entry`, which must not return, on the stack of `bytes` below `top`.
Fiber MakeFiber(char* top, size_t bytes, void (*entry)());

#if GDN_OWN_FIBER_SWITCH
extern "C" void gdn_simt_switch(void** left, void* to);

// Leaves the running context, which `left` keeps, and returns when another switch comes back to it.
inline void SwitchFiber(Fiber& left, const Fiber& to) { gdn_simt_switch(&left.context, to.context); }
#else
void SwitchFiber(Fiber& left, const Fiber& to);
#endif

}  // namespace gdn::gpu::simt
