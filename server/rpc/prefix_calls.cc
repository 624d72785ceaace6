// KeepPrefix, DropPrefixes, and the prefix lookup of CreateSession.
#include <algorithm>
#include <utility>

#include <spdlog/spdlog.h>

#include "base/status_macros.h"
#include "base/task/status_macros.h"
#include "server/rpc/calls.h"
#include "server/rpc/prompt.h"
#include "server/validation/prompt_prefix.h"

namespace gdn {
namespace {

InputKind KindOf(v1::InputKind kind) {
  switch (kind) {
    case v1::INPUT_KIND_HIDDEN_STATES:
      return InputKind::kHiddenStates;
    case v1::INPUT_KIND_PROJECTED:
      return InputKind::kProjected;
    default:
      return InputKind::kDeltaRule;
  }
}

}  // namespace

absl::StatusOr<Prompt> ReadPrompt(const SessionParts& parts, const std::string& principal, const SessionSpec& spec,
                                  const v1::PromptPrefix& prefix) {
  const bool of_model = !spec.model.empty();
  GDN_RETURN_IF_ERROR(CheckPromptPrefix(prefix, of_model));
  Prompt prompt{.segments = {}, .kind = KindOf(PrefixKind(prefix, of_model)), .keys = {}};
  prompt.segments.reserve(static_cast<size_t>(prefix.segments_size()));
  for (const v1::PrefixSegment& segment : prefix.segments()) {
    PromptSegment& read = prompt.segments.emplace_back();
    read.tokens = segment.tokens();
    std::copy_n(segment.content_sha256().begin(), read.content.size(), read.content.begin());
  }
  prompt.keys = PrefixKeys({.principal = principal,
                            .spec = spec,
                            .numerics_id = parts.numerics_id,
                            .max_draft = parts.limits.max_draft,
                            .kind = prompt.kind},
                           prompt.segments);
  return prompt;
}

Task<absl::Status> KeepPrefix(const SessionParts& parts, const Caller& caller, const v1::KeepPrefixRequest& request,
                              v1::KeepPrefixResponse* response) {
  GDN_CO_ASSIGN_OR_RETURN(const std::shared_ptr<Session> session, FindSession(parts.lookup, caller, request.name()));
  GDN_CO_ASSIGN_OR_RETURN(const Prompt prompt,
                          ReadPrompt(parts, session->principal(), session->spec(), request.prefix()));
  const PrefixClaim claim{.key = prompt.keys.back(),
                          .tokens = TokensOf(prompt.segments),
                          .calls = CallsOf(prompt.segments),
                          .kind = prompt.kind,
                          .epoch = EpochOf(request)};
  response->set_tokens(claim.tokens);
  GDN_CO_ASSIGN_OR_RETURN(const bool kept, co_await parts.states.prefix_keeper().Keep(session, claim, caller.deadline));
  response->set_kept(kept);
  spdlog::debug("prefix kept={} tokens={} of session id={}{}", kept, claim.tokens, session->id(),
                TraceForLog(caller.trace));
  co_return absl::OkStatus();
}

absl::Status DropPrefixes(const SessionParts& parts, const Caller& caller, const v1::DropPrefixesRequest& /*request*/,
                          v1::DropPrefixesResponse* response) {
  response->set_dropped(parts.states.prefixes().Drop(caller.principal));
  return absl::OkStatus();
}

}  // namespace gdn
