// Decodes many sessions for long, more than the device has room for, and looks whether the server grows.
//
//   steady_soak --server=build/cpu/bin/gdn_server --seconds=600
//
// Callers send batches of sessions picked at random; those that are not on the device come back from host memory or
// the disk, and others leave. Sessions that have taken all of their tokens end and begin anew. Every answer is compared
// with what an undisturbed server said. Each second the server's memory, its descriptors and the rows of its launches
// are looked at. Exit code 1 where a call failed, an answer differs, or, with --check_trends, the line of least squares
// through the last four fifths of one of these figures climbs or falls by 1% of its mean or more.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "client/cpp/client.h"
#include "tests/soak/process_figures.h"
#include "tests/soak/run_in_folder.h"
#include "tests/soak/soak_state.h"
#include "tests/soak/step_feed.h"
#include "tests/soak/trend.h"
#include "tests/support/random.h"
#include "tools/common/restartable_server.h"

ABSL_FLAG(std::string, server, "", "The gdn_server program.");
ABSL_FLAG(double, seconds, 600, "How long.");
ABSL_FLAG(int32_t, sessions, 500, "In all.");
ABSL_FLAG(int32_t, batch, 64, "Sessions of a call.");
ABSL_FLAG(int32_t, callers, 2, "Each has its part of the sessions.");
ABSL_FLAG(int32_t, on_device, 300, "Sessions that the device has room for.");
ABSL_FLAG(int32_t, on_host, 100, "Sessions that host memory has room for; the others are on the disk.");
ABSL_FLAG(int64_t, tokens, 512, "Of a session in each layer, before it begins anew.");
ABSL_FLAG(uint64_t, seed, 1, "Of inputs and picks.");
ABSL_FLAG(std::vector<std::string>, server_flags, {}, "More flags of both servers, such as --backend=gpu.");
ABSL_FLAG(bool, check_trends, true, "Whether a figure that climbs or falls is a failure.");
ABSL_FLAG(std::string, samples, "", "A file for all samples, as text.");

namespace gdn {
namespace {

constexpr double kMostChangePercent = 1;
constexpr double kWarmUp = 0.2;  // of the time, that trends leave out

// Data that all callers share.
struct Soak : SoakState {
  std::atomic<int64_t> calls = 0;
  std::atomic<int64_t> begun_anew = 0;
};

// One caller, and the sessions that are its own.
class SteadyCaller {
 public:
  SteadyCaller(Soak* soak, const StepFeed* feed, Client* client, int number, int sessions)
      : soak_(soak), feed_(feed), client_(client), number_(number), random_(absl::GetFlag(FLAGS_seed) + number) {
    for (int i = 0; i < sessions; ++i) {
      sessions_.push_back({.id = StrCat("s", number, "-", i),
                           .stream = i % feed->options().streams,
                           .tokens = std::vector<int64_t>(static_cast<size_t>(feed->options().layers))});
    }
  }

  absl::Status CreateAll() {
    for (const OneSession& session : sessions_) {
      GDN_RETURN_IF_ERROR(client_->CreateSession(feed_->Creation(session.id)).status());
    }
    return absl::OkStatus();
  }

  absl::Status Run() {
    while (!soak_->over) GDN_RETURN_IF_ERROR(Step());
    return absl::OkStatus();
  }

 private:
  struct OneSession {
    std::string id;
    int32_t stream = 0;
    std::vector<int64_t> tokens;  // of each layer
  };

  absl::Status Step() {
    const int32_t layer = random_.NextInt(0, feed_->options().layers - 1);
    const size_t count = std::min(sessions_.size(), static_cast<size_t>(absl::GetFlag(FLAGS_batch)));
    std::vector<FeedRow> rows;
    for (size_t i = 0; i < count; ++i) {  // the first `count` of a shuffle
      const auto last = static_cast<int32_t>(sessions_.size() - 1);
      std::swap(sessions_[i], sessions_[static_cast<size_t>(random_.NextInt(static_cast<int32_t>(i), last))]);
      OneSession& session = sessions_[i];
      int64_t& token = session.tokens[static_cast<size_t>(layer)];
      if (token == feed_->options().tokens) GDN_RETURN_IF_ERROR(BeginAnew(session));
      rows.push_back({.session = StrCat("sessions/", session.id), .stream = session.stream, .token = token++});
    }
    v1::DecodeRequest request = feed_->Decode(rows, layer);
    request.set_request_id(StrCat("r", number_, "-", ++requests_));
    GDN_ASSIGN_OR_RETURN(const v1::DecodeResponse reply, client_->Decode(request));
    ++soak_->calls;
    return feed_->Check(rows, layer, reply);
  }

  absl::Status BeginAnew(OneSession& session) {
    ++soak_->begun_anew;
    GDN_RETURN_IF_ERROR(client_->DeleteSession(StrCat("sessions/", session.id)));
    GDN_RETURN_IF_ERROR(client_->CreateSession(feed_->Creation(session.id)).status());
    session.tokens.assign(session.tokens.size(), 0);
    return absl::OkStatus();
  }

  Soak* const soak_;
  const StepFeed* const feed_;
  Client* const client_;
  const int number_;
  Random random_;
  std::vector<OneSession> sessions_;
  int64_t requests_ = 0;
};

// The server's launches, as the traces of its calls tell: those that were computed together have equal times.
class Launches {
 public:
  absl::Status Look(Client& client) {
    GDN_ASSIGN_OR_RETURN(const v1::TraceCallsResponse traces, client.TraceCalls({}));
    for (const v1::CallTrace& call : traces.calls()) {
      if (!seen_.emplace(call.begin_ns(), call.session()).second) continue;
      for (const v1::CallStage& stage : call.stages()) {
        if (stage.stage() == v1::TRACE_STAGE_COMPUTE) rows_[call.begin_ns() + stage.begin_ns()] += call.rows();
      }
    }
    return absl::OkStatus();
  }

  size_t count() const { return rows_.size(); }
  // Rows a launch of each second.
  std::vector<Sample> Occupancy() const {
    std::map<int64_t, std::pair<int64_t, int64_t>> of_second;  // rows, launches
    for (const auto& [time_ns, rows] : rows_) {
      auto& [sum, launches] = of_second[(time_ns - rows_.begin()->first) / 1'000'000'000];
      sum += rows;
      ++launches;
    }
    std::vector<Sample> samples;
    for (const auto& [second, sums] : of_second) {
      samples.push_back(
          {static_cast<double>(second), static_cast<double>(sums.first) / static_cast<double>(sums.second)});
    }
    return samples;
  }

 private:
  std::set<std::pair<int64_t, std::string>> seen_;
  std::map<int64_t, int64_t> rows_;  // by the time that the launch began at
};

struct Figure {
  std::string name;
  double unit = 1;
  std::vector<Sample> samples;
};

// One sample of the process, of many looks over `seconds`: the mean of its memory, and the descriptors that stayed
// open. Those that stores have open for milliseconds are as many as the machine is busy.
absl::Status Look(pid_t pid, double at, double seconds, Figure* memory, Figure* descriptors) {
  constexpr int kLooks = 50;
  double bytes = 0;
  double open = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kLooks; ++i) {
    absl::SleepFor(absl::Seconds(seconds / kLooks));
    GDN_ASSIGN_OR_RETURN(const ProcessFigures process, ReadProcess(pid));
    bytes += static_cast<double>(process.resident_bytes) / kLooks;
    open = std::min(open, static_cast<double>(process.descriptors));
  }
  memory->samples.push_back({at, bytes});
  descriptors->samples.push_back({at, open});
  return absl::OkStatus();
}

// Prints the figure, and whether it stayed where it was.
bool IsSteady(const Figure& figure, double seconds) {
  std::vector<Sample> late;
  for (const Sample& sample : figure.samples) {
    if (sample.seconds >= kWarmUp * seconds) late.push_back(sample);
  }
  if (late.empty()) return false;
  const Trend trend = TrendOf(late);
  const bool steady = std::abs(trend.change_percent) < kMostChangePercent;
  absl::PrintF("  %-22s mean %9.2f, first %9.2f, last %9.2f, change %+.3f%% of the mean%s\n", figure.name,
               trend.mean / figure.unit, late.front().value / figure.unit, late.back().value / figure.unit,
               trend.change_percent, steady ? "" : "  NOT STEADY");
  return steady;
}

void WriteSamples(const std::vector<Figure>& figures, const std::string& path) {
  if (path.empty()) return;
  std::ofstream file(path);
  for (const Figure& figure : figures) {
    for (const Sample& sample : figure.samples) {
      file << figure.name << '\t' << sample.seconds << '\t' << sample.value / figure.unit << '\n';
    }
  }
}

// Tiers of the server: what moved, for people.
absl::StatusOr<std::string> Moves(Client& client) {
  GDN_ASSIGN_OR_RETURN(const v1::GetServerInfoResponse info, client.GetServerInfo());
  std::string text;
  int64_t stores = 0;
  for (const v1::TierInfo& tier : info.tiers()) {
    text += absl::StrFormat("%s%s: %d in, %d out, %d failures", text.empty() ? "" : "; ", tier.name(), tier.stores(),
                            tier.loads(), tier.failures());
    stores += tier.stores();
    if (tier.failures() > 0) return absl::InternalError(text);
  }
  if (stores == 0) return absl::InternalError("no session has moved, so nothing was tested");
  return text;
}

absl::StatusOr<StepFeed> LearnFeed(const std::string& program, const std::string& folder) {
  std::vector<std::string> flags = absl::GetFlag(FLAGS_server_flags);
  flags.push_back("--device-state-bytes=256MiB");
  RestartableServer undisturbed(program, flags, folder, "undisturbed");
  GDN_RETURN_IF_ERROR(undisturbed.Start());
  FeedOptions options{.key_heads = 4, .value_heads = 8, .key_dim = 64, .value_dim = 64};  // 400 KiB a session
  options.tokens = absl::GetFlag(FLAGS_tokens);
  options.seed = absl::GetFlag(FLAGS_seed);
  return StepFeed::Learn(*Client::Connect(undisturbed.target()), options);
}

absl::Status RunSoak(const std::string& folder) {
  const std::string program = absl::GetFlag(FLAGS_server);
  const double seconds = absl::GetFlag(FLAGS_seconds);
  const int callers = absl::GetFlag(FLAGS_callers);
  GDN_ASSIGN_OR_RETURN(const StepFeed feed, LearnFeed(program, folder));
  std::filesystem::create_directory(folder + "/disk");
  std::vector<std::string> flags = absl::GetFlag(FLAGS_server_flags);
  flags.push_back(StrCat("--device-state-bytes=", absl::GetFlag(FLAGS_on_device) * feed.session_bytes()));
  flags.push_back(StrCat("--host-state-bytes=", absl::GetFlag(FLAGS_on_host) * feed.session_bytes()));
  flags.push_back(StrCat("--disk-dir=", folder, "/disk"));
  flags.push_back("--disk-high-watermark=100");  // however full this disk is
  flags.push_back("--trace-calls=256");
  RestartableServer server(program, flags, folder, "server");
  GDN_RETURN_IF_ERROR(server.Start());
  const std::unique_ptr<Client> client = Client::Connect(server.target());

  Soak soak;
  std::vector<std::unique_ptr<SteadyCaller>> all;
  for (int i = 0; i < callers; ++i) {
    all.push_back(
        std::make_unique<SteadyCaller>(&soak, &feed, client.get(), i, absl::GetFlag(FLAGS_sessions) / callers));
    GDN_RETURN_IF_ERROR(all.back()->CreateAll());
  }
  std::vector<std::thread> threads;
  for (const auto& caller : all) {
    threads.emplace_back([&soak, caller = caller.get()] {
      if (const absl::Status status = caller->Run(); !status.ok()) soak.Fail(status);
    });
  }
  Launches launches;
  Figure memory{.name = "memory, MiB", .unit = 1 << 20, .samples = {}};
  Figure descriptors{.name = "descriptors", .unit = 1, .samples = {}};
  const absl::Time begin = absl::Now();
  for (double at = 0; !soak.over && at < seconds; at = absl::ToDoubleSeconds(absl::Now() - begin)) {
    absl::Status looked = Look(server.pid(), at, std::min(1.0, seconds / 10), &memory, &descriptors);
    if (looked.ok()) looked = launches.Look(*client);
    if (!looked.ok()) soak.Fail(looked);
  }
  soak.over = true;
  for (std::thread& thread : threads) thread.join();
  GDN_RETURN_IF_ERROR(soak.status());

  GDN_ASSIGN_OR_RETURN(const std::string moves, Moves(*client));
  absl::PrintF(
      "steady_soak on %s: %.0f s, %d sessions (%d on the device, %d in host memory), %d a call, %d callers: %d calls, "
      "%d launches traced, %d sessions begun anew, all answers the right bits\n  %s\n",
      MachineName(), seconds, absl::GetFlag(FLAGS_sessions), absl::GetFlag(FLAGS_on_device),
      absl::GetFlag(FLAGS_on_host), absl::GetFlag(FLAGS_batch), callers, soak.calls.load(), launches.count(),
      soak.begun_anew.load(), moves);
  const std::vector<Figure> figures = {
      memory, descriptors, {.name = "rows a launch", .unit = 1, .samples = launches.Occupancy()}};
  bool steady = true;
  for (const Figure& figure : figures) steady &= IsSteady(figure, seconds);
  WriteSamples(figures, absl::GetFlag(FLAGS_samples));
  if (steady || !absl::GetFlag(FLAGS_check_trends)) return absl::OkStatus();
  return absl::InternalError("a figure climbs or falls");
}

}  // namespace
}  // namespace gdn

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  return gdn::RunInFolder("steady_soak", gdn::RunSoak);
}
