#include "tools/gdnctl/trace/trace_view.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/string_cat.h"
#include "nlohmann/json.hpp"
#include "tools/gdnctl/print.h"

namespace gdn {
namespace {

using Json = nlohmann::json;

constexpr size_t kSlowestShown = 10;
constexpr size_t kStages = 10;  // v1::TraceStage, the unspecified one among them
constexpr std::array<const char*, kStages> kNames = {"?",      "parse",   "admit",    "queue",  "copy in",
                                                     "launch", "compute", "copy out", "commit", "reply"};

size_t IndexOf(const v1::CallStage& stage) {
  const auto index = static_cast<size_t>(stage.stage());
  return index < kStages ? index : 0;
}

double Microseconds(int64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1000; }

// What each stage took in all; nothing where the call did not go through it.
std::array<std::optional<int64_t>, kStages> ByStage(const v1::CallTrace& call) {
  std::array<std::optional<int64_t>, kStages> sums;
  for (const v1::CallStage& stage : call.stages()) {
    std::optional<int64_t>& sum = sums[IndexOf(stage)];
    sum = sum.value_or(0) + stage.duration_ns();
  }
  return sums;
}

// "" where there are none.
std::string StatisticsLine(std::string_view name, std::vector<int64_t> durations) {
  if (durations.empty()) return "";
  std::ranges::sort(durations);
  const auto rank = [&](size_t percent) {  // the least that so many percent do not exceed
    return Microseconds(durations[(durations.size() * percent + 99) / 100 - 1]);
  };
  return absl::StrFormat("  %-10s %12.1f %12.1f %12.1f %8d\n", AbslView(name), rank(50), rank(90), rank(100),
                         durations.size());
}

std::string MethodTable(const std::string& method, const std::vector<const v1::CallTrace*>& calls) {
  std::array<std::vector<int64_t>, kStages> durations;
  std::vector<int64_t> whole;
  for (const v1::CallTrace* call : calls) {
    whole.push_back(call->duration_ns());
    const auto sums = ByStage(*call);
    for (size_t stage = 0; stage < kStages; ++stage) {
      if (sums[stage].has_value()) durations[stage].push_back(*sums[stage]);
    }
  }
  std::string table = absl::StrFormat("%-12s %12s %12s %12s %8s\n", method, "p50 us", "p90 us", "most us", "calls");
  for (size_t stage = 0; stage < kStages; ++stage) {
    table += StatisticsLine(kNames[stage], std::move(durations[stage]));
  }
  return StrCat(table, StatisticsLine("in all", std::move(whole)), "\n");
}

std::string SlowCalls(const v1::TraceCallsResponse& traced) {
  std::vector<const v1::CallTrace*> calls;
  for (const v1::CallTrace& call : traced.calls()) calls.push_back(&call);
  const auto slower = [](const v1::CallTrace* a, const v1::CallTrace* b) {
    return a->duration_ns() > b->duration_ns();
  };
  std::ranges::stable_sort(calls, slower);
  if (calls.size() > kSlowestShown) calls.resize(kSlowestShown);
  std::string text =
      absl::StrFormat("The slowest, us:\n%-20s %-13s %5s %7s %10s", "begun", "method", "rows", "tokens", "in all");
  for (size_t stage = 1; stage < kStages; ++stage) absl::StrAppendFormat(&text, " %9s", kNames[stage]);
  text += "  session\n";
  for (const v1::CallTrace* call : calls) {
    absl::StrAppendFormat(&text, "%-20s %-13s %5d %7d %10.1f", FormatTimestamp(call->begin_time()), call->method(),
                          call->rows(), call->tokens(), Microseconds(call->duration_ns()));
    const auto sums = ByStage(*call);
    for (size_t stage = 1; stage < kStages; ++stage) {
      text += sums[stage].has_value() ? absl::StrFormat(" %9.1f", Microseconds(*sums[stage]))
                                      : absl::StrFormat(" %9s", "-");
    }
    StrAppend(&text, "  ", call->session(), " layer ", call->layer());
    if (call->launches() > 1) StrAppend(&text, ", ", call->launches(), " launches");
    if (call->status().code() != 0) StrAppend(&text, ", failed: ", call->status().message());
    text += "\n";
  }
  return text;
}

// What happens on one line of the picture.
struct Span {
  int64_t begin_ns;
  int64_t end_ns;
  std::string name;
  Json args;
};

class Picture {
 public:
  explicit Picture(int64_t zero_ns) : zero_ns_(zero_ns) {}

  void Name(int process, std::string_view name) { Metadata("process_name", process, 0, name); }
  void Name(int process, int track, std::string_view name) { Metadata("thread_name", process, track, name); }
  void Add(int process, int track, const Span& span) {
    events_.push_back({{"ph", "X"},
                       {"pid", process},
                       {"tid", track},
                       {"name", span.name},
                       {"ts", Microseconds(span.begin_ns - zero_ns_)},
                       {"dur", Microseconds(span.end_ns - span.begin_ns)},
                       {"args", span.args}});
  }
  // Each span from where those before it have ended; those within them are left out.
  void AddInTurn(int process, int track, std::vector<Span> spans) {
    const auto earlier = [](const Span& a, const Span& b) {
      return std::pair(a.begin_ns, a.end_ns) < std::pair(b.begin_ns, b.end_ns);
    };
    std::ranges::stable_sort(spans, earlier);
    int64_t reached = zero_ns_;
    for (Span& span : spans) {
      span.begin_ns = std::max(span.begin_ns, reached);
      if (span.end_ns <= span.begin_ns) continue;
      reached = span.end_ns;
      Add(process, track, span);
    }
  }

  std::string Text() const {
    const Json document = {{"displayTimeUnit", "ns"}, {"traceEvents", events_}};
    return document.dump(/*indent=*/-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
  }

 private:
  void Metadata(const char* what, int process, int track, std::string_view name) {
    events_.push_back(
        {{"ph", "M"}, {"pid", process}, {"tid", track}, {"name", what}, {"args", {{"name", std::string(name)}}}});
  }

  const int64_t zero_ns_;
  Json events_ = Json::array();
};

Json ArgumentsOf(const v1::CallTrace& call) {
  Json args = {{"session", call.session()},
               {"layer", call.layer()},
               {"rows", call.rows()},
               {"tokens", call.tokens()},
               {"request_bytes", call.request_bytes()},
               {"response_bytes", call.response_bytes()},
               {"launches", call.launches()}};
  if (call.status().code() != 0) args["status"] = call.status().message();
  return args;
}

// Stages that a thread does without doing anything else; in the others a call may wait.
bool IsDoneInOneGo(v1::TraceStage stage) {
  return stage == v1::TRACE_STAGE_PARSE || stage == v1::TRACE_STAGE_COPY_IN || stage == v1::TRACE_STAGE_LAUNCH ||
         stage == v1::TRACE_STAGE_COPY_OUT || stage == v1::TRACE_STAGE_COMMIT;
}

}  // namespace

std::string TraceTables(const v1::TraceCallsResponse& traced) {
  std::map<std::string, std::vector<const v1::CallTrace*>> by_method;
  for (const v1::CallTrace& call : traced.calls()) by_method[call.method()].push_back(&call);
  std::string text;
  for (const auto& [method, calls] : by_method) text += MethodTable(method, calls);
  if (traced.calls_size() > 0) text += SlowCalls(traced);
  return text;
}

std::string ChromeTrace(const v1::TraceCallsResponse& traced) {
  constexpr int kCalls = 1, kThreads = 2;
  std::vector<const v1::CallTrace*> calls;
  for (const v1::CallTrace& call : traced.calls()) calls.push_back(&call);
  std::ranges::stable_sort(calls, {}, [](const v1::CallTrace* call) { return call->begin_ns(); });
  Picture picture(calls.empty() ? 0 : calls.front()->begin_ns());
  picture.Name(kCalls, "calls");
  picture.Name(kThreads, "threads and device");

  std::vector<int64_t> lanes;                      // when the last call of each ends
  std::map<std::string, std::vector<Span>> works;  // by thread
  for (const v1::CallTrace* call : calls) {
    const int64_t begin = call->begin_ns();
    auto lane = std::ranges::find_if(lanes, [&](int64_t end) { return end <= begin; });
    if (lane == lanes.end()) lane = lanes.insert(lane, 0);
    *lane = begin + call->duration_ns();
    const int track = static_cast<int>(lane - lanes.begin()) + 1;
    picture.Add(kCalls, track, {begin, *lane, call->method(), ArgumentsOf(*call)});
    std::vector<Span> stages;
    for (const v1::CallStage& stage : call->stages()) {
      const int64_t stage_begin = begin + stage.begin_ns();
      stages.push_back({stage_begin, stage_begin + stage.duration_ns(), kNames[IndexOf(stage)],
                        stage.thread().empty() ? Json::object() : Json{{"thread", stage.thread()}}});
      const bool on_device = stage.stage() == v1::TRACE_STAGE_COMPUTE;
      if (!on_device && (!IsDoneInOneGo(stage.stage()) || stage.thread().empty())) continue;
      works[on_device ? "device" : stage.thread()].push_back(stages.back());
    }
    picture.AddInTurn(kCalls, track, std::move(stages));
  }
  for (size_t i = 0; i < lanes.size(); ++i) {
    picture.Name(kCalls, static_cast<int>(i) + 1, StrCat("calls ", i + 1));
  }
  int track = 0;
  for (auto& [thread, spans] : works) {
    picture.Name(kThreads, ++track, thread);
    picture.AddInTurn(kThreads, track, std::move(spans));
  }
  return picture.Text();
}

}  // namespace gdn
