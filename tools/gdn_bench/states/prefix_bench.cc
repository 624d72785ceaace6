#include "tools/gdn_bench/states/prefix_bench.h"

#include <cstdio>
#include <cstdlib>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/error.h"
#include "base/files/temporary_folder.h"
#include "base/status_macros.h"
#include "client/cpp/prompt_prefix.h"
#include "tools/gdn_bench/kernels/kernel_case.h"
#include "tools/gdn_bench/report.h"
#include "tools/gdn_bench/serve/rpc_setup.h"
#include "tools/gdn_bench/synthetic_checkpoint.h"

namespace gdn::bench {
namespace {

constexpr char kModelName[] = "bench";

absl::Status Validate(const PrefixBenchOptions& o) {
  GDN_RETURN_IF_ERROR(CheckRange("prefix_tokens", o.tokens, kPrefixSegmentTokens, 1 << 20));
  GDN_RETURN_IF_ERROR(CheckRange("prefix_layers", o.layers, 1, 128));
  GDN_RETURN_IF_ERROR(CheckRange("prefix_rounds", o.rounds, 1, 10000));
  if (o.tokens % kPrefixSegmentTokens == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--prefix_tokens is ", o.tokens, ", expected a multiple of ", kPrefixSegmentTokens));
}

// One prompt's segments; those of another text have nothing in common with it.
v1::PromptPrefix PromptOf(const PrefixBenchOptions& options, int text) {
  const std::vector<int64_t> ids(static_cast<size_t>(options.tokens) + 1, 1);
  return PromptPrefixOf(ids, kPrefixSegmentTokens, absl::StrCat("text ", text));
}

class PromptRunner {
 public:
  PromptRunner(Client& client, const PrefixBenchOptions& options, std::vector<int32_t> layers)
      : client_(client), options_(options), layers_(std::move(layers)) {
    const int64_t hidden = BenchLayerDims().hidden_size;
    segment_ = RandomTensor({kPrefixSegmentTokens, hidden}, -1, 1, DType::kBF16);
    rest_ = RandomTensor({options.rest_tokens, hidden}, -1, 1, DType::kBF16);
  }

  struct Times {
    double create_s = 0;
    double first_output_s = 0;
  };

  // All of a prompt by one session, which is there then. `expected` tokens of it have to be known.
  absl::StatusOr<Times> Run(const std::string& id, const v1::PromptPrefix& prefix, int64_t expected) {
    v1::CreateSessionRequest create;
    create.set_session_id(id);
    create.set_model(absl::StrCat("models/", kModelName));
    *create.mutable_prefix() = prefix;
    Times times;
    const double start = NowSeconds();
    GDN_ASSIGN_OR_RETURN(const v1::Session session, client_.CreateSession(create));
    times.create_s = NowSeconds() - start;
    if (session.prefix_tokens() != expected) {
      return absl::InternalError(
          absl::StrCat("of the prompt ", session.prefix_tokens(), " tokens were known, expected ", expected));
    }
    for (int64_t done = expected; done < options_.tokens; done += kPrefixSegmentTokens) {
      GDN_RETURN_IF_ERROR(PrefillAll(session.name(), segment_, /*last=*/nullptr));
    }
    std::string output;
    GDN_RETURN_IF_ERROR(PrefillAll(session.name(), rest_, &output));
    times.first_output_s = NowSeconds() - start;
    outputs_.insert(std::move(output));
    return times;
  }

  // Without the rest of the prompt, so that it can be kept.
  absl::Status RunPrefix(const std::string& id) {
    v1::CreateSessionRequest create;
    create.set_session_id(id);
    create.set_model(absl::StrCat("models/", kModelName));
    GDN_ASSIGN_OR_RETURN(const v1::Session session, client_.CreateSession(create));
    for (int64_t done = 0; done < options_.tokens; done += kPrefixSegmentTokens) {
      GDN_RETURN_IF_ERROR(PrefillAll(session.name(), segment_, /*last=*/nullptr));
    }
    return absl::OkStatus();
  }

  bool equal_bits() const { return outputs_.size() == 1; }

 private:
  absl::Status PrefillAll(const std::string& session, const v1::Tensor& tokens, std::string* last) {
    for (const int32_t layer : layers_) {
      v1::PrefillRequest request;
      request.set_session(session);
      request.set_layer(layer);
      *request.mutable_hidden_states()->mutable_hidden_states() = tokens;
      GDN_ASSIGN_OR_RETURN(v1::PrefillResponse reply,
                           client_.Prefill(request, {.timeout = absl::Minutes(10), .affinity = {}}));
      if (last != nullptr) *last += reply.output().data();
    }
    return absl::OkStatus();
  }

  Client& client_;
  const PrefixBenchOptions& options_;
  const std::vector<int32_t> layers_;
  v1::Tensor segment_, rest_;
  std::set<std::string> outputs_;
};

absl::Status Measure(Client& client, PrefixReport& report) {
  const PrefixBenchOptions& options = report.options;
  GDN_ASSIGN_OR_RETURN(const v1::Model model, client.GetModel(absl::StrCat("models/", kModelName)));
  report.state_bytes = model.state_bytes_per_session();
  PromptRunner runner(client, options, {model.gdn_layers().begin(), model.gdn_layers().end()});
  const v1::PromptPrefix prompt = PromptOf(options, 0);
  GDN_RETURN_IF_ERROR(runner.RunPrefix("keeper"));
  std::vector<double> keep_s;
  for (int round = 0; round < options.rounds; ++round) {
    const double start = NowSeconds();
    GDN_ASSIGN_OR_RETURN(const v1::KeepPrefixResponse kept, client.KeepPrefix("sessions/keeper", prompt));
    keep_s.push_back(NowSeconds() - start);
    if (!kept.kept()) return absl::InternalError("the server has not kept the prefix");
    if (round + 1 < options.rounds) GDN_RETURN_IF_ERROR(client.DropPrefixes().status());
  }
  GDN_RETURN_IF_ERROR(client.DeleteSession("sessions/keeper"));
  std::vector<double> known_s, unknown_s, create_s;
  for (int round = -1; round < options.rounds; ++round) {  // one to warm up
    std::fprintf(stderr, "prefix: round %d of %d\n", round + 1, options.rounds);
    GDN_ASSIGN_OR_RETURN(const auto unknown, runner.Run("unknown", PromptOf(options, round + 2), 0));
    GDN_ASSIGN_OR_RETURN(const auto known, runner.Run("known", prompt, options.tokens));
    for (const char* id : {"sessions/known", "sessions/unknown"}) GDN_RETURN_IF_ERROR(client.DeleteSession(id));
    if (round < 0) continue;
    unknown_s.push_back(unknown.first_output_s);
    known_s.push_back(known.first_output_s);
    create_s.push_back(known.create_s);
  }
  report.equal_bits = runner.equal_bits();
  report.known_s = Summarize(known_s);
  report.unknown_s = Summarize(unknown_s);
  report.create_s = Summarize(create_s);
  report.keep_s = Summarize(keep_s);
  report.ratio = SummarizeRatios(unknown_s, known_s);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PrefixReport> RunPrefixBench(const PrefixBenchOptions& options) {
  GDN_RETURN_IF_ERROR(Validate(options));
  PrefixReport report;
  report.options = options;
  if (getloadavg(&report.load_average, 1) != 1) report.load_average = 0;
  GDN_ASSIGN_OR_RETURN(const TemporaryFolder folder, TemporaryFolder::Make());
  GDN_RETURN_IF_ERROR(WriteSyntheticCheckpoint(BenchLayerDims(), options.layers, folder.path()));
  GDN_ASSIGN_OR_RETURN(
      const ServerPair servers,
      StartServers(
          {.server = options.server, .self = options.self, .folder = folder.path()},
          {absl::StrCat("--model=", kModelName, "=", folder.path()), absl::StrCat("--backend=", options.backend),
           absl::StrCat("--threads=", options.threads), "--prefix_cache_bytes=4GiB", "--log_level=warn"}));
  const auto client = ConnectAlone(servers.targets.gdn);
  GDN_ASSIGN_OR_RETURN(const v1::GetServerInfoResponse info, client->GetServerInfo());
  report.device = info.device();
  report.numerics_id = info.numerics_id();
  GDN_RETURN_IF_ERROR(Measure(*client, report));
  return report;
}

std::string PrefixTable(const PrefixReport& report) {
  const PrefixBenchOptions& o = report.options;
  std::string table = absl::StrFormat(
      "%s\n%d tokens in segments of %d, then %d more; %d layers, %.1f MB of states; medians of %d rounds\n",
      report.device, o.tokens, kPrefixSegmentTokens, o.rest_tokens, o.layers,
      static_cast<double>(report.state_bytes) / 1e6, o.rounds);
  table += BusyWarning(report.load_average);
  absl::StrAppendFormat(&table, "\n%-28s %10s\n", "to the first output", "ms");
  absl::StrAppendFormat(&table, "%-28s %10.1f\n", "prefix unknown", report.unknown_s.median * 1e3);
  absl::StrAppendFormat(&table, "%-28s %10.1f\n", "prefix known", report.known_s.median * 1e3);
  absl::StrAppendFormat(&table, "%-28s %10.1f\n", "  of that CreateSession", report.create_s.median * 1e3);
  absl::StrAppendFormat(&table, "%-28s %10.1f   p10 .. p90 %.1f .. %.1f\n", "unknown / known", report.ratio.median,
                        report.ratio.p10, report.ratio.p90);
  absl::StrAppendFormat(&table, "%-28s %10.1f\n", "KeepPrefix", report.keep_s.median * 1e3);
  absl::StrAppendFormat(&table, "%-28s %10s\n", "outputs", report.equal_bits ? "equal bits" : "DIFFER");
  return table;
}

nlohmann::ordered_json PrefixJson(const PrefixReport& report) {
  const PrefixBenchOptions& o = report.options;
  return {{"command", "prefix"},
          {"device", report.device},
          {"numerics_id", report.numerics_id},
          {"load_average", report.load_average},
          {"tokens", o.tokens},
          {"rest_tokens", o.rest_tokens},
          {"layers", o.layers},
          {"state_bytes", report.state_bytes},
          {"equal_bits", report.equal_bits},
          {"unknown_ms", SummaryJson(report.unknown_s, 1e3)},
          {"known_ms", SummaryJson(report.known_s, 1e3)},
          {"create_ms", SummaryJson(report.create_s, 1e3)},
          {"keep_ms", SummaryJson(report.keep_s, 1e3)},
          {"ratio", SummaryJson(report.ratio, 1)}};
}

}  // namespace gdn::bench
