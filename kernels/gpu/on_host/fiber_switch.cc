#include "kernels/gpu/on_host/fiber_switch.h"

#include <cstdint>

#if !GDN_OWN_FIBER_SWITCH
#include <boost/context/detail/fcontext.hpp>
#endif

namespace gdn::gpu::simt {

#if GDN_OWN_FIBER_SWITCH

// Pushes the preserved registers, keeps the stack pointer in *left, takes that of the other context and its registers.
// It ends in a jump, because the processor would predict the target of a return from another stack wrongly.
asm(R"(
  .pushsection .text
  .p2align 4
  .globl gdn_simt_switch
  .hidden gdn_simt_switch
  .type gdn_simt_switch, @function
gdn_simt_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  popq %rcx
  jmp *%rcx
  .size gdn_simt_switch, .-gdn_simt_switch
  .popsection
)");

Fiber MakeFiber(char* top, size_t /*bytes*/, void (*entry)()) {
  constexpr int kRegisters = 6;
  auto* word = reinterpret_cast<uintptr_t*>(reinterpret_cast<uintptr_t>(top) & ~uintptr_t{15});
  *--word = 0;  // where a return address would be: at its entry, a function's stack is 8 bytes off a multiple of 16
  *--word = reinterpret_cast<uintptr_t>(entry);
  for (int i = 0; i < kRegisters; ++i) *--word = 0;
  return {word, entry};
}

#else

namespace {

using boost::context::detail::transfer_t;

thread_local Fiber* leaving = nullptr;  // keeps the context that the switch under way leaves

void Begin(transfer_t from) {
  leaving->context = from.fctx;
  static_cast<const Fiber*>(from.data)->entry();
}

}  // namespace

Fiber MakeFiber(char* top, size_t bytes, void (*entry)()) {
  return {boost::context::detail::make_fcontext(top, bytes, Begin), entry};
}

void SwitchFiber(Fiber& left, const Fiber& to) {
  leaving = &left;
  const transfer_t back = boost::context::detail::jump_fcontext(to.context, const_cast<Fiber*>(&to));
  leaving->context = back.fctx;
}

#endif

}  // namespace gdn::gpu::simt
