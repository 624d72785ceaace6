#include "server/scheduler/scheduler.h"

#include <algorithm>
#include <iterator>

namespace gdn {
namespace {

// Most queues that each round of filling a launch passes over. The launch then goes with the rows that it has.
constexpr int kPassedOver = 64;
// Least rows that a queue of weight 1 may give in its turn, so that a launch need not look at thousands of queues.
constexpr double kLeastTurn = 4;
// After so many arrivals, idle principals and groups are forgotten if there are more than kKept of both. Fewer are
// remembered, because the measured launch times of a group are worth keeping.
constexpr uint64_t kForgetEvery = 4096;
constexpr size_t kKept = 1024;

}  // namespace

Scheduler::Scheduler(const SchedulerOptions& options) : options_(options) {}
Scheduler::~Scheduler() = default;

Scheduler::Principal& Scheduler::PrincipalOf(const ScheduledStep& step) {
  const auto [known, is_new] = principals_.try_emplace(step.principal);
  Principal& principal = known->second;
  if (is_new) {
    for (Flow& flow : principal.flows) {
      flow.principal = &principal;
      flow.weight = principal.weight;
    }
  }
  return principal;
}

void Scheduler::SetWeight(const std::string& principal, double weight) {
  ScheduledStep named;
  named.principal = principal;
  Principal& known = PrincipalOf(named);
  known.weight = weight;
  if (!std::exchange(known.has_set_weight, true)) ++set_weights_;
  SetWeights(known, options_.prefill_share);
}

void Scheduler::SetWeights(Principal& principal, double prefill_share) {
  const bool both = principal.flows[kDecode].steps > 0 && principal.flows[kPrefill].steps > 0;
  const std::array<double, 2> shares = {both ? 1 - prefill_share : 1, both ? prefill_share : 1};
  for (const Class kind : {kDecode, kPrefill}) {
    Flow& flow = principal.flows[kind];
    const double weight = principal.weight * shares[kind];
    if (weight == flow.weight) continue;
    for (auto& [group, queue] : flow.queues) {
      if (!queue.steps.empty()) queue.group->weight += weight - flow.weight;
    }
    flow.weight = weight;
  }
}

void Scheduler::AddSteps(Flow& flow, int64_t steps) {
  const bool before = flow.steps > 0;
  flow.steps = static_cast<size_t>(static_cast<int64_t>(flow.steps) + steps);
  if (flow.principal->has_set_weight) return;
  const Class kind = &flow == &flow.principal->flows[kDecode] ? kDecode : kPrefill;
  others_[kind] += static_cast<int64_t>(flow.steps > 0) - static_cast<int64_t>(before);
}

double Scheduler::ShareOf(const Flow& flow) const {
  if (set_weights_ == 0 || flow.principal->has_set_weight) return flow.weight;
  return flow.weight / static_cast<double>(std::max(*std::ranges::max_element(others_), int64_t{1}));
}

void Scheduler::SetSpares(const void* pool, int32_t spares) {
  pools_[pool].spares = spares;
  GrantSpares(pools_[pool]);
}

Scheduler::Queue& Scheduler::QueueOf(const ScheduledStep& step) {
  const Class kind = step.prefill ? kPrefill : kDecode;
  Flow& flow = PrincipalOf(step).flows[kind];
  Queue& queue = flow.queues[step.group];
  if (queue.group == nullptr) {
    const GroupKey key(step.group, kind);
    const LaunchCost& cost = step.prefill ? options_.prefill_cost : options_.decode_cost;
    queue.group = &groups_.try_emplace(key, key, cost).first->second;
    queue.flow = &flow;
    ++queue.group->known_by;
  }
  return queue;
}

void Scheduler::Add(ScheduledStep& step) {
  if (++arrivals_ % kForgetEvery == 0 && principals_.size() + groups_.size() > kKept) ForgetIdle();
  ++waiting_;
  step.arrival_ = arrivals_;
  step.next_ = 0;
  if (!step.prefill || step.pool == nullptr) return Enqueue(step);
  Pool& pool = pools_[step.pool];
  step.place_ = ScheduledStep::Place::kWithoutSpare;
  ++PrincipalOf(step).spareless;
  pool.waiting.push_back(&step);
  GrantSpares(pool);
}

void Scheduler::GrantSpares(Pool& pool) {
  while (pool.taken < pool.spares && !pool.waiting.empty()) {
    // The spare goes to the principal whose prefills have been served least. The last spare goes only to a principal
    // that has none.
    const bool is_last = pool.spares > 1 && pool.taken == pool.spares - 1;
    const Principal* principal = nullptr;
    auto next = pool.waiting.end();
    for (auto it = pool.waiting.begin(); it != pool.waiting.end(); ++it) {
      const Principal& other = PrincipalOf(**it);
      if (is_last && other.spares > 0) continue;
      if (principal != nullptr && principal->flows[kPrefill].served <= other.flows[kPrefill].served) continue;
      principal = &other;
      next = it;
    }
    if (next == pool.waiting.end()) return;
    ScheduledStep& step = **next;
    pool.waiting.erase(next);
    ++pool.taken;
    ++PrincipalOf(step).spares;
    --PrincipalOf(step).spareless;
    step.has_spare_ = true;
    Enqueue(step);
  }
}

void Scheduler::Enqueue(ScheduledStep& step) {
  Queue& queue = QueueOf(step);
  step.place_ = ScheduledStep::Place::kQueued;
  step.due_ = std::max(queue.flow->due_now, step.turn->due[step.prefill ? kPrefill : kDecode]);
  queue.steps.insert(&step);
  AddSteps(*queue.flow, 1);
  if (queue.flow->steps == 1) {
    // A flow that returns gets no credit for the time when it had no steps.
    queue.flow->served = std::max(queue.flow->served, now_);
    SetWeights(*queue.flow->principal, options_.prefill_share);
  }
  if (queue.steps.size() == 1) Activate(queue);
  if (queue.entry == Turn() || step.turn_key() < queue.entry) EnterFirst(queue);
}

void Scheduler::EnterFirst(Queue& queue) {
  auto& heap = queue.flow->first_steps;
  queue.entry = (*queue.steps.begin())->turn_key();
  heap.push_back({.key = queue.entry, .item = &queue});
  std::push_heap(heap.begin(), heap.end());
}

Scheduler::Queue& Scheduler::FirstQueue(Flow& flow) {
  auto& heap = flow.first_steps;
  for (;;) {
    const auto [key, queue] = heap.front();
    const bool current = key == queue->entry;  // false: a newer entry of the queue has replaced it
    if (current && !queue->steps.empty() && key == (*queue->steps.begin())->turn_key()) return *queue;
    std::pop_heap(heap.begin(), heap.end());
    heap.pop_back();
    if (!current) continue;
    queue->entry = {};
    if (!queue->steps.empty()) EnterFirst(*queue);
  }
}

void Scheduler::Activate(Queue& queue) {
  Group& group = *queue.group;
  queue.index = group.queues.size();
  queue.credit = 0;
  group.queues.push_back(&queue);
  group.weight += queue.flow->weight;
  if (std::exchange(queue.flow->in_heap, true)) return;
  auto& heap = heaps_[group.key.second];
  heap.push_back({.key = queue.flow->served, .item = queue.flow});
  std::push_heap(heap.begin(), heap.end());
}

void Scheduler::Deactivate(Queue& queue) {
  Group& group = *queue.group;
  group.queues[queue.index] = group.queues.back();
  group.queues[queue.index]->index = queue.index;
  group.queues.pop_back();
  group.weight = group.queues.empty() ? 0 : group.weight - queue.flow->weight;
  if (queue.flow->steps == 0) SetWeights(*queue.flow->principal, options_.prefill_share);
}

void Scheduler::Remove(ScheduledStep& step) {
  if (step.place_ == ScheduledStep::Place::kNowhere) return;
  if (step.place_ == ScheduledStep::Place::kWithoutSpare) {
    std::erase(pools_[step.pool].waiting, &step);
    --PrincipalOf(step).spareless;
  } else {
    Queue& queue = QueueOf(step);
    queue.steps.erase(&step);
    AddSteps(*queue.flow, -1);
    if (queue.steps.empty()) Deactivate(queue);
  }
  step.place_ = ScheduledStep::Place::kNowhere;
  --waiting_;
}

void Scheduler::ReleaseSpare(ScheduledStep& step) {
  if (!std::exchange(step.has_spare_, false)) return;
  --PrincipalOf(step).spares;
  Pool& pool = pools_[step.pool];
  --pool.taken;
  GrantSpares(pool);
}

Scheduler::Flow* Scheduler::Top(Class kind) {
  auto& heap = heaps_[kind];
  while (!heap.empty()) {
    const auto [served, flow] = heap.front();
    if (flow->steps > 0 && served == flow->served) return flow;
    std::pop_heap(heap.begin(), heap.end());
    if (flow->steps == 0) {
      heap.pop_back();
      flow->in_heap = false;
    } else {
      heap.back().key = flow->served;
      std::push_heap(heap.begin(), heap.end());
    }
  }
  return nullptr;
}

bool Scheduler::DecodesLead() {
  const Flow* const decodes = Top(kDecode);
  const Flow* const prefills = Top(kPrefill);
  return decodes != nullptr && (prefills == nullptr || prefills->served >= decodes->served);
}

Launch Scheduler::Next(bool prefills) {
  Launch launch;
  launch.prefill = prefills && !DecodesLead();
  Flow* const flow = Top(launch.prefill ? kPrefill : kDecode);
  if (flow == nullptr) {
    launch.prefill = false;
    return launch;
  }
  now_ = std::max(now_, flow->served);
  Queue& lead = FirstQueue(*flow);
  flow->due_now = std::max(flow->due_now, (*lead.steps.begin())->due_);
  launch.group = lead.group->key.first;
  Charge(launch.prefill ? TakePrefills(lead, launch) : TakeDecodes(lead, launch), launch);
  return launch;
}

bool Scheduler::MayRide(const Queue& queue, const Queue& lead) const {
  return queue.flow->served <= lead.flow->served + options_.ride_ahead_us;
}

std::vector<Scheduler::Given> Scheduler::TakeDecodes(Queue& lead, Launch& launch) const {
  Group& group = *lead.group;
  std::vector<Given> given;
  int64_t room = options_.max_rows;
  // Takes steps from the front of `queue` while there is space for rows and `may` allows the step.
  const auto take = [&](Queue& queue, const auto& may) {
    const size_t before = launch.parts.size();
    auto end = queue.steps.begin();
    for (; end != queue.steps.end() && room > 0 && may(**end); ++end) {
      ScheduledStep& step = **end;
      launch.parts.push_back({.step = &step, .tokens = step.token_count, .last = true});
      room -= step.row_count;
      queue.credit -= step.row_count;
    }
    const size_t taken = launch.parts.size() - before;
    if (taken == 0) return;
    queue.steps.erase(queue.steps.begin(), end);
    given.push_back({.queue = &queue, .parts = taken});
  };
  // The leading step is taken whatever its size.
  take(lead, [&](const ScheduledStep&) { return launch.parts.empty(); });
  // Then each queue in turn gives as many rows as its weight allows. A second round fills the space that is left.
  const size_t count = group.queues.size();
  const double quantum = std::max(kLeastTurn, options_.max_rows / group.weight);
  int passed_over = 0;
  size_t looked_at = 0;
  for (; looked_at < count && room > 0 && passed_over < kPassedOver; ++looked_at) {
    Queue& queue = *group.queues[(group.turn + looked_at) % count];
    if (!MayRide(queue, lead)) {
      ++passed_over;
      continue;
    }
    queue.credit += quantum * queue.flow->weight;
    take(queue, [&](const ScheduledStep& step) { return step.row_count <= room && queue.credit >= step.row_count; });
  }
  passed_over = 0;
  for (size_t i = 0; i < looked_at && room > 0 && passed_over < kPassedOver; ++i) {
    Queue& queue = *group.queues[(group.turn + i) % count];
    if (MayRide(queue, lead)) take(queue, [&](const ScheduledStep& step) { return step.row_count <= room; });
    passed_over += queue.steps.empty() ? 0 : 1;
  }
  group.turn = (group.turn + std::max<size_t>(looked_at, 1) - 1) % count;
  return given;
}

int64_t Scheduler::SegmentTokens(const LaunchCost& cost) const {
  if (us_since_decode_ >= kBusyUs || options_.segment_us <= options_.busy_segment_us) {
    return cost.TokensWithin(options_.segment_us);
  }
  const int64_t at_most = cost.TokensWithin(std::min(2 * options_.busy_segment_us, options_.segment_us));
  return std::max(cost.TokensWithin(options_.busy_segment_us), std::min(at_most, options_.busy_segment_tokens));
}

std::vector<Scheduler::Given> Scheduler::TakePrefills(Queue& lead, Launch& launch) const {
  Group& group = *lead.group;
  const int64_t multiple = (*lead.steps.begin())->segment_multiple;
  const auto whole = [&](int64_t tokens) { return std::max(tokens / multiple, int64_t{1}) * multiple; };
  const int64_t budget = whole(std::min(SegmentTokens(group.cost), options_.max_segment_tokens));
  const auto most = static_cast<size_t>(std::max<int64_t>(1, budget / options_.least_merged_tokens));
  // Takes the leading step, then the first step of each other queue in turn, then the other steps of these queues.
  std::vector<Given> given = {{.queue = &lead, .parts = 1}};
  launch.parts.push_back({.step = *lead.steps.begin()});
  const size_t count = group.queues.size();
  for (size_t i = 0; i < count && launch.parts.size() < most; ++i) {
    Queue& queue = *group.queues[(group.turn + i) % count];
    if (&queue == &lead || !MayRide(queue, lead)) continue;
    launch.parts.push_back({.step = *queue.steps.begin()});
    given.push_back({.queue = &queue, .parts = 1});
  }
  for (size_t i = 0, queues = given.size(); i < queues; ++i) {
    Queue& queue = *given[i].queue;
    for (auto it = std::next(queue.steps.begin()); it != queue.steps.end() && launch.parts.size() < most; ++it) {
      launch.parts.push_back({.step = *it});
      given.push_back({.queue = &queue, .parts = 1});
    }
  }
  group.turn = (group.turn + 1) % count;
  const int64_t each = whole(budget / static_cast<int64_t>(launch.parts.size()));
  for (Launch::Part& part : launch.parts) {
    part.first = part.step->next_;
    part.tokens = std::min(each, part.step->token_count - part.first);
    part.last = part.first + part.tokens == part.step->token_count;
  }
  return given;
}

void Scheduler::Charge(const std::vector<Given>& given, Launch& launch) {
  for (const Launch::Part& part : launch.parts) launch.tokens += part.tokens;
  const Class kind = launch.prefill ? kPrefill : kDecode;
  launch.estimated_us = given.front().queue->group->cost.Estimate(launch.tokens);
  us_since_decode_ = launch.prefill ? us_since_decode_ + launch.estimated_us : 0;
  const double token_us = launch.estimated_us / static_cast<double>(std::max<int64_t>(1, launch.tokens));
  auto part = launch.parts.begin();
  for (const Given& some : given) {
    Queue& queue = *some.queue;
    const double share = ShareOf(*queue.flow);
    double sum_us = 0;
    for (const auto end = part + static_cast<ptrdiff_t>(some.parts); part != end; ++part) {
      ScheduledStep& step = *part->step;
      const double us = token_us * static_cast<double>(part->tokens);
      sum_us += us;
      step.turn->due[kind] = step.due_ + us;
      if (launch.prefill) {
        queue.steps.erase(&step);
        step.next_ += part->tokens;
        step.due_ += us;
        if (!part->last) queue.steps.insert(&step);
      }
      if (!part->last) continue;
      step.place_ = ScheduledStep::Place::kNowhere;
      AddSteps(*queue.flow, -1);
      --waiting_;
    }
    queue.flow->served += sum_us / share;
  }
  for (const Given& some : given) {
    Queue& queue = *some.queue;
    const std::vector<Queue*>& listed = queue.group->queues;
    const bool is_listed = queue.index < listed.size() && listed[queue.index] == &queue;  // `given` may have it twice
    if (queue.steps.empty() && is_listed) Deactivate(queue);
  }
}

void Scheduler::Observe(const Launch& launch, double us) {
  const auto group = groups_.find({launch.group, launch.prefill ? kPrefill : kDecode});
  if (group != groups_.end()) group->second.cost.Observe(launch.tokens, us);
}

bool Scheduler::IsShort(const ScheduledStep& step, double us) const {
  const auto group = groups_.find({step.group, kDecode});
  return group != groups_.end() && group->second.cost.measured() && group->second.cost.Estimate(step.token_count) <= us;
}

void Scheduler::ForgetIdle() {
  for (auto it = principals_.begin(); it != principals_.end();) {
    Principal& principal = it->second;
    bool idle = principal.spares == 0 && principal.spareless == 0 && !principal.has_set_weight;
    for (const Class kind : {kDecode, kPrefill}) {
      Flow& flow = principal.flows[kind];
      if (flow.steps == 0) {
        flow.first_steps.clear();
        for (const auto& [group, queue] : flow.queues) {
          if (--queue.group->known_by == 0) groups_.erase({group, kind});
        }
        flow.queues.clear();
      }
      idle = idle && flow.steps == 0 && !flow.in_heap && flow.served <= now_;
    }
    if (idle) {
      principals_.erase(it++);
    } else {
      ++it;
    }
  }
}

}  // namespace gdn
