// A session's states in host memory: what tiers keep, and what state files are written from and read into.
//
// What was copied from the device is as the backend keeps it, so that a session that comes back costs a copy and no
// conversion; what was read from a file stays where it was read to, in wire order, and is turned on its way to the
// device.
// kernels/slot_codec.h knows both orders.
// Thread safety: constant once shared. Ownership: owns its blocks; the HostBlockPool must outlive it.
//
//   auto image = std::make_shared<SessionImage>();  // filled, then kept as a SessionImagePtr
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/hash.h"
#include "base/head_slice.h"
#include "base/layer_dims.h"
#include "base/steady_clock.h"
#include "kernels/slot_codec.h"
#include "state_store/host_block_pool.h"
#include "state_store/prefill_calls.h"

namespace gdn {

// The last step of a (session, layer) that had a request id, with the session's part of its reply.
struct StoredReply {
  std::string request_id;
  Hash128 payload;     // of everything the reply follows from
  std::string output;  // the session's rows, dense, in the reply's dtype; "" where it was dropped
  int64_t token_count = 0;
  int64_t compute_time_us = 0;
  bool output_dropped = false;  // for want of memory: the step happened, and cannot be answered again
  friend bool operator==(const StoredReply&, const StoredReply&) = default;
};
using StoredReplyPtr = std::shared_ptr<const StoredReply>;

// Names a base state's bits in this process: it changes whenever a base is written. 0: none.
using BaseVersion = uint64_t;
using BaseVersions = std::map<int32_t, BaseVersion>;  // by layer; none is 0

struct LayerImage {
  int32_t layer = 0;
  SlotExtent extent;
  InputKind kind = InputKind::kNone;
  BaseVersion base_version = 0;
  bool has_base = true;  // false: the slot's base was not copied, for whoever takes the image has it (base_version)
  HostBlock slot;        // layout.slot_floats(), as the backend keeps them; or, where it is not valid,
  SlotView wire;         // in memory that the image's owner keeps, with a base
  StoredReplyPtr reply;  // may be nullptr
  PrefillCalls calls = PrefillCalls::Other();  // files do not tell
};

// Whether the layer's base is among `known`, in the very version.
bool IsKnownBase(const LayerImage& layer, const BaseVersions& known);

// Which of two states of a session is the older one.
struct StateVersion {
  int64_t created = 0;  // when the session was made, in ns since 1970: another one of its name was made at another time
  int64_t epoch = 0;
  int64_t changes = 0;  // commits until then; of one epoch, more are later

  friend bool operator==(const StateVersion&, const StateVersion&) = default;
  // NOLINTNEXTLINE(modernize-use-nullptr): there is none
  friend auto operator<=>(const StateVersion&, const StateVersion&) = default;
  std::string ToString() const;  // "epoch 3, change 17"
};

// What a session is, beside its states.
struct SessionHeader {
  std::string principal;
  std::string id;
  std::string affinity;
  std::string model;        // without "models/"; "" for an operator session
  std::string family;       // the model's; ""
  std::string fingerprint;  // the model's; ""
  ModelSlice slice = {};    // of the model's heads; none: all
  LayerDims dims;
  std::vector<int32_t> layers;  // all of the session's, ascending
  Hash128 request;              // of the call that made it
  int64_t epoch = 1;
  int64_t changes = 0;     // commits until this state; 0 in files of before they were counted
  absl::Time create_time;  // by the wall's clock, to be shown
  SteadyTime born;         // of this process; files hold the age
  absl::Duration idle_ttl = absl::InfiniteDuration();
  absl::Duration max_lifetime = absl::InfiniteDuration();
  int64_t prefix_tokens = 0;  // that it began behind
  // The last AcceptTokens that had a request id.
  std::string accept_request_id;
  int32_t accepted_tokens = 0;
  std::vector<int32_t> accepted_path = {};  // empty: the draft's first tokens

  StateVersion version() const {
    return {.created = absl::ToUnixNanos(create_time), .epoch = epoch, .changes = changes};
  }
};

struct SessionImage {
  SessionHeader header;
  std::string numerics_id;  // of the backend that computed it
  StateLayout layout;
  bool transposed_base = false;       // of slots
  std::vector<LayerImage> layers;     // those that have a state, ascending
  std::shared_ptr<const void> owner;  // of what `wire` views

  // Of slots, which those in wire order are once they are on a device, and replies: what the image counts for in a
  // budget.
  int64_t bytes() const;
  bool has_all_bases() const;
};
using SessionImagePtr = std::shared_ptr<const SessionImage>;

// A layer of an image in wire order: views into the image, and into `scratch` elsewhere. Without `base` that part is
// left as it is, whatever its order.
SlotView ViewLayer(const SessionImage& image, const LayerImage& layer, bool base, std::vector<float>& scratch);

}  // namespace gdn
