// gdnctl sessions: list, create, show, delete, reset, evict.
#include <algorithm>
#include <iterator>

#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "client/cpp/rpc_status.h"
#include "tools/gdnctl/commands.h"
#include "tools/gdnctl/print.h"

ABSL_FLAG(std::string, model, "", "Name of the model.");
ABSL_FLAG(std::vector<std::string>, operator, {},
          "Make an operator session instead: H,HV,K,V or H,HV,K,V,LAYERS. Add ,per-channel at the end if g has a K "
          "axis (KDA).");
ABSL_FLAG(
    std::vector<std::string>, layers, {},
    "Layers of the model that the session has, such as 0-23,30. A range stands for its GDN layers. Empty: all that "
    "are served.");
ABSL_FLAG(std::string, id, "", "Id of the new session. Empty: the server chooses one.");
ABSL_FLAG(bool, all, false,
          "For sessions: list those of every caller, with their owners (for admins). For checkpoints: list those of "
          "all your sessions.");
ABSL_FLAG(std::string, tier, "",
          "Fastest tier that may hold the states: host, disk or redis. Empty: the fastest tier with room.");
ABSL_DECLARE_FLAG(int64_t, epoch);
ABSL_DECLARE_FLAG(std::string, subject);
ABSL_FLAG(std::string, affinity, "", "Routing key. Sessions that are decoded in one call share one.");

namespace gdn {
namespace {

absl::StatusOr<int> RunList(const std::vector<std::string>&) {
  const bool of_all = absl::GetFlag(FLAGS_all);
  const auto client = ConnectByFlags();
  GDN_ASSIGN_OR_RETURN(const std::vector<v1::Session> sessions,
                       of_all ? client->ListAllSessions() : client->ListSessions());
  v1::ListSessionsResponse all;
  all.mutable_sessions()->Add(sessions.begin(), sessions.end());
  return Show(all, [&] {
    if (of_all) absl::PrintF("%-32s ", "owner");
    absl::PrintF("%-44s %-32s %10s %12s  %-7s %s\n", "session", "of", "tokens", "state", "tier", "created");
    for (const v1::Session& session : sessions) {
      int64_t tokens = 0;  // layers of a sequence may be apart by a step
      for (const v1::LayerState& layer : session.layers()) tokens = std::max<int64_t>(tokens, layer.token_count());
      if (of_all) absl::PrintF("%-32s ", session.owner());
      absl::PrintF("%-44s %-32s %10d %12s  %-7s %s\n", session.name(), FormatSpec(session), tokens,
                   FormatBytes(session.state_bytes()), FormatTier(session.tier()),
                   FormatTimestamp(session.create_time()));
    }
  });
}

// Returns the layers of --layers: the model's GDN layers in each range, and each single layer. The server checks these.
absl::StatusOr<std::vector<int32_t>> LayersByFlag(Client& client, const std::string& model) {
  std::vector<int32_t> layers;
  for (const std::string& text : absl::GetFlag(FLAGS_layers)) {
    const std::vector<std::string> ends = absl::StrSplit(text, '-');
    int32_t first = 0, last = 0;
    if (ends.size() > 2 || !absl::SimpleAtoi(ends.front(), &first) || !absl::SimpleAtoi(ends.back(), &last) ||
        last < first) {
      return UsageError(StrCat("--layers has '", text, "', expected layers such as 0-23,30"));
    }
    if (ends.size() == 1) {
      layers.push_back(first);
      continue;
    }
    GDN_ASSIGN_OR_RETURN(const v1::Model found, client.GetModel(model));
    const size_t before = layers.size();
    std::ranges::copy_if(found.gdn_layers(), std::back_inserter(layers),
                         [=](int32_t layer) { return layer >= first && layer <= last; });
    if (layers.size() == before) {
      return UsageError(StrCat("--layers ", text, " has no layer of ", model, "; expected some of ",
                               FormatRanges(found.gdn_layers())));
    }
  }
  return layers;
}

absl::StatusOr<int> RunCreate(const std::vector<std::string>&) {
  v1::CreateSessionRequest request;
  const auto client = ConnectByFlags();
  const std::string model = absl::GetFlag(FLAGS_model);
  const std::vector<std::string> spec = absl::GetFlag(FLAGS_operator);
  if (model.empty() == spec.empty()) return UsageError("one of --model and --operator is needed");
  if (!model.empty()) {
    GDN_ASSIGN_OR_RETURN(*request.mutable_model(), ToModelName(model));
    GDN_ASSIGN_OR_RETURN(const std::vector<int32_t> layers, LayersByFlag(*client, request.model()));
    request.mutable_layers()->Assign(layers.begin(), layers.end());
  } else {
    if (!absl::GetFlag(FLAGS_layers).empty()) return UsageError("--layers is for sessions of a model");
    GDN_ASSIGN_OR_RETURN(*request.mutable_operator_(), ParseOperatorSpec(spec));
  }
  request.set_session_id(absl::GetFlag(FLAGS_id));
  request.set_affinity(absl::GetFlag(FLAGS_affinity));
  const CallOptions call{.timeout = {}, .affinity = request.affinity()};
  GDN_ASSIGN_OR_RETURN(const v1::Session session, client->CreateSession(request, call));
  GDN_RETURN_IF_ERROR(PrintSession(session));
  return kExitOk;
}

absl::StatusOr<int> RunShow(const std::vector<std::string>& ids) {
  GDN_ASSIGN_OR_RETURN(const std::vector<std::string> names, SessionNames(ids));
  const auto client = ConnectByFlags();
  for (const std::string& name : names) {
    GDN_ASSIGN_OR_RETURN(const v1::Session session, client->GetSession(name));
    GDN_RETURN_IF_ERROR(PrintSession(session));
  }
  return kExitOk;
}

// Prints the outcome for one session of a call for many. Returns true if it succeeded.
bool Report(const char* done, const std::string& name, const absl::Status& status) {
  if (status.ok()) {
    absl::PrintF("%s %s\n", done, name);
  } else {
    absl::FPrintF(stderr, "gdnctl: %s: %s: %s\n", name, absl::StatusCodeToString(status.code()),
                  std::string(status.message()));
  }
  return status.ok();
}

// Returns the number of sessions that one call may have.
absl::StatusOr<size_t> MostPerCall(Client& client) {
  GDN_ASSIGN_OR_RETURN(const v1::GetServerInfoResponse info, client.GetServerInfo());
  return static_cast<size_t>(std::max(info.limits().max_batch(), 1));
}

// True if the server is older than the methods for many sessions.
bool IsUnknownMethod(const absl::Status& status) {
  return status.code() == absl::StatusCode::kUnimplemented && ErrorReason(status).empty();
}

// Deletes the caller's own sessions, as many as possible in a call. UNIMPLEMENTED without a reason: nothing is deleted,
// because the server is older than DeleteSessions.
absl::StatusOr<int> DeleteTogether(Client& client, const std::vector<std::string>& names) {
  GDN_ASSIGN_OR_RETURN(const size_t most, MostPerCall(client));
  bool all = true;
  for (size_t begin = 0; begin < names.size(); begin += most) {
    v1::DeleteSessionsRequest request;
    const size_t end = std::min(names.size(), begin + most);
    for (size_t i = begin; i < end; ++i) request.add_names(names[i]);
    GDN_ASSIGN_OR_RETURN(const v1::DeleteSessionsResponse response, client.DeleteSessions(request));
    for (int i = 0; i < std::min(request.names_size(), response.statuses_size()); ++i) {
      all &= Report("deleted", request.names(i), StatusFromRpc(response.statuses(i)));
    }
  }
  return all ? kExitOk : kExitFailed;
}

absl::StatusOr<int> RunDelete(const std::vector<std::string>& ids) {
  GDN_ASSIGN_OR_RETURN(const std::vector<std::string> names, SessionNames(ids));
  const auto client = ConnectByFlags();
  if (names.size() > 1 && absl::GetFlag(FLAGS_subject).empty()) {
    const absl::StatusOr<int> exit_code = DeleteTogether(*client, names);
    if (exit_code.ok() || !IsUnknownMethod(exit_code.status())) return exit_code;
  }
  for (const std::string& name : names) {
    v1::DeleteSessionRequest request;
    request.set_name(name);
    request.set_subject(absl::GetFlag(FLAGS_subject));
    GDN_RETURN_IF_ERROR(client->DeleteSession(request));
    absl::PrintF("deleted %s\n", name);
  }
  return kExitOk;
}

absl::StatusOr<int> RunReset(const std::vector<std::string>& ids) {
  GDN_ASSIGN_OR_RETURN(const std::vector<std::string> names, SessionNames(ids));
  if (names.size() > 1 && absl::GetFlag(FLAGS_epoch) != 0) return UsageError("--epoch is for one session");
  const auto client = ConnectByFlags();
  GDN_ASSIGN_OR_RETURN(const size_t most, MostPerCall(*client));
  bool all = true;
  for (size_t begin = 0; begin < names.size(); begin += most) {
    v1::ResetSessionsRequest request;
    const size_t end = std::min(names.size(), begin + most);
    for (size_t i = begin; i < end; ++i) {
      v1::SessionReset& reset = *request.add_resets();
      reset.set_name(names[i]);
      GDN_RETURN_IF_ERROR(SetEpoch(&reset));
    }
    GDN_ASSIGN_OR_RETURN(const v1::ResetSessionsResponse response, client->ResetSessions(request));
    for (int i = 0; i < std::min(request.resets_size(), response.results_size()); ++i) {
      all &= Report("reset", request.resets(i).name(), StatusFromRpc(response.results(i).error()));
    }
  }
  return all ? kExitOk : kExitFailed;
}

absl::StatusOr<v1::StateTier> TierByFlag() {
  const std::string name = absl::GetFlag(FLAGS_tier);
  if (name.empty()) return v1::STATE_TIER_UNSPECIFIED;
  for (const v1::StateTier tier : {v1::STATE_TIER_HOST, v1::STATE_TIER_DISK, v1::STATE_TIER_REDIS}) {
    if (name == FormatTier(tier)) return tier;
  }
  return UsageError(StrCat("--tier is '", name, "', expected host, disk or redis"));
}

absl::StatusOr<int> RunEvict(const std::vector<std::string>& ids) {
  GDN_ASSIGN_OR_RETURN(const std::vector<std::string> names, SessionNames(ids));
  v1::EvictSessionRequest request;
  GDN_ASSIGN_OR_RETURN(const v1::StateTier tier, TierByFlag());
  request.set_tier(tier);
  request.set_subject(absl::GetFlag(FLAGS_subject));
  const auto client = ConnectByFlags();
  for (const std::string& name : names) {
    request.set_name(name);
    GDN_ASSIGN_OR_RETURN(const v1::Session session, client->EvictSession(request));
    absl::PrintF("evicted %s to %s\n", name, FormatTier(session.tier()));
  }
  return kExitOk;
}

}  // namespace

std::vector<Command> SessionCommands() {
  constexpr std::string_view kListSummary = "List your sessions, or with --all those of every caller";
  constexpr std::string_view kListDetails = "The token count shown is that of the layer with the most tokens.\n";
  return {
      {.name = "sessions", .summary = kListSummary, .details = kListDetails, .flags = {"all", "json"}, .run = RunList},
      {.name = "sessions list",
       .summary = kListSummary,
       .details = kListDetails,
       .flags = {"all", "json"},
       .run = RunList},
      {.name = "sessions create",
       .summary = "Create a session of a model, or of a bare operator",
       .details = "Example: gdnctl sessions create --model qwen --id chat-1\n"
                  "         gdnctl sessions create --model qwen --layers 0-23\n"
                  "         gdnctl sessions create --operator 16,32,128,128\n",
       .flags = {"model", "operator", "layers", "id", "affinity", "json"},
       .run = RunCreate},
      {.name = "sessions show",
       .arguments = "ID [ID ...]",
       .summary = "Show a session and the token count of each layer",
       .flags = {"json"},
       .run = RunShow},
      {.name = "sessions delete",
       .arguments = "ID [ID ...]",
       .summary = "Delete sessions and free their states",
       .details = "Sessions that cannot be deleted are named on stderr; the others are deleted.\n"
                  "Example: gdnctl sessions delete chat-1 chat-2\n"
                  "         gdnctl sessions delete --subject alice chat-1\n",
       .flags = {"subject"},
       .run = RunDelete},
      {.name = "sessions reset",
       .arguments = "ID [ID ...]",
       .summary = "Set sessions back to zero tokens",
       .details = "A session keeps its id, epoch and named checkpoints. Running steps finish first.\n"
                  "Sessions that cannot be reset are named on stderr; the others are reset.\n"
                  "Example: gdnctl sessions reset chat-1 chat-2\n",
       .flags = {"epoch"},
       .run = RunReset},
      {.name = "sessions evict",
       .arguments = "ID [ID ...]",
       .summary = "Evict sessions' states from the device now",
       .details = "Running steps finish first. The next step loads the states again.\n"
                  "Example: gdnctl sessions evict --subject alice --tier disk chat-1\n",
       .flags = {"subject", "tier"},
       .run = RunEvict}};
}

}  // namespace gdn
