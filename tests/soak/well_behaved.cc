#include "tests/soak/well_behaved.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "base/status_macros.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

using Clock = std::chrono::steady_clock;

double Now() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }
void SleepUntil(double time) {
  std::this_thread::sleep_until(
      Clock::time_point(std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(time))));
}

}  // namespace

double LoadFigures::Quantile(double fraction) const {
  if (calls.empty()) return 0;
  const auto rank = static_cast<size_t>(std::ceil(fraction * static_cast<double>(calls.size())));
  const CallTimes& call = calls[std::min(calls.size() - 1, rank > 0 ? rank - 1 : 0)];
  return call.answered - call.due;
}

WellBehaved::WellBehaved(const StepFeed* feed, const std::string& target, const WellBehavedOptions& options)
    : feed_(feed), options_(options), client_(Client::Connect(target, {.token = StrCat("Bearer ", options.name)})) {
  for (int i = 0; i < options.groups; ++i) {
    Group& group = groups_.emplace_back();
    for (int j = 0; j < options.rows; ++j) group.ids.push_back(StrCat(options.name, "-", i, "-", j));
    group.tokens.resize(static_cast<size_t>(feed->options().layers));
  }
}

absl::Status WellBehaved::Create() {
  for (const Group& group : groups_) GDN_RETURN_IF_ERROR(CreateGroup(group));
  return absl::OkStatus();
}

absl::Status WellBehaved::CreateGroup(const Group& group) {
  for (const std::string& id : group.ids) GDN_RETURN_IF_ERROR(client_->CreateSession(feed_->Creation(id)).status());
  return absl::OkStatus();
}

LoadFigures WellBehaved::Run(const std::function<bool()>& goes_on) {
  const double begin = Now() + 0.01;
  std::vector<LoadFigures> parts(groups_.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < groups_.size(); ++i) {
    threads.emplace_back([&, i] { parts[i] = RunGroup(i, begin, goes_on); });
  }
  for (std::thread& thread : threads) thread.join();
  LoadFigures sum;
  for (const LoadFigures& part : parts) {
    sum.seconds = std::max(sum.seconds, part.seconds);
    sum.offered += part.offered;
    sum.answered += part.answered;
    sum.errors += part.errors;
    if (sum.first_error.empty()) sum.first_error = part.first_error;
    sum.calls.insert(sum.calls.end(), part.calls.begin(), part.calls.end());
  }
  std::sort(sum.calls.begin(), sum.calls.end(),
            [](const CallTimes& a, const CallTimes& b) { return a.answered - a.due < b.answered - b.due; });
  return sum;
}

LoadFigures WellBehaved::RunGroup(size_t number, double begin_s, const std::function<bool()>& goes_on) {
  const double interval = static_cast<double>(groups_.size()) / options_.calls_per_s;
  const double first = begin_s + interval * static_cast<double>(number) / static_cast<double>(groups_.size());
  LoadFigures figures;
  for (; goes_on(); ++figures.offered) {
    CallTimes times{.due = first + interval * static_cast<double>(figures.offered)};
    SleepUntil(times.due);
    const absl::Status status = Step(groups_[number], times);
    figures.calls.push_back(times);
    figures.errors += status.ok() ? 0 : 1;
    figures.answered += status.ok() ? 1 : 0;
    if (!status.ok() && figures.first_error.empty()) figures.first_error = status.ToString();
  }
  figures.seconds = Now() - begin_s;
  // Counts also the calls that were due but not sent, because the calls before them took too long.
  figures.offered = std::max(figures.offered, static_cast<int64_t>((Now() - first) / interval) + 1);
  return figures;
}

// The next token of every session of the group, in the layer that has had the fewest.
absl::Status WellBehaved::Step(Group& group, CallTimes& times) {
  const auto layer = static_cast<int32_t>(group.calls++ % feed_->options().layers);
  int64_t& token = group.tokens[static_cast<size_t>(layer)];
  if (token == feed_->options().tokens) return absl::InternalError("the feed is at its end; learn more tokens");
  std::vector<FeedRow> rows;
  for (size_t i = 0; i < group.ids.size(); ++i) {
    rows.push_back({.session = StrCat("sessions/", group.ids[i]),
                    .stream = static_cast<int32_t>(i) % feed_->options().streams,
                    .token = token});
  }
  v1::DecodeRequest request = feed_->Decode(rows, layer);
  request.set_request_id(StrCat("r", group.calls));
  times.sent = Now();
  const absl::StatusOr<v1::DecodeResponse> reply = client_->Decode(request);
  times.answered = Now();
  GDN_RETURN_IF_ERROR(reply.status());
  ++token;
  return feed_->Check(rows, layer, *reply);
}

}  // namespace gdn
