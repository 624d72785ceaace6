// gdn.h: pools and their slots.

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "capi/handles.h"
#include "kernels/common/contract.h"
#include "kernels/common/slot_set.h"

namespace gdn::capi {
namespace {

constexpr int32_t kDefaultMaxDecodeTokens = 8;
constexpr size_t kMemoryAlignment = 64;

absl::StatusOr<DType> StateDType(int32_t dtype) {
  if (dtype == 0 || dtype == GDN_F32) return DType::kF32;
  if (dtype == GDN_BF16) return DType::kBF16;
  return Invalid(reason::kInvalidSpec, "state_dtype",
                 absl::StrCat("gdn_pool_spec: state_dtype is ", dtype, "; expected 0, GDN_F32 (1) or GDN_BF16 (3)"));
}

absl::StatusOr<DecayKind> DecayOf(const gdn_pool_spec& spec) {
  if (spec.decay == GDN_DECAY_PER_HEAD) return DecayKind::kPerHead;
  const auto invalid = [&](const char* expected) {
    return Invalid(reason::kInvalidSpec, "decay",
                   absl::StrCat("gdn_pool_spec: decay is ", spec.decay, "; expected ", expected));
  };
  if (spec.decay != GDN_DECAY_PER_CHANNEL) return invalid("GDN_DECAY_PER_HEAD (0) or GDN_DECAY_PER_CHANNEL (1)");
  if (spec.conv_width > 0) return invalid("GDN_DECAY_PER_HEAD (0) with a convolution");
  return DecayKind::kPerChannel;
}

absl::StatusOr<StateLayout> LayoutOf(const char* function, const gdn_pool_spec* spec) {
  GDN_RETURN_IF_ERROR(
      RequireStruct(function, "gdn_pool_spec", spec, spec == nullptr ? 0 : spec->struct_size, sizeof(*spec)));
  GDN_ASSIGN_OR_RETURN(const DecayKind decay, DecayOf(*spec));
  GDN_RETURN_IF_ERROR(RequireRange("gdn_pool_spec", "slots", spec->slots, 1, int64_t{1} << 30));
  GDN_RETURN_IF_ERROR(RequireRange("gdn_pool_spec", "max_decode_tokens", spec->max_decode_tokens, 0, kMaxDraftLimit));
  GDN_ASSIGN_OR_RETURN(const DType dtype, StateDType(spec->state_dtype));
  const LayerDims dims{.key_heads = spec->key_heads,
                       .value_heads = spec->value_heads,
                       .key_dim = spec->key_dim,
                       .value_dim = spec->value_dim,
                       .conv_width = spec->conv_width,
                       .hidden_size = spec->hidden_size,
                       .decay = decay};
  return StateLayout::Make(dims, spec->max_decode_tokens == 0 ? kDefaultMaxDecodeTokens : spec->max_decode_tokens,
                           dtype);
}

absl::Status UseCallersMemory(const gdn_pool_spec& spec, gdn_pool& pool) {
  GDN_RETURN_IF_ERROR(RequireArgument("gdn_pool_create", "token_counts", spec.token_counts));
  GDN_RETURN_IF_ERROR(RequireArgument("gdn_pool_create", "log_lengths", spec.log_lengths));
  if (reinterpret_cast<uintptr_t>(spec.memory) % kMemoryAlignment != 0) {
    return Invalid(reason::kInvalidTensorData, "memory",
                   absl::StrCat("gdn_pool_create: memory is not aligned to ", kMemoryAlignment,
                                " bytes, as device and host allocations of tensor libraries are"));
  }
  const size_t needed = static_cast<size_t>(spec.slots) * static_cast<size_t>(pool.view.layout.slot_bytes());
  if (spec.memory_bytes != 0 && spec.memory_bytes < needed) {
    return Invalid(
        reason::kInvalidTensorData, "memory_bytes",
        absl::StrCat("gdn_pool_create: memory_bytes is ", spec.memory_bytes, "; expected at least ", needed,
                     ", as gdn_pool_bytes says of ", spec.slots, " slots of ", spec.key_heads, " key heads, ",
                     spec.value_heads, " value heads, key dimension ", spec.key_dim, " and value dimension ",
                     spec.value_dim, "; is one of these not the one that the memory was made for?"));
  }
  pool.view.data = static_cast<float*>(spec.memory);
  pool.token_counts = spec.token_counts;
  pool.log_lengths = spec.log_lengths;
  return absl::OkStatus();
}

absl::Status MakeMemory(const gdn_pool_spec& spec, gdn_pool& pool) {
  if (spec.token_counts != nullptr || spec.log_lengths != nullptr) {
    return Invalid(reason::kInvalidSpec, "memory",
                   "gdn_pool_create: token_counts or log_lengths are given without memory; give all three or none");
  }
  const auto slots = static_cast<size_t>(spec.slots);
  absl::StatusOr<DeviceBuffer> memory =
      DeviceBuffer::Make(*pool.context.backend, slots * static_cast<size_t>(pool.view.layout.slot_bytes()));
  if (!memory.ok()) {
    return WithPrefix(memory.status(), absl::StrCat("gdn_pool_create: ", slots, " slots of ",
                                                    pool.view.layout.slot_bytes(), " bytes; use fewer slots"));
  }
  pool.memory = std::move(*memory);
  pool.view.data = pool.memory.floats();
  pool.own_token_counts.resize(slots);
  pool.own_log_lengths.resize(slots);
  pool.token_counts = pool.own_token_counts.data();
  pool.log_lengths = pool.own_log_lengths.data();
  pool.lists_slots = true;
  pool.in_use.resize(slots);
  pool.free.resize(slots);
  std::iota(pool.free.rbegin(), pool.free.rend(), 0);
  return absl::OkStatus();
}

// Under the context's mutex.
absl::Status ZeroSlots(gdn_pool& pool, int32_t count, const int32_t* slots) {
  for (int32_t i = 0; i < count; ++i) {
    pool.log_lengths[slots[i]] = kLostState;
    GDN_RETURN_IF_ERROR(pool.context.backend->ZeroSlot(pool.view, slots[i]));
    pool.token_counts[slots[i]] = 0;
    pool.log_lengths[slots[i]] = 0;
  }
  return absl::OkStatus();
}

absl::Status RequireList(const char* function, const gdn_pool& pool) {
  if (pool.lists_slots) return absl::OkStatus();
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidSpec,
                   absl::StrCat(function,
                                ": the pool is over the caller's memory, where every slot is in use; use "
                                "gdn_slots_zero to begin anew in one"));
}

absl::Status Allocate(gdn_pool& pool, int32_t count, int32_t* slots) {
  constexpr char kFunction[] = "gdn_slots_allocate";
  GDN_RETURN_IF_ERROR(RequireList(kFunction, pool));
  GDN_RETURN_IF_ERROR(RequireAtLeast(kFunction, "count", count, 0));
  if (count == 0) return absl::OkStatus();
  GDN_RETURN_IF_ERROR(RequireArgument(kFunction, "slots", slots));
  if (static_cast<size_t>(count) > pool.free.size()) {
    return MakeError(absl::StatusCode::kResourceExhausted, reason::kStateBudgetExhausted,
                     absl::StrCat(kFunction, ": ", count, " slots are asked for and ", pool.free.size(), " of ",
                                  pool.view.slot_count, " are free; free some, or make a larger pool"));
  }
  std::copy_n(pool.free.rbegin(), count, slots);
  GDN_RETURN_IF_ERROR(ZeroSlots(pool, count, slots));
  pool.free.resize(pool.free.size() - static_cast<size_t>(count));
  for (int32_t i = 0; i < count; ++i) pool.in_use[static_cast<size_t>(slots[i])] = 1;
  return absl::OkStatus();
}

absl::Status Copy(gdn_pool& pool, int32_t count, const int32_t* from, const int32_t* to) {
  constexpr char kFunction[] = "gdn_slots_copy";
  GDN_RETURN_IF_ERROR(RequireSlots(kFunction, pool, count, from, /*distinct=*/false));
  GDN_RETURN_IF_ERROR(RequireSlots(kFunction, pool, count, to, /*distinct=*/true));
  SlotSet written(count);
  for (int32_t i = 0; i < count; ++i) written.Add(to[i]);
  for (int32_t i = 0; i < count; ++i) {
    if (!written.Contains(from[i])) continue;
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kDuplicateSession,
                     absl::StrCat(kFunction, ": slot ", from[i], " is in both from and to; copies go to other slots"));
  }
  GDN_RETURN_IF_ERROR(RequireStates(kFunction, pool, count, from));
  for (int32_t i = 0; i < count; ++i) {
    pool.log_lengths[to[i]] = kLostState;
    GDN_RETURN_IF_ERROR(pool.context.backend->Copy(pool.view.slot(to[i]), pool.view.slot(from[i]),
                                                   static_cast<size_t>(pool.view.layout.slot_bytes())));
    pool.token_counts[to[i]] = pool.token_counts[from[i]];
    pool.log_lengths[to[i]] = pool.log_lengths[from[i]];
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RequireSlots(const char* function, const gdn_pool& pool, int32_t count, const int32_t* slots,
                          bool distinct) {
  GDN_RETURN_IF_ERROR(RequireAtLeast(function, "count", count, 0));
  if (count == 0) return absl::OkStatus();
  GDN_RETURN_IF_ERROR(RequireArgument(function, "slots", slots));
  SlotSet seen(count);
  bool repeated = false;
  for (int32_t i = 0; i < count; ++i) {
    GDN_RETURN_IF_ERROR(RequireEntryRange(function, "slots", i, slots[i], 0, int64_t{pool.view.slot_count} - 1));
    repeated |= !seen.Add(slots[i]);
    if (pool.lists_slots && pool.in_use[static_cast<size_t>(slots[i])] == 0) {
      return Invalid(reason::kValueOutOfRange, "slots",
                     absl::StrCat(function, ": slot ", slots[i], " is not in use; allocate it first"));
    }
  }
  if (!distinct || !repeated) return absl::OkStatus();
  return RepeatedSlot(function, "slots", {slots, slots + count});
}

absl::Status RequireStates(const char* function, const gdn_pool& pool, int32_t count, const int32_t* slots) {
  for (int32_t i = 0; i < count; ++i) {
    if (slots[i] < 0 || pool.log_lengths[slots[i]] >= 0) continue;
    return MakeError(absl::StatusCode::kDataLoss, reason::kStateLost,
                     absl::StrCat(function, ": the state of slot ", slots[i],
                                  " is lost, because a call that was writing it has failed; make it anew with "
                                  "gdn_slots_zero, gdn_state_import or gdn_state_set, or copy another there"),
                     {{"field", "slots"}});
  }
  return absl::OkStatus();
}

}  // namespace gdn::capi

using gdn::capi::AndWait;
using gdn::capi::Call;
using gdn::capi::InOrderOf;
using gdn::capi::IssueOn;
using gdn::capi::RequireArgument;
using gdn::capi::RequireSlots;

int gdn_pool_bytes(const gdn_pool_spec* spec, size_t* bytes) {
  return Call([&]() -> absl::Status {
    GDN_RETURN_IF_ERROR(RequireArgument("gdn_pool_bytes", "bytes", bytes));
    GDN_ASSIGN_OR_RETURN(const gdn::StateLayout layout, gdn::capi::LayoutOf("gdn_pool_bytes", spec));
    *bytes = static_cast<size_t>(layout.slot_bytes()) * static_cast<size_t>(spec->slots);
    return absl::OkStatus();
  });
}

int gdn_pool_create(gdn_context* context, const gdn_pool_spec* spec, gdn_pool** pool) {
  return Call([&]() -> absl::Status {
    GDN_RETURN_IF_ERROR(RequireArgument("gdn_pool_create", "context", context));
    GDN_RETURN_IF_ERROR(RequireArgument("gdn_pool_create", "pool", pool));
    GDN_ASSIGN_OR_RETURN(const gdn::StateLayout layout, gdn::capi::LayoutOf("gdn_pool_create", spec));
    auto made = std::make_unique<gdn_pool>(
        gdn_pool{.context = *context, .view = {.layout = layout, .slot_count = spec->slots}});
    if (spec->memory != nullptr) {
      GDN_RETURN_IF_ERROR(gdn::capi::UseCallersMemory(*spec, *made));
    } else {
      GDN_RETURN_IF_ERROR(InOrderOf(*context, nullptr, [&] { return gdn::capi::MakeMemory(*spec, *made); }));
    }
    *pool = made.release();
    return absl::OkStatus();
  });
}

void gdn_pool_destroy(gdn_pool* pool) {
  if (pool == nullptr) return;
  if (pool->lists_slots) {  // what goes wrong on the device is the next call's to tell
    static_cast<void>(Call([&] {
      return AndWait(pool->context, nullptr, [&] {
        pool->memory = gdn::DeviceBuffer();
        return absl::OkStatus();
      });
    }));
  }
  delete pool;
}

int gdn_slots_allocate(gdn_pool* pool, int32_t count, int32_t* slots) {
  return IssueOn("gdn_slots_allocate", pool, nullptr, [&] { return gdn::capi::Allocate(*pool, count, slots); });
}

int gdn_slots_free(gdn_pool* pool, int32_t count, const int32_t* slots) {
  return Call([&]() -> absl::Status {
    GDN_RETURN_IF_ERROR(RequireArgument("gdn_slots_free", "pool", pool));
    const std::lock_guard<std::mutex> lock(pool->context.mu);
    GDN_RETURN_IF_ERROR(gdn::capi::RequireList("gdn_slots_free", *pool));
    GDN_RETURN_IF_ERROR(RequireSlots("gdn_slots_free", *pool, count, slots, /*distinct=*/true));
    for (int32_t i = 0; i < count; ++i) {
      pool->in_use[static_cast<size_t>(slots[i])] = 0;
      pool->free.push_back(slots[i]);
    }
    return absl::OkStatus();
  });
}

int gdn_slots_zero(gdn_pool* pool, int32_t count, const int32_t* slots, void* stream) {
  return IssueOn("gdn_slots_zero", pool, stream, [&]() -> absl::Status {
    GDN_RETURN_IF_ERROR(RequireSlots("gdn_slots_zero", *pool, count, slots, /*distinct=*/true));
    return gdn::capi::ZeroSlots(*pool, count, slots);
  });
}

int gdn_slots_copy(gdn_pool* pool, int32_t count, const int32_t* from, const int32_t* to, void* stream) {
  return IssueOn("gdn_slots_copy", pool, stream, [&] { return gdn::capi::Copy(*pool, count, from, to); });
}

int gdn_slot_tokens(gdn_pool* pool, int32_t slot, int64_t* tokens) {
  return Call([&]() -> absl::Status {
    GDN_RETURN_IF_ERROR(RequireArgument("gdn_slot_tokens", "pool", pool));
    GDN_RETURN_IF_ERROR(RequireArgument("gdn_slot_tokens", "tokens", tokens));
    const std::lock_guard<std::mutex> lock(pool->context.mu);
    GDN_RETURN_IF_ERROR(RequireSlots("gdn_slot_tokens", *pool, 1, &slot, /*distinct=*/true));
    *tokens = pool->token_counts[slot];
    return absl::OkStatus();
  });
}
