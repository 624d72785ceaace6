// A session's states in host memory. Tiers store images; state files are written from them and read into them.
//
// States that were copied from the device stay in the backend's order, so bringing them back needs a copy and no
// conversion. States that were read from a file stay in the file's buffer, in wire order, and are converted on their
// way to the device. kernels/slot_codec.h converts between both orders.
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
#include "base/threads/steady_clock.h"
#include "kernels/slot_codec.h"
#include "state_store/host_block_pool.h"
#include "state_store/prefill_calls.h"

namespace gdn {

// The last step of a (session, layer) that had a request id, with the session's part of its reply.
struct StoredReply {
  std::string request_id;
  Hash128 payload;     // hash of all inputs that the reply depends on
  std::string output;  // bytes of the session's rows, dense, in the reply's dtype; "" if the output was dropped
  int64_t token_count = 0;
  int64_t compute_time_us = 0;
  bool output_dropped = false;  // memory was short: the step was applied, but a retry cannot get its output
  friend bool operator==(const StoredReply&, const StoredReply&) = default;
};
using StoredReplyPtr = std::shared_ptr<const StoredReply>;

// Identifies the bits of a base state within this process: each write of a base gives it a new version. 0: none.
using BaseVersion = uint64_t;
using BaseVersions = std::map<int32_t, BaseVersion>;  // by layer; no value is 0

struct LayerImage {
  int32_t layer = 0;
  SlotExtent extent;
  InputKind kind = InputKind::kNone;
  BaseVersion base_version = 0;
  bool has_base = true;  // false: the slot has no base, because the receiver has it already, with this base_version
  HostBlock slot;        // layout.slot_floats() floats in the backend's order. If it is not valid, `wire` is used:
  SlotView wire;         // always with a base, in memory that SessionImage::owner keeps alive
  StoredReplyPtr reply;  // the last step that had a request id; nullptr: none had
  PrefillCalls calls = PrefillCalls::Other();  // not stored in files
};

// True if the layer's base has a version (not 0), and `known` has the same version for layer.layer. The base then need
// not be copied or written.
bool IsKnownBase(const LayerImage& layer, const BaseVersions& known);

// Orders the states of a session by age: the older state is less. Compares `created`, then `epoch`, then `changes`.
struct StateVersion {
  int64_t created = 0;  // creation time of the session, ns since 1970; tells sessions with the same name apart
  int64_t epoch = 0;
  int64_t changes = 0;  // changes of the session up to this state; within an epoch, more mean a later state

  friend bool operator==(const StateVersion&, const StateVersion&) = default;
  // NOLINTNEXTLINE(modernize-use-nullptr): the literal 0 is no pointer here
  friend auto operator<=>(const StateVersion&, const StateVersion&) = default;
  std::string ToString() const;  // "epoch 3, change 17"
};

// A session's metadata: everything but its states.
struct SessionHeader {
  std::string principal;
  std::string id;
  std::string affinity;
  std::string model;        // without "models/"; "" for an operator session
  std::string family;       // the model's family; "" for an operator session
  std::string fingerprint;  // the model's fingerprint; "" for an operator session
  ModelSlice slice = {};    // the model's value heads that the states have; default: all
  LayerDims dims;
  std::vector<int32_t> layers;  // all layers of the session, ascending, with or without a state
  Hash128 request;              // hash of the request that made the session
  int64_t epoch = 1;
  int64_t changes = 0;     // changes up to this state: creation, commits, acceptances, resets
  absl::Time create_time;  // wall clock, for display and for version()
  SteadyTime born;         // creation time on this process's clock; files store the age instead
  absl::Duration idle_ttl = absl::InfiniteDuration();
  absl::Duration max_lifetime = absl::InfiniteDuration();
  int64_t prefix_tokens = 0;  // tokens of the stored prefix that the session started from; 0: none
  std::string lease = {};     // id of the lease that the session ends with; "": none
  absl::Duration lease_grace = absl::ZeroDuration();  // the lease's grace; 0 without a lease
  // The last AcceptTokens that had a request id, and what it accepted; "": there was none.
  std::string accept_request_id;
  int32_t accepted_tokens = 0;
  std::vector<int32_t> accepted_path = {};  // empty: the draft's first accepted_tokens tokens

  StateVersion version() const {
    return {.created = absl::ToUnixNanos(create_time), .epoch = epoch, .changes = changes};
  }
};

struct SessionImage {
  SessionHeader header;
  std::string numerics_id;  // numerics id of the backend that computed the states
  StateLayout layout;
  bool transposed_base = false;       // LayerImage::slot holds the base as [HV, V, K]
  std::vector<LayerImage> layers;     // layers that have a state, ascending
  std::shared_ptr<const void> owner;  // keeps the memory alive that LayerImage::wire views

  // Returns the bytes that the image counts for in a budget: one slot for each layer, and the outputs of stored
  // replies. A layer in wire order counts the same, because it takes a slot on a device.
  int64_t bytes() const;
  bool has_all_bases() const;
};
using SessionImagePtr = std::shared_ptr<const SessionImage>;

// Returns a view of a layer of `image` in wire order, valid as long as the image and `scratch`. Tensors that must be
// converted are written to `scratch`; the others stay in the image. If `base` is false, the base is not converted, so
// do not read it.
SlotView ViewLayer(const SessionImage& image, const LayerImage& layer, bool base, std::vector<float>& scratch);

}  // namespace gdn
