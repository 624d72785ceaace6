// Decides which steps run next on the device, from the steps that wait and from what ran before, and from nothing else.
// It has no clock, no thread and no backend, so a decision can be read, tested and simulated.
//
// Device time is shared by weight (start-time fair queueing). A *principal* here is the owner of a share: a principal
// with a weight that was set, or an address that calls come from. If any weight was set, the addresses together have a
// share of weight 1. A principal's decodes and its prefills are two *flows*. While both wait, the prefills have
// `prefill_share` of the principal's weight. The flow that has been served least leads; at a tie, decodes lead. In the
// flow, the step leads whose session is due first, which is the session that was served least; at a tie, the step that
// came first. Other steps of the leader's group (a layer of a model, or an operator layout) ride along in the same
// launch. They come from all principals that wait in the group, in turn, except flows that are too far ahead. Each step
// of a launch, the leader's too, is charged its part of the launch's estimated time (LaunchCost).
//
// Prefills run in segments. A launch has segments of several calls, and each begins at a multiple of its call's
// `segment_multiple` tokens. Segments are shorter while decodes are about, which is until prefills alone have had the
// device for kBusyUs. The reason is that a decode which arrives may wait for the running segment, and if it arrives at
// the last moment, for one that was launched ahead. A prefill needs a spare slot of its pool. The last spare of a pool
// is kept for principals that have none.
//
// A step's wait is bounded, whatever the others send. The bound is the sum of three times. The first is the launch that
// runs, the second is one launch of each other flow that waits. The third is the time of the flow's own steps before
// this one and of the launch that served the flow last, divided by the flow's share of the waiting weights. So a decode
// waits for the launch of prefills that runs, and for one more if launches are issued ahead, but not for all waiting
// prefills. Between two segments, a prefill waits for the decode time that the ratio of the shares grants for one
// segment. Before its first segment it waits until a spare is free.
// Thread safety: none; the caller's lock. Ownership: steps are the caller's, and stay where they are until they were
// given out whole or removed.
//
//   Scheduler scheduler({});
//   scheduler.SetSpares(pool, 4);
//   scheduler.Add(step);
//   Launch launch = scheduler.Next(/*prefills=*/true);
//   scheduler.Observe(launch, measured_us);
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/node_hash_map.h"
#include "server/scheduler/launch_cost.h"
#include "server/scheduler/session_turn.h"

namespace gdn {

// Microseconds of device time that prefills alone must have had since the last decode, until their launches are no
// longer kept short for decodes that may come. It is more than a client that generates takes from one token to the
// next.
inline constexpr double kBusyUs = 250'000;

struct SchedulerOptions {
  int32_t max_rows = 512;       // most rows of a decode launch; a single step may have more
  double prefill_share = 0.2;   // part of a principal's time for its prefills while its decodes wait too
  double ride_ahead_us = 8000;  // most us of time over weight that a flow may be ahead of the leader and ride along
  double segment_us = 2000;     // time that a launch of prefill segments should take
  // The same until prefills alone have had kBusyUs, because a decode may wait for it. A device that computes fewer than
  // busy_segment_tokens in that time gets up to so many, because fewer have a worse rate, but at most twice the time.
  double busy_segment_us = 500;
  int64_t busy_segment_tokens = 256;
  int64_t max_segment_tokens = 4096;  // most tokens of all segments of a launch, unless one segment_multiple is more
  int64_t least_merged_tokens = 256;  // calls share a launch only if each gets so many tokens of what it may have
  LaunchCost decode_cost{40, 4};      // estimates before the first measurements, in us: of a launch, and of each token
  LaunchCost prefill_cost{100, 2.7};
};

// One call's step as the scheduler sees it. The caller sets the public members, and does not change them, move the step
// or destroy it while the scheduler has it. What the pointers point to must live as long.
class ScheduledStep {
 public:
  std::string principal;
  SessionTurn* turn = nullptr;  // never null when added; a call of several sessions counts as its first session
  uint64_t group = 0;           // steps of one group may share a launch: decodes with decodes, prefills with prefills
  bool prefill = false;
  int64_t row_count = 1;          // rows of a decode, which count for max_rows
  int64_t token_count = 1;        // tokens of all rows
  int64_t segment_multiple = 64;  // a prefill's segments are multiples of so many tokens; equal in a group
  const void* pool = nullptr;     // the pool of the spare slot that a prefill needs; null: it needs none

 private:
  friend class Scheduler;
  enum class Place : uint8_t { kNowhere, kWithoutSpare, kQueued };
  Place place_ = Place::kNowhere;
  bool has_spare_ = false;
  int64_t next_ = 0;  // first token of the next segment
  // Position among the steps of its flow: when it is due, then the number of its arrival (from 1).
  using Turn = std::pair<double, uint64_t>;
  Turn turn_key() const { return {due_, arrival_}; }
  double due_ = 0;
  uint64_t arrival_ = 0;
};

// The steps to launch next, all of one group. Empty if nothing may run.
struct Launch {
  struct Part {
    ScheduledStep* step = nullptr;
    int64_t first = 0;   // index in the call of the segment's first token; 0 for a decode
    int64_t tokens = 0;  // tokens of the segment; for a decode the tokens of all its rows
    bool last = false;   // nothing of the step waits after this part: it is the whole step, or its last segment
  };
  bool prefill = false;
  uint64_t group = 0;
  int64_t tokens = 0;
  double estimated_us = 0;
  std::vector<Part> parts;

  bool empty() const { return parts.empty(); }
};

class Scheduler {
 public:
  explicit Scheduler(const SchedulerOptions& options);
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;
  ~Scheduler();

  // Sets the principal's weight, which is above 0. Time is shared in proportion to weights. If no weight was ever set,
  // every principal has weight 1. Otherwise all principals whose weight was not set have weight 1 together.
  void SetWeight(const std::string& principal, double weight);
  // Sets how many spare slots a pool has, including those in use.
  void SetSpares(const void* pool, int32_t spares);

  void Add(ScheduledStep& step);
  // Removes a step that waits or has segments left. Does nothing with any other step. A prefill keeps its spare until
  // ReleaseSpare.
  void Remove(ScheduledStep& step);
  // Gives the prefill's spare to the next prefill that waits for one. Call it when the step no longer writes to its
  // spare slot. Does nothing if the step has no spare.
  void ReleaseSpare(ScheduledStep& step);

  // Gives out the steps that should run next, and charges their estimated time. `prefills`: true if they may be
  // prefills. Empty if no step may run now. A prefill comes back in later launches until a part is its last.
  Launch Next(bool prefills);
  // Returns true if Next would give out decodes although it may give out prefills.
  bool DecodesLead();
  // Returns true if a decode that waits would take at most `us` microseconds alone, estimated from launches of its
  // group. Returns false if none was measured.
  bool IsShort(const ScheduledStep& step, double us) const;
  // Records that `launch` took `us` microseconds, for later estimates of its group.
  void Observe(const Launch& launch, double us);

  size_t waiting() const { return waiting_; }  // steps that wait, including prefills with segments left

 private:
  enum Class : uint8_t { kDecode = 0, kPrefill = 1 };
  using GroupKey = std::pair<uint64_t, Class>;
  using Turn = ScheduledStep::Turn;
  struct ByTurn {
    bool operator()(const ScheduledStep* a, const ScheduledStep* b) const { return a->turn_key() < b->turn_key(); }
  };
  // An entry of a lazy heap. `key` is the key that `item` had when it was entered. It is compared with the item's key
  // when the entry comes to the front.
  template <typename Key, typename Item>
  struct HeapEntry {
    Key key{};
    Item* item = nullptr;
    bool operator<(const HeapEntry& other) const { return other.key < key; }  // the least comes first
  };
  struct Group;
  struct Principal;
  struct Flow;
  // The steps of one flow that wait in one group.
  struct Queue {
    Flow* flow = nullptr;
    Group* group = nullptr;
    absl::btree_set<ScheduledStep*, ByTurn> steps;
    Turn entry;         // the key of the queue's entry in Flow::first_steps; at most its first step's key
    double credit = 0;  // rows that the queue may still give in its turn
    size_t index = 0;   // index in Group::queues while the queue has steps
  };
  struct Group {
    Group(const GroupKey& its_key, const LaunchCost& its_cost) : key(its_key), cost(its_cost) {}

    const GroupKey key;
    LaunchCost cost;
    int64_t known_by = 0;        // number of flows that have a queue of the group
    std::vector<Queue*> queues;  // the queues that have steps
    size_t turn = 0;             // index of the queue that rides along first
    double weight = 0;           // sum of the weights of the flows of `queues`
  };
  // One principal's decodes, or its prefills. Flows share the device's time.
  struct Flow {
    Principal* principal = nullptr;
    double weight = 0;   // the principal's, or a part of it while both of its flows have steps
    double served = 0;   // estimated device time that the flow was charged, in us, divided by its share
    double due_now = 0;  // ScheduledStep::due_ of the flow's step that led last
    size_t steps = 0;    // steps that wait for their turn, and not for a spare
    bool in_heap = false;
    absl::node_hash_map<uint64_t, Queue> queues;      // by group; idle queues too
    std::vector<HeapEntry<Turn, Queue>> first_steps;  // an entry for each queue, in a lazy heap
  };
  struct Principal {
    double weight = 1;
    bool has_set_weight = false;
    std::array<Flow, 2> flows;
    int32_t spares = 0;    // spare slots that its prefills have
    size_t spareless = 0;  // prefills that wait for a spare
  };
  struct Pool {
    int32_t spares = 0;
    int32_t taken = 0;
    std::vector<ScheduledStep*> waiting;  // prefills that wait for a spare, by arrival
  };
  // The parts that a queue gave to a launch. They follow one another.
  struct Given {
    Queue* queue = nullptr;
    size_t parts = 0;
  };

  Principal& PrincipalOf(const ScheduledStep& step);
  Queue& QueueOf(const ScheduledStep& step);
  void Enqueue(ScheduledStep& step);
  // Call Activate when a queue has its first step, and Deactivate when it has lost its last.
  void Activate(Queue& queue);
  void Deactivate(Queue& queue);
  static void SetWeights(Principal& principal, double prefill_share);
  // Adds `steps`, which may be negative, to the number of steps that wait in the flow.
  void AddSteps(Flow& flow, int64_t steps);
  // Returns the share by which the flow is charged.
  double ShareOf(const Flow& flow) const;
  // Enters the queue's first step in the heap of its flow.
  static void EnterFirst(Queue& queue);
  void GrantSpares(Pool& pool);
  void ForgetIdle();
  // Returns the flow of this class that has been served least and has steps, or null.
  Flow* Top(Class kind);
  // Returns the queue with the step that is due first. The flow must have steps.
  static Queue& FirstQueue(Flow& flow);
  // Returns false if the queue's flow is so far over its share that its rows should be left behind.
  bool MayRide(const Queue& queue, const Queue& lead) const;
  std::vector<Given> TakeDecodes(Queue& lead, Launch& launch) const;
  std::vector<Given> TakePrefills(Queue& lead, Launch& launch) const;
  // Most tokens of the next launch of prefills in a group of this cost.
  int64_t SegmentTokens(const LaunchCost& cost) const;
  void Charge(const std::vector<Given>& given, Launch& launch);

  const SchedulerOptions options_;
  absl::node_hash_map<std::string, Principal> principals_;
  absl::node_hash_map<GroupKey, Group> groups_;
  absl::flat_hash_map<const void*, Pool> pools_;
  std::array<std::vector<HeapEntry<double, Flow>>, 2> heaps_;  // by Flow::served
  double now_ = 0;                                             // the most Flow::served of a flow that led
  uint64_t arrivals_ = 0;
  size_t waiting_ = 0;
  int64_t set_weights_ = 0;
  std::array<int64_t, 2> others_{};   // flows with steps and without a set weight, by class
  double us_since_decode_ = kBusyUs;  // device time, in us, that prefills have had since the last decode
};

}  // namespace gdn
