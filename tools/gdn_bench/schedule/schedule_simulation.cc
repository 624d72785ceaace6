#include "tools/gdn_bench/schedule/schedule_simulation.h"

#include <algorithm>
#include <ctime>
#include <functional>
#include <memory>
#include <queue>
#include <random>
#include <utility>

namespace gdn::bench {
namespace {

// The calling thread's own time: what others do on its processor does not count.
double ThreadMicroseconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) * 1e-3;
}

class Simulation {
 public:
  explicit Simulation(const SimulationOptions& options)
      : options_(options), scheduler_(options.scheduler), random_(options.seed) {
    result_.loads.resize(options.loads.size());
    result_.device_us.resize(options.loads.size());
    for (const auto& [principal, weight] : options.weights) scheduler_.SetWeight(principal, weight);
    scheduler_.SetSpares(this, options.spares);
    for (size_t load = 0; load < options.loads.size(); ++load) {
      for (int32_t i = 0; i < options.loads[load].sessions; ++i) {
        clients_.push_back(std::make_unique<Client>());
        Client& client = *clients_.back();
        client.load = load;
        client.layer = static_cast<int32_t>(random_() % static_cast<uint64_t>(options.loads[load].layers));
        At(options.loads[load].begin_us + Thinking(load), [this, &client] { Call(client); });
      }
    }
  }

  SimulationResult Run() {
    const double end = options_.seconds * 1e6;
    while (!events_.empty() && events_.top().time <= end) {
      now_ = events_.top().time;
      const std::function<void()> happen = events_.top().happen;
      events_.pop();
      happen();
      Decide();
    }
    result_.busy = std::min(1.0, busy_us_ / end);
    for (const Window& window : windows_)
      result_.rows.push_back(window.launches > 0 ? window.rows / window.launches : 0);
    return std::move(result_);
  }

 private:
  struct Client {
    size_t load = 0;
    int32_t layer = 0;
    double called = 0;
    double runnable = 0;  // since when the call, or its next segment, could run
    ScheduledStep step;
    SessionTurn turn;
  };
  struct Event {
    double time = 0;
    uint64_t order = 0;
    std::function<void()> happen;
    bool operator<(const Event& other) const {  // the earliest on top
      return time != other.time ? time > other.time : order > other.order;
    }
  };
  struct Window {
    double rows = 0;
    double launches = 0;
  };

  void At(double time, std::function<void()> happen) { events_.push({time, ++events_made_, std::move(happen)}); }

  double Thinking(size_t load) {
    return std::exponential_distribution<>(1.0 / std::max(options_.loads[load].think_us, 1e-3))(random_);
  }

  void Call(Client& client) {
    const SimulatedLoad& load = options_.loads[client.load];
    ScheduledStep& step = client.step;
    step.principal = load.principal;
    step.turn = &client.turn;
    step.group = static_cast<uint64_t>(load.model) * 1000 + static_cast<uint64_t>(client.layer);
    step.prefill = load.prefill;
    step.token_count = load.tokens;
    step.pool = this;
    client.layer = (client.layer + 1) % load.layers;
    client.called = client.runnable = now_;
    scheduler_.Add(step);
    by_step_[&step] = &client;
  }

  // Chooses what runs next once what runs has little time left.
  void Decide() {
    while (free_at_ - now_ <= options_.lead_us && scheduler_.waiting() > 0) {
      result_.most_waiting = std::max(result_.most_waiting, scheduler_.waiting());
      const double begin = ThreadMicroseconds();
      const Launch launch = scheduler_.Next(/*prefills=*/true);
      result_.decision_us.push_back(ThreadMicroseconds() - begin);
      if (launch.empty()) return;
      Run(launch);
    }
    if (scheduler_.waiting() > 0 && !decide_is_due_) {
      decide_is_due_ = true;
      At(free_at_ - options_.lead_us, [this] { decide_is_due_ = false; });
    }
  }

  void Run(const Launch& launch) {
    const DeviceModel& device = options_.device;
    const auto tokens = static_cast<double>(launch.tokens);
    double us = launch.prefill ? device.prefill_fixed_us + device.prefill_token_us * tokens
                               : device.decode_fixed_us + device.decode_row_us * tokens;
    us *= 1 + device.noise * std::uniform_real_distribution<>(-1, 1)(random_);
    const double begin = std::max(now_, free_at_);
    free_at_ = begin + us;
    busy_us_ += us;
    result_.longest_launch_us = std::max(result_.longest_launch_us, us);
    if (!launch.prefill && begin < options_.seconds * 1e6) {  // what begins later is in no window
      const auto window = static_cast<size_t>(begin / (options_.window_seconds * 1e6));
      if (window >= windows_.size()) windows_.resize(window + 1);
      windows_[window].rows += tokens;
      windows_[window].launches += 1;
    }
    for (const Launch::Part& part : launch.parts) {
      Client& client = *by_step_[part.step];
      result_.device_us[client.load] += us * static_cast<double>(part.tokens) / tokens;
      result_.loads[client.load].waits_us.push_back(begin - client.runnable);
      client.runnable = free_at_;
    }
    At(free_at_, [this, launch, us] {
      scheduler_.Observe(launch, us);
      for (const Launch::Part& part : launch.parts) {
        if (part.last) Reply(*by_step_[part.step]);
      }
    });
  }

  void Reply(Client& client) {
    scheduler_.ReleaseSpare(client.step);
    result_.loads[client.load].calls_us.push_back(now_ - client.called);
    At(now_ + Thinking(client.load), [this, &client] { Call(client); });
  }

  const SimulationOptions& options_;
  Scheduler scheduler_;
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<Client>> clients_;
  absl::flat_hash_map<const ScheduledStep*, Client*> by_step_;
  std::priority_queue<Event> events_;
  uint64_t events_made_ = 0;
  double now_ = 0;
  double free_at_ = 0;  // when the device has done all that was launched
  double busy_us_ = 0;
  bool decide_is_due_ = false;
  std::vector<Window> windows_;
  SimulationResult result_;
};

}  // namespace

SimulationResult Simulate(const SimulationOptions& options) { return Simulation(options).Run(); }

}  // namespace gdn::bench
