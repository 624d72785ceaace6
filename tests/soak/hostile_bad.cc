// Requests that should never have been sent: counts and sizes beyond all, no numbers, calls that nobody waits for.
#include <array>
#include <cstring>
#include <limits>
#include <memory>
#include <tuple>
#include <utility>

#include "absl/time/clock.h"
#include "base/count_limits.h"
#include "base/files/safetensors.h"
#include "base/string_cat.h"
#include "client/cpp/rpc_status.h"
#include "tests/soak/hostile.h"
#include "tests/support/raw_ring.h"

namespace gdn {
namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

// The session's file with another count in its first layer, without checksums, as a tool might write it.
absl::StatusOr<std::string> FileWithCount(const std::string& file, int64_t count) {
  auto parsed = SafetensorsFile::Parse(file);
  if (!parsed.ok()) return parsed.status();
  std::vector<NamedTensor> tensors;
  for (const auto& [name, entry] : parsed->entries()) {
    auto view = parsed->Tensor(name);
    if (!view.ok()) return view.status();
    tensors.push_back({name, *view});
  }
  auto metadata = parsed->metadata();
  metadata.erase("checksums");
  metadata.erase("header_checksum");
  metadata.insert_or_assign("format_version", std::string(1, '1'));
  metadata["layer.0"] = StrCat("{\"token_count\": ", count, "}");
  return SerializeSafetensors(tensors, metadata);
}

// Sessions that begin at a count near the end of all counts, made, imported and stepped over it.
void HugeCounts(HostileCaller& me) {
  constexpr std::array<int64_t, 5> kCounts = {kMost, kMost - 1, int64_t{1} << 62, kMaxTokenCount + 1, -1};
  for (size_t i = 0; !me.over(); ++i) {
    v1::CreateSessionRequest create = me.small().Creation(me.NewId());
    create.add_initial_states()->set_token_count(kCounts[i % kCounts.size()]);
    me.Note(me.client().CreateSession(create).status());
    create.mutable_initial_states(0)->set_token_count(kMaxTokenCount - 1);
    me.Note(me.client().CreateSession(create).status());
    for (int64_t token = kMaxTokenCount - 1; token < kMaxTokenCount + 2; ++token) {
      FeedRow row{.session = SessionName(create.session_id()), .stream = 0, .token = 0};
      v1::DecodeRequest step = me.small().Decode({row}, 0);
      step.clear_expected_token_counts();
      step.set_partial_ok(token % 2 == 0);
      me.Note(me.client().Decode(step).status());
    }
    v1::ExportStateRequest name;
    name.set_name(SessionName(create.session_id()));
    if (const auto file = me.client().ExportState(name); file.ok()) {
      if (const auto changed = FileWithCount(*file, kCounts[i % kCounts.size()]); changed.ok()) {
        v1::ImportStateRequest::Target target;
        target.set_session_id(me.NewId());
        *target.mutable_operator_() = create.operator_();
        me.Note(me.client().ImportState(target, *changed).status());
      }
    }
    me.client().DeleteSession(name.name()).IgnoreError();
  }
}

// An import that says that 8 TiB will come, and sends 64 KiB.
absl::Status HugeImport(HostileCaller& me) {
  v1::ImportStateRequest::Target target;
  target.set_session_id(me.NewId());
  *target.mutable_operator_() = me.small().Creation("x").operator_();
  target.set_total_bytes(int64_t{8} << 40);
  const std::string bytes(64 << 10, '\0');
  bool sent = false;
  return me.client()
      .ImportState(target,
                   [&](size_t most) -> absl::StatusOr<std::string_view> {
                     if (std::exchange(sent, true)) return std::string_view();
                     return std::string_view(bytes).substr(0, most);
                   })
      .status();
}

void HugeSizes(HostileCaller& me) {
  const std::string id = me.Made(me.small());
  v1::PrefillRequest large = me.small().Prefill(SessionName(id), 0, 1);
  large.mutable_delta_rule()->mutable_q()->set_data(std::string(9 << 20, 'x'));
  while (!me.over()) {
    v1::CreateSessionRequest create = me.small().Creation(me.NewId());
    v1::OperatorSpec& spec = *create.mutable_operator_();
    for (const auto set :
         {&v1::OperatorSpec::set_key_heads, &v1::OperatorSpec::set_value_heads, &v1::OperatorSpec::set_key_dim,
          &v1::OperatorSpec::set_value_dim, &v1::OperatorSpec::set_layer_count}) {
      (spec.*set)(1024);
    }
    me.Note(me.client().CreateSession(create).status());
    spec.set_layer_count(std::numeric_limits<int32_t>::max());
    me.Note(me.client().CreateSession(create).status());
    me.Note(HugeImport(me));
    for (const int64_t dim : {int64_t{1} << 40, int64_t{1} << 62}) {
      v1::PrefillRequest prefill = me.small().Prefill(SessionName(id), 0, 1);
      for (v1::Tensor* tensor :
           {prefill.mutable_delta_rule()->mutable_q(), prefill.mutable_delta_rule()->mutable_v()}) {
        tensor->set_shape(0, dim);
      }
      me.Note(me.client().Prefill(prefill).status());
    }
    me.Note(me.client().Prefill(large).status());
  }
}

// Not a number, refused and allowed, in batches with sessions of the same layout.
void NotANumber(HostileCaller& me) {
  const std::string id = me.Made(me.small());
  v1::DecodeRequest step = me.small().Decode({{.session = SessionName(id), .stream = 0, .token = 0}}, 0);
  step.clear_expected_token_counts();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(step.mutable_delta_rule()->mutable_v()->mutable_data()->data(), &nan, sizeof(nan));
  for (int i = 0; !me.over(); ++i) {
    step.set_allow_non_finite(i % 2 == 1);
    me.Note(me.client().Decode(step).status());
  }
}

absl::Status SendStep(HostileCaller& me, const v1::StepRequest& step, grpc::ClientContext& context) {
  me.Sign(context);
  v1::StepResponse reply;
  return StatusFromGrpc(me.stub().Step(&context, step, &reply));
}

// Rows of a Step with numbers of tokens, acceptances, paths and parents beyond all.
void AbsurdSteps(HostileCaller& me) {
  constexpr int32_t kMostTokens = std::numeric_limits<int32_t>::max();
  const std::string id = me.Made(me.small());
  v1::StepRequest good;
  good.set_request_id("absurd");
  *good.mutable_delta_rule() = me.small().Prefill(SessionName(id), 0, 2).delta_rule();
  v1::StepRow& row = *good.add_rows();
  row.set_session(SessionName(id));
  row.set_kind(v1::STEP_KIND_DRAFT);
  row.set_token_count(2);
  for (int i = 0; !me.over(); ++i) {
    v1::StepRequest step = good;
    v1::StepRow& bad = *step.mutable_rows(0);
    switch (i % 7) {
      case 0:
        bad.set_token_count(i % 2 == 0 ? kMostTokens : -kMostTokens);
        break;
      case 1:
        bad.mutable_accept_before()->set_accepted_tokens(kMostTokens);
        break;
      case 2:
        for (int token = 0; token < 100'000; ++token) bad.mutable_accept_before()->add_path(token);
        break;
      case 3:
        for (int token = 0; token < 100'000; ++token) bad.add_draft_parents(-1);
        break;
      case 4:
        for (const int32_t parent : {kMostTokens, -kMostTokens}) bad.add_draft_parents(parent);
        break;
      case 5:
        bad.set_kind(static_cast<v1::StepKind>(kMostTokens));
        break;
      default:
        for (int more = 0; more < 10'000; ++more) {
          step.add_rows()->set_session(SessionName(StrCat("absurd-", more)));
          step.mutable_rows(more + 1)->set_kind(v1::STEP_KIND_PREFILL);
        }
    }
    grpc::ClientContext context;
    me.Note(SendStep(me, step, context));
  }
}

// Steps that are cancelled at whatever moment of theirs.
void Cancels(HostileCaller& me) {
  const std::string id = me.Made(me.large());
  const v1::PrefillRequest prefill = me.large().Prefill(SessionName(id), 0, 256);
  // A prompt, and in the same call a decode of another session.
  v1::StepRequest mixed;
  *mixed.mutable_delta_rule() = me.large().Prefill(SessionName(id), 0, 257).delta_rule();
  for (const auto& [session, kind, tokens] :
       {std::tuple(id, v1::STEP_KIND_PREFILL, 256), std::tuple(me.Made(me.large()), v1::STEP_KIND_DECODE, 1)}) {
    v1::StepRow& row = *mixed.add_rows();
    row.set_session(SessionName(session));
    row.set_kind(kind);
    row.set_token_count(tokens);
  }
  v1::StreamPrefillRequest segment;
  *segment.mutable_segment() = me.large().Prefill(SessionName(id), 1, 256);
  while (!me.over()) {
    CallOptions soon;
    soon.timeout = absl::Microseconds(me.random().NextInt(1, 20'000));
    me.Note(me.client().Prefill(prefill, soon).status());
    grpc::ClientContext mixed_context;
    mixed_context.set_deadline(absl::ToChronoTime(absl::Now() + *soon.timeout));
    me.Note(SendStep(me, mixed, mixed_context));
    grpc::ClientContext context;
    me.Sign(context);
    const auto stream = me.stub().StreamPrefill(&context);
    stream->Write(segment);
    absl::SleepFor(absl::Microseconds(me.random().NextInt(0, 10'000)));
    context.TryCancel();
    me.Note(absl::StatusCodeToString(static_cast<absl::StatusCode>(stream->Finish().error_code())));
  }
}

// Rings with submissions of random bytes, which are rewritten while they are read.
void BrokenRings(HostileCaller& me) {
  while (!me.over()) {
    auto context = std::make_unique<grpc::ClientContext>();
    me.Sign(*context);
    const std::unique_ptr<RawRing> ring = RawRing::Open(me.stub(), std::move(context));
    if (ring == nullptr) {
      me.Note("no ring");
      absl::SleepFor(absl::Milliseconds(20));
      continue;
    }
    for (int i = 0; i < 20 && GDN_RING_LOAD(ring->header().ended) == GDN_RING_OPEN; ++i) {
      gdn_ring_submission submission = {};
      auto* const bytes = reinterpret_cast<unsigned char*>(&submission);
      submission.method = static_cast<uint32_t>(me.random().NextInt(1, 6));
      for (int change = me.random().NextInt(0, 8); change > 0; --change) {
        bytes[me.random().NextInt(0, sizeof(submission) - 1)] = static_cast<unsigned char>(me.random().NextInt(0, 255));
      }
      ring->Submit(submission);
      for (int byte = 0; byte < 1000; ++byte) {
        ring->area()[me.random().NextInt(0, RawRing::kAreaBytes - 1)] = static_cast<char>(me.random().NextInt(0, 255));
      }
    }
    me.Note(ring->EndsAs(GDN_RING_BROKEN) ? "BROKEN" : "not ended");
  }
}

}  // namespace

std::vector<HostileKind> BadRequests() {
  return {{"huge counts", 1, {"COUNT_LIMIT"}, HugeCounts},
          {"huge sizes", 1, {"SHAPE_OVERFLOW"}, HugeSizes},
          {"not a number", 1, {"NON_FINITE_INPUT"}, NotANumber},
          {"absurd steps", 1, {"TOO_MANY_TOKENS"}, AbsurdSteps},
          {"cancels", 1, {"CANCELLED"}, Cancels},
          {"broken rings", 1, {"BROKEN"}, BrokenRings}};
}

}  // namespace gdn
