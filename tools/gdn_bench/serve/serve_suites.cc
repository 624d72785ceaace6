// The loads that `gdn_bench serve` runs: those of the flags, or of a suite with the goals of each.
#include <utility>

#include "absl/strings/str_cat.h"
#include "tools/gdn_bench/serve/serve_bench.h"

namespace gdn::bench {
namespace {

constexpr int kPromptTokens = 2048;
constexpr int kBesideTokens = 32'768;
constexpr int kSharedSessions = 32;  // of decodes that are measured with shared memory too
constexpr double kSharedGoal = 0.5;
constexpr double kRingGoal = 1;          // of a ring's round trip, kernels included, over an echo
constexpr double kSleepingRingGoal = 2;  // of a ring whose sides sleep over two processes that wake each other
constexpr double kRingRateGoal = 3;      // of many clients' rings over their messages
constexpr int kStepRows = 32;
constexpr int kStepPrefillTokens = 512;
constexpr int kStepDrafts = 4;
constexpr int kStepDraftTokens = 4;

std::string NameOfStep(const Workload& load) {
  std::string name = absl::StrCat("Step of ", load.decodes(), " decodes");
  if (load.drafts > 0) absl::StrAppend(&name, ", ", load.drafts, " drafts");
  if (load.prefill_tokens > 0) absl::StrAppend(&name, ", prefill T=", load.prefill_tokens);
  return absl::StrCat(name, load.request_ids ? ", ids" : "");
}

std::string NameOf(const Workload& load, int clients) {
  const char* const method = load.call == CallKind::kDecode ? "Decode" : "Prefill";
  std::string name = absl::StrCat(load.api == Api::kStream ? "Stream" : "", method);
  if (load.call == CallKind::kDecode) absl::StrAppend(&name, " B=", load.sessions);
  if (load.call == CallKind::kPrefill || load.tokens > 1) absl::StrAppend(&name, " T=", load.tokens);
  if (clients > 1) absl::StrAppend(&name, ", ", clients, " clients");
  if (load.request_ids) absl::StrAppend(&name, ", ids");
  return name;
}

class Rows {
 public:
  explicit Rows(Workload base) : base_(base) { base_.tokens = 1; }

  void Decode(Api api, bool ids, int sessions, int clients, int beside_tokens, std::vector<RatioGoal> goals) {
    Workload load = base_;
    load.api = api;
    load.request_ids = ids;
    load.sessions = sessions;
    Add(load, clients, beside_tokens, std::move(goals));
  }
  void Prefill(bool ids, int clients, std::vector<RatioGoal> goals) {
    Workload load = base_;
    load.call = CallKind::kPrefill;
    load.api = Api::kUnary;
    load.request_ids = ids;
    load.tokens = kPromptTokens;
    Add(load, clients, /*beside_tokens=*/0, std::move(goals));
  }
  std::vector<ServeRow> Take() { return std::move(rows_); }

 private:
  void Add(const Workload& load, int clients, int beside_tokens, std::vector<RatioGoal> goals) {
    const std::string beside = beside_tokens == 0 ? "" : absl::StrCat(", beside a prefill of ", beside_tokens);
    const bool shared = load.call == CallKind::kDecode && load.sessions == kSharedSessions;
    if (shared) goals.push_back({RatioKind::kP50SharedOverMessages, kSharedGoal});
    const bool ring = load.call == CallKind::kDecode && load.api == Api::kUnary && beside_tokens == 0;
    if (ring && clients == 1) goals.push_back({RatioKind::kP50RingOverRawEcho, kRingGoal});
    if (ring && clients == 1 && load.ring_spin_us == 0 && load.sessions == 1) {
      goals.push_back({RatioKind::kP50RingOverWakeEcho, kSleepingRingGoal});
    }
    if (ring && clients > 1) goals.push_back({RatioKind::kRateRingOverMessages, kRingRateGoal});
    rows_.push_back({.name = NameOf(load, clients) + beside,
                     .load = load,
                     .clients = clients,
                     .beside_tokens = beside_tokens,
                     .goals = std::move(goals),
                     .shared_memory = shared,
                     .ring = ring});
  }

  Workload base_;
  std::vector<ServeRow> rows_;
};

// The service alone: on a backend that computes nothing.
std::vector<ServeRow> HostSuite(const Workload& base) {
  Rows rows(base);
  for (const Api api : {Api::kUnary, Api::kStream}) {
    for (const bool ids : {false, true}) {
      for (const int sessions : {1, 8, 32}) {
        rows.Decode(api, ids, sessions, /*clients=*/1, /*beside_tokens=*/0,
                    {{RatioKind::kP50OverEcho, 1.15}, {RatioKind::kP99OverEcho, 1.25}, {RatioKind::kP50OverRawEcho}});
      }
    }
  }
  return rows.Take();
}

// A Step over the separate calls that do its work. `base`: with or without request ids.
std::vector<ServeRow> StepRows(const Workload& base) {
  std::vector<ServeRow> rows;
  const auto add = [&](int drafts, int prefill_tokens, double goal) {
    Workload load = base;
    load.call = CallKind::kStep;
    load.api = Api::kUnary;
    load.sessions = kStepRows;
    load.tokens = 1;
    load.drafts = drafts;
    load.draft_tokens = drafts > 0 ? kStepDraftTokens : 0;
    load.prefill_tokens = prefill_tokens;
    ServeRow row{.name = NameOfStep(load), .load = load, .clients = 1, .goals = {}};
    row.goals = {{RatioKind::kP50StepOverSeparate, goal}};
    rows.push_back(std::move(row));
  };
  add(/*drafts=*/0, /*prefill_tokens=*/0, 1.0);  // only decodes: a Decode is the one separate call
  add(/*drafts=*/0, kStepPrefillTokens, 0.85);
  add(kStepDrafts, kStepPrefillTokens, 0.85);
  return rows;
}

std::vector<ServeRow> StepSuite(const Workload& base) {
  std::vector<ServeRow> rows;
  for (const bool ids : {false, true}) {
    Workload load = base;
    load.request_ids = ids;
    for (ServeRow& row : StepRows(load)) rows.push_back(std::move(row));
  }
  return rows;
}

// The service beside the kernels of a GPU, and its steps.
std::vector<ServeRow> GoalsSuite(const Workload& base) {
  Rows rows(base);
  for (const bool ids : {false, true}) {
    for (const int sessions : {1, 32, 128}) {
      rows.Decode(base.api, ids, sessions, /*clients=*/1, /*beside_tokens=*/0,
                  {{RatioKind::kP50LessKernelsOverEcho, 1.25}, {RatioKind::kP50OverRawEcho}});
    }
    rows.Prefill(ids, /*clients=*/1, {{RatioKind::kP50OverEchoAndKernels, 1.15}});
    rows.Prefill(ids, /*clients=*/8, {{RatioKind::kRateOverBound, 0.85}, {RatioKind::kRateOverEcho}});
    rows.Decode(base.api, ids, /*sessions=*/1, /*clients=*/64, /*beside_tokens=*/0,
                {{RatioKind::kRateOverBound, 0.85}, {RatioKind::kRateOverEcho}});
    rows.Decode(base.api, ids, /*sessions=*/1, /*clients=*/1, kBesideTokens,
                {{RatioKind::kP99BesideLessSegmentOver, 1.3}});
  }
  std::vector<ServeRow> all = rows.Take();
  for (ServeRow& row : StepSuite(base)) all.push_back(std::move(row));
  return all;
}

// One server on several devices over one on one: what clients on the host get of them. A client waits for its reply, so
// the same clients do not fill two devices as they fill one: rows of twice the clients show what the server adds.
std::vector<ServeRow> DevicesSuite(const Workload& base) {
  Workload load = base;
  load.api = Api::kUnary;
  load.tokens = 1;
  load.sessions = 64;
  std::vector<ServeRow> rows;
  for (const int clients : {8, 16, 32}) {
    ServeRow row{.name = NameOf(load, clients), .load = load, .clients = clients, .goals = {}};
    row.goals = {{RatioKind::kRateSeveralOverOne, 1.85}, {RatioKind::kRateOverBound}};
    row.shared_memory = true;
    row.several_devices = true;
    rows.push_back(std::move(row));
  }
  return rows;
}

// What TLS, tokens and metrics cost the service beside what TLS costs anybody.
std::vector<ServeRow> SecureSuite(const Workload& base) {
  Workload load = base;
  load.api = Api::kUnary;
  load.tokens = 1;
  load.sessions = 32;
  ServeRow row{.name = NameOf(load, 1), .load = load, .clients = 1, .goals = {}};
  row.goals = {{RatioKind::kP50SecureOverPlain, 1.10}, {RatioKind::kP50OverEcho}};
  row.secure = true;
  return {row};
}

}  // namespace

absl::StatusOr<std::vector<ServeRow>> ServeRows(const ServeOptions& options) {
  if (options.suite == "host") return HostSuite(options.load);
  if (options.suite == "goals") return GoalsSuite(options.load);
  if (options.suite == "step") return StepSuite(options.load);
  if (options.suite == "devices") return DevicesSuite(options.load);
  if (options.suite == "secure") return SecureSuite(options.load);
  if (!options.suite.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--suite='", options.suite, "' is not a suite; use host, goals, step, devices or secure"));
  }
  std::vector<ServeRow> rows;
  for (const int clients : options.concurrency) {
    rows.push_back({.name = NameOf(options.load, clients),
                    .load = options.load,
                    .clients = clients,
                    .beside_tokens = options.beside_tokens,
                    .goals = EveryRatio(),
                    .shared_memory = options.shared_memory,
                    .ring = options.ring && options.load.call != CallKind::kStep && options.load.api == Api::kUnary});
  }
  return rows;
}

}  // namespace gdn::bench
