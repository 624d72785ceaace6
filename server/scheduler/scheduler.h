// What runs next on the device: decided from the steps that wait and from what was given out before, and from nothing
// else. No clock, no thread and no backend is in here, so a decision can be read, tested and simulated.
//
// Time on the device is shared by weight (start-time fair queueing). A *principal* here is whoever has a share of its
// own: one whose weight was set, or of the others, which have a share of weight 1 together where any weight was set, an
// address that they call from. Its *flows* are each principal's decodes and each principal's prefills: where both wait,
// `prefill_share` of the principal's weight is the prefills'. The flow that has been served least leads; within it the
// step whose session is due first, which is the session that was served least; of equals, a decode before a prefill,
// and then who came first. Others of the leader's group (a layer of a model, or an operator layout) ride along, of all
// principals that wait there in turn, but for flows that are too far ahead. Each step of a launch is charged its share
// of the time that the launch is estimated to take (LaunchCost), the leader's like the others'.
//
// Prefills are given out in segments, of several calls in one launch, each a multiple of its call's `segment_multiple`
// tokens from the call's first. While decodes are about (until prefills alone have had the device for kBusyUs) segments
// are shorter: a decode that comes may wait for the one that runs and for one that was launched ahead. A prefill needs
// a spare slot of its pool; the last spare is kept for principals that have none.
//
// A step's wait is bounded, whatever the others send: by the launch that runs, one launch of each other flow that
// waits, and, over the flow's share of the weights that wait, the time of its own flow's steps before it and of the
// launch that served it last. A decode so waits for the launch of prefills that runs, and for one more where launches
// are issued ahead, but not for their number; a prefill between two segments for what decodes can do in one segment's
// time over their shares; and before its first until a spare is free.
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

// Time of the device that prefills have alone before the last decode is forgotten: more than a client that generates
// takes from one token to the next.
inline constexpr double kBusyUs = 250'000;

struct SchedulerOptions {
  int32_t max_rows = 512;             // of a decode launch; a single step may have more
  double prefill_share = 0.2;         // of a principal's time while its decodes wait too
  double ride_ahead_us = 8000;        // that a flow of weight 1 may have been served more than the one that leads
  double segment_us = 2000;           // what a launch of prefill segments should take
  double busy_segment_us = 1000;      // the same while decodes are about, which wait for it
  int64_t max_segment_tokens = 4096;  // of all segments of a launch; at least a step's segment_multiple
  int64_t least_merged_tokens = 256;  // a launch is not split further between calls
  LaunchCost decode_cost{40, 4};      // before the first measurements
  LaunchCost prefill_cost{100, 2.7};
};

// One call's step as the scheduler sees it. Whoever adds it fills the public part, and leaves it alone while it waits.
class ScheduledStep {
 public:
  std::string principal;
  SessionTurn* turn = nullptr;  // a call of several sessions counts as its first one's
  uint64_t group = 0;  // steps with equal ones may share a launch, decodes with decodes and prefills with prefills
  bool prefill = false;
  int64_t row_count = 1;          // of a decode
  int64_t token_count = 1;        // of all rows
  int64_t segment_multiple = 64;  // tokens that a prefill's segments are multiples of; the same for all of a group
  const void* pool = nullptr;     // where a prefill needs a spare slot; null where it needs none

 private:
  friend class Scheduler;
  enum class Place : uint8_t { kNowhere, kWithoutSpare, kQueued };
  Place place_ = Place::kNowhere;
  bool has_spare_ = false;
  int64_t next_ = 0;  // token that the next segment begins with
  // Its place among its flow's steps: when it is due, then when it arrived (from 1).
  using Turn = std::pair<double, uint64_t>;
  Turn turn_key() const { return {due_, arrival_}; }
  double due_ = 0;
  uint64_t arrival_ = 0;
};

// What to launch next: steps of one group. Empty where nothing may run.
struct Launch {
  struct Part {
    ScheduledStep* step = nullptr;
    int64_t first = 0;   // token of the call
    int64_t tokens = 0;  // a decode's are those of all its rows
    bool last = false;   // nothing of the step waits any more
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

  // Shares are as weights; 1 where no weight is set of anybody, and else 1 of all whose weight is not set together.
  void SetWeight(const std::string& principal, double weight);
  // Spare slots of a pool, those in use included.
  void SetSpares(const void* pool, int32_t spares);

  void Add(ScheduledStep& step);
  // Takes a step out that waits, or has segments left; nothing happens where it does not. A prefill keeps its spare
  // until ReleaseSpare.
  void Remove(ScheduledStep& step);
  // The step does not write to its spare any more. For prefills, once each; nothing happens where it has none.
  void ReleaseSpare(ScheduledStep& step);

  // Gives out what should run next. `prefills`: whether it may be one.
  Launch Next(bool prefills);
  // Whether a decode that waits would take at most `us` alone, by what launches of its group took; false before any.
  bool IsShort(const ScheduledStep& step, double us) const;
  // What `launch` took in truth.
  void Observe(const Launch& launch, double us);

  size_t waiting() const { return waiting_; }  // steps, prefills with segments left among them

 private:
  enum Class : uint8_t { kDecode = 0, kPrefill = 1 };
  using GroupKey = std::pair<uint64_t, Class>;
  using Turn = ScheduledStep::Turn;
  struct ByTurn {
    bool operator()(const ScheduledStep* a, const ScheduledStep* b) const { return a->turn_key() < b->turn_key(); }
  };
  // An entry of a lazy heap: `key` is what `item` had when it was entered, and is compared again when it comes up.
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
    Turn entry;         // the key of its entry in Flow::first_steps; at most its first step's
    double credit = 0;  // rows that it may give to launches before the others have had their turn
    size_t index = 0;   // in Group::queues, while it has steps
  };
  struct Group {
    Group(const GroupKey& its_key, const LaunchCost& its_cost) : key(its_key), cost(its_cost) {}

    const GroupKey key;
    LaunchCost cost;
    int64_t known_by = 0;        // flows
    std::vector<Queue*> queues;  // with steps
    size_t turn = 0;             // index of the queue that rides along first
    double weight = 0;           // of the flows of `queues`
  };
  // What shares the device's time: one principal's decodes, or its prefills.
  struct Flow {
    Principal* principal = nullptr;
    double weight = 0;   // the principal's, or a part of it while both of its flows have steps
    double served = 0;   // time over weight
    double due_now = 0;  // ScheduledStep::due_ of the step that led last
    size_t steps = 0;    // that wait for nothing but their turn
    bool in_heap = false;
    absl::node_hash_map<uint64_t, Queue> queues;      // by group, idle ones too
    std::vector<HeapEntry<Turn, Queue>> first_steps;  // of each queue
  };
  struct Principal {
    double weight = 1;
    bool has_set_weight = false;
    std::array<Flow, 2> flows;
    int32_t spares = 0;    // that its prefills hold
    size_t spareless = 0;  // prefills that wait for one
  };
  struct Pool {
    int32_t spares = 0;
    int32_t taken = 0;
    std::vector<ScheduledStep*> waiting;  // for one of them, by arrival
  };
  // What a queue gave to a launch: parts that follow one another.
  struct Given {
    Queue* queue = nullptr;
    size_t parts = 0;
  };

  Principal& PrincipalOf(const ScheduledStep& step);
  Queue& QueueOf(const ScheduledStep& step);
  void Enqueue(ScheduledStep& step);
  // For a queue that has got its first step, or lost its last.
  void Activate(Queue& queue);
  void Deactivate(Queue& queue);
  static void SetWeights(Principal& principal, double prefill_share);
  // Steps that wait in the flow, more or fewer.
  void AddSteps(Flow& flow, int64_t steps);
  // Of a flow that is charged.
  double ShareOf(const Flow& flow) const;
  // Enters the queue's first step in its flow's heap.
  static void EnterFirst(Queue& queue);
  void GrantSpares(Pool& pool);
  void ForgetIdle();
  // The flow of this class with steps that has been served least, or null.
  Flow* Top(Class kind);
  // The queue whose first step is due first; the flow has steps.
  static Queue& FirstQueue(Flow& flow);
  // Whether the queue's flow has not used so much more than its share that the others would wait for it.
  bool MayRide(const Queue& queue, const Queue& lead) const;
  std::vector<Given> TakeDecodes(Queue& lead, Launch& launch) const;
  std::vector<Given> TakePrefills(Queue& lead, Launch& launch) const;
  void Charge(const std::vector<Given>& given, Launch& launch);

  const SchedulerOptions options_;
  absl::node_hash_map<std::string, Principal> principals_;
  absl::node_hash_map<GroupKey, Group> groups_;
  absl::flat_hash_map<const void*, Pool> pools_;
  std::array<std::vector<HeapEntry<double, Flow>>, 2> heaps_;  // by Flow::served
  double now_ = 0;                                             // Flow::served of the one that led last
  uint64_t arrivals_ = 0;
  size_t waiting_ = 0;
  int64_t set_weights_ = 0;
  std::array<int64_t, 2> others_{};   // flows with steps whose weight is not set, by class
  double us_since_decode_ = kBusyUs;  // that prefills have had alone
};

}  // namespace gdn
