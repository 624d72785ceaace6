#include "tests/soak/history_worker.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "base/files/safetensors.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "client/cpp/prompt_prefix.h"
#include "client/cpp/reply_epoch.h"
#include "client/cpp/tensor_codec.h"

namespace gdn {
namespace {

constexpr int32_t kKeyHeads = 2, kValueHeads = 4, kKeyDim = 16, kValueDim = 16, kLayers = 2;
constexpr int kMaxPrefill = 9, kMaxDraft = 4;
constexpr int kPrefixTokens = 4;  // so few that no checkpoint is due, whose session could not be kept
const std::vector<int32_t> kTree = {-1, 0, 0, 2};
const std::vector<int32_t> kTreePath = {0, 2, 3};

std::string DigestOf(std::string_view bytes) { return StrCat(Hash64(bytes)); }

v1::Tensor Normal(std::vector<int64_t> shape, Random& random) {
  const int64_t count = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  return *MakeTensor(random.Normal(count), shape);
}
v1::Tensor Uniform(std::vector<int64_t> shape, float low, float high, Random& random) {
  const int64_t count = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  return *MakeTensor(random.Uniform(count, low, high), shape);
}

v1::DeltaRuleInput InputOf(const std::vector<int64_t>& leading, Random& random) {
  const auto shape = [&leading](std::initializer_list<int64_t> rest) {
    std::vector<int64_t> all = leading;
    all.insert(all.end(), rest);
    return all;
  };
  v1::DeltaRuleInput input;
  *input.mutable_q() = Normal(shape({kKeyHeads, kKeyDim}), random);
  *input.mutable_k() = Normal(shape({kKeyHeads, kKeyDim}), random);
  *input.mutable_v() = Normal(shape({kValueHeads, kValueDim}), random);
  *input.mutable_g() = Uniform(shape({kValueHeads}), -0.2f, 0.0f, random);
  *input.mutable_beta() = Uniform(shape({kValueHeads}), 0.0f, 1.0f, random);
  input.set_use_qk_l2norm(true);
  return input;
}

// A digest of each of `tokens` tokens; the same whether they come as a draft or as decodes.
std::vector<std::string> TokenDigests(const v1::DeltaRuleInput& input, int tokens) {
  std::vector<std::string> digests;
  for (size_t token = 0; token < static_cast<size_t>(tokens); ++token) {
    std::string bytes;
    for (const v1::Tensor* tensor : {&input.q(), &input.k(), &input.v(), &input.g(), &input.beta()}) {
      const size_t each = tensor->data().size() / static_cast<size_t>(tokens);
      bytes += tensor->data().substr(token * each, each);
    }
    digests.push_back(DigestOf(bytes));
  }
  return digests;
}

// A hash of the tensors that are a session's state.
absl::StatusOr<std::string> DigestOfFile(const std::string& bytes) {
  GDN_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::Parse(bytes));
  std::string all;
  for (const auto& [name, entry] : file.entries()) {
    if (absl::EndsWith(name, ".reply")) continue;
    GDN_ASSIGN_OR_RETURN(const std::string_view tensor, file.Bytes(name));
    all += StrCat(name, " ", DigestOf(tensor), " ");
  }
  return DigestOf(all);
}

std::map<int32_t, int64_t> CountsOf(const google::protobuf::RepeatedPtrField<v1::LayerState>& layers) {
  std::map<int32_t, int64_t> counts;
  for (const v1::LayerState& layer : layers) counts[layer.layer()] = layer.token_count();
  return counts;
}

}  // namespace

const std::vector<std::string>& SoakCalls() {
  static const std::vector<std::string> calls = {"prefill",        "decode", "draft",       "draft tree", "accept",
                                                 "accept path",    "fork",   "export",      "checkpoint", "restore",
                                                 "restore newest", "watch",  "keep prefix", "step"};
  return calls;
}

HistoryLine HistoryWorker::Line(const std::string& run, const std::string& session, const std::string& call) const {
  return {.run = run, .session = session, .call = call, .form = options_.form};
}

void HistoryWorker::Write(const Twins& twins, size_t row, HistoryLine line) {
  line.form = options_.form;
  line.session = twins.ids[row];
  line.run = "truth";
  line.counts = twins.truth[row]->Counts(0);
  world_.writer.Add(line);
  line.run = "tested";
  line.counts = twins.tested->Counts(row);
  line.first = std::exchange(first_, "");
  world_.writer.Add(line);
}

void HistoryWorker::Crash(const std::string& first) {
  world_.crash();
  first_ = first;
}

absl::StatusOr<HistoryWorker::Twins> HistoryWorker::Make(const std::string& name, int sessions) {
  Twins twins;
  std::vector<v1::CreateSessionRequest> create;
  for (int row = 0; row < sessions; ++row) {
    twins.ids.push_back(StrCat(options_.form, "-", name, "-", made_++));
    v1::CreateSessionRequest& request = create.emplace_back();
    request.set_session_id(twins.ids.back());
    v1::OperatorSpec* const spec = request.mutable_operator_();
    spec->set_key_heads(kKeyHeads);
    spec->set_value_heads(kValueHeads);
    spec->set_key_dim(kKeyDim);
    spec->set_value_dim(kValueDim);
    spec->set_layer_count(kLayers);
    GDN_ASSIGN_OR_RETURN(twins.truth.emplace_back(), MakeReferencePlayer(world_.truth, request, CallForm::kUnary,
                                                                         MixedBy::kOtherMethods, absl::Seconds(60)));
  }
  GDN_ASSIGN_OR_RETURN(twins.tested, options_.make(create));
  for (size_t row = 0; row < twins.ids.size(); ++row) {
    Write(twins, row, {.call = "create"});
    open_.insert(twins.ids[row]);
  }
  return twins;
}

absl::StatusOr<HistoryWorker::Twins> HistoryWorker::MakeWithPrompt(const std::string& name) {
  GDN_ASSIGN_OR_RETURN(Twins twins, Make(name, options_.sessions));
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    GDN_RETURN_IF_ERROR(Step(twins, "prefill", layer, random_.NextInt(1, kMaxPrefill)));
  }
  return twins;
}

std::vector<int32_t> HistoryWorker::DrawChoice(int draft, const std::vector<int32_t>& parents, DraftChoice* choice) {
  std::vector<int32_t> path;
  if (parents.empty()) {
    choice->first_tokens = random_.NextInt(0, draft);
    path.resize(static_cast<size_t>(choice->first_tokens));
    std::iota(path.begin(), path.end(), 0);
  } else {
    choice->path.assign(kTreePath.begin(), kTreePath.begin() + random_.NextInt(1, static_cast<int>(kTreePath.size())));
    path = choice->path;
  }
  return path;
}

HistoryWorker::Input HistoryWorker::Draw(const std::string& call, int32_t layer, int sessions, int tokens,
                                         const std::vector<int32_t>& parents) {
  Input input;
  for (int row = 0; row < sessions; ++row) {
    if (call == "prefill") {
      v1::PrefillRequest request;
      request.set_layer(layer);
      *request.mutable_delta_rule() = InputOf({tokens}, random_);
      input.digests.push_back({DigestOf(request.delta_rule().SerializeAsString())});
      input.rows.emplace_back(std::move(request));
      continue;
    }
    v1::DecodeRequest request;
    request.set_layer(layer);
    request.set_draft(call == "draft");
    request.mutable_draft_parents()->Add(parents.begin(), parents.end());
    *request.mutable_delta_rule() = InputOf({1, tokens}, random_);
    input.digests.push_back(TokenDigests(request.delta_rule(), tokens));
    input.rows.emplace_back(std::move(request));
  }
  return input;
}

absl::Status HistoryWorker::Step(Twins& twins, const std::string& call, int32_t layer, int tokens,
                                 const std::vector<int32_t>& parents) {
  const Input input = Draw(call, layer, static_cast<int>(twins.ids.size()), tokens, parents);
  std::vector<std::string> truth;
  for (size_t row = 0; row < twins.ids.size(); ++row) {
    GDN_ASSIGN_OR_RETURN(const std::vector<std::string> output, twins.truth[row]->Step({input.rows[row]}));
    truth.push_back(output.front());
  }
  GDN_ASSIGN_OR_RETURN(const std::vector<std::string> tested, twins.tested->Step(input.rows));
  for (size_t row = 0; row < twins.ids.size(); ++row) {
    HistoryLine line = Line("truth", twins.ids[row], call);
    line.layer = layer;
    line.tokens = tokens;
    line.inputs = input.digests[row];
    line.parents = parents;
    line.output = DigestOf(truth[row]);
    line.counts = twins.truth[row]->Counts(0);
    world_.writer.Add(line);
    line.run = "tested";
    line.output = DigestOf(tested[row]);
    line.counts = twins.tested->Counts(row);
    line.first = row == 0 ? std::exchange(first_, "") : "";
    world_.writer.Add(line);
  }
  return absl::OkStatus();
}

// A draft of all layers. `first`: a crash comes before, and the first of them is counted under this name.
absl::Status HistoryWorker::Draft(Twins& twins, bool tree, const std::string& first) {
  twins.parents = tree ? kTree : std::vector<int32_t>();
  twins.draft = tree ? static_cast<int>(kTree.size()) : random_.NextInt(1, kMaxDraft);
  if (!first.empty()) Crash(first);
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    GDN_RETURN_IF_ERROR(Step(twins, "draft", layer, twins.draft, twins.parents));
  }
  return absl::OkStatus();
}

absl::Status HistoryWorker::Accept(Twins& twins) {
  DraftChoice choice;
  const std::vector<int32_t> path = DrawChoice(twins.draft, twins.parents, &choice);
  for (const auto& truth : twins.truth) GDN_RETURN_IF_ERROR(truth->Accept(choice));
  GDN_RETURN_IF_ERROR(twins.tested->Accept(choice));
  for (size_t row = 0; row < twins.ids.size(); ++row) Write(twins, row, {.call = "accept", .path = path});
  twins.draft = 0;
  return absl::OkStatus();
}

// Steps of one layer whose rows are decodes, drafts and prefills, and accept the drafts of the step before. The first
// one after the crash has such rows. The last one leaves no draft.
absl::Status HistoryWorker::StepMixed(Twins& twins, int32_t layer) {
  constexpr int kSteps = 4, kFirstAfterCrash = 2;
  const size_t rows = twins.ids.size();
  std::vector<int> drafts(rows, 0);  // tokens of each session's draft
  std::vector<std::vector<int32_t>> parents(rows);
  for (int step = 0; step < kSteps; ++step) {
    std::vector<MixedRow> mixed;
    std::vector<HistoryLine> lines;
    std::vector<std::optional<std::vector<int32_t>>> paths(rows);
    for (size_t row = 0; row < rows; ++row) {
      const int kind = step == kSteps - 1 ? 0 : random_.NextInt(step == kFirstAfterCrash - 1 ? 2 : 0, 3);
      const std::string call = kind == 0 ? "decode" : kind == 1 ? "prefill" : "draft";
      const bool tree = kind == 3;
      int tokens = random_.NextInt(call == "draft" ? 1 : 0, call == "prefill" ? kMaxPrefill : kMaxDraft);
      if (tree) tokens = static_cast<int>(kTree.size());
      const std::vector<int32_t> own_parents = tree ? kTree : std::vector<int32_t>();
      Input input = Draw(call, layer, 1, tokens, own_parents);
      MixedRow& drawn = mixed.emplace_back(MixedRow{.step = std::move(input.rows[0])});
      if (drafts[row] > 0) paths[row] = DrawChoice(drafts[row], parents[row], &drawn.accept_before.emplace());
      HistoryLine& line = lines.emplace_back(Line("truth", twins.ids[row], call));
      line.layer = layer;
      line.tokens = tokens;
      line.inputs = std::move(input.digests[0]);
      line.parents = own_parents;
      drafts[row] = call == "draft" ? tokens : 0;
      parents[row] = own_parents;
    }
    if (step == kFirstAfterCrash) Crash("step");
    std::vector<std::string> truth;
    for (size_t row = 0; row < rows; ++row) {
      GDN_ASSIGN_OR_RETURN(const std::vector<std::string> output, twins.truth[row]->StepMixed({mixed[row]}));
      truth.push_back(output.front());
    }
    GDN_ASSIGN_OR_RETURN(const std::vector<std::string> tested, twins.tested->StepMixed(mixed));
    for (size_t row = 0; row < rows; ++row) {
      HistoryLine& line = lines[row];
      for (const char* run : {"truth", "tested"}) {
        const bool is_truth = std::string_view(run) == "truth";
        if (paths[row].has_value()) {  // of this layer, as no other has a draft
          HistoryLine accept = Line(run, twins.ids[row], "accept");
          accept.path = *paths[row];
          world_.writer.Add(accept);
        }
        line.run = run;
        line.output = DigestOf(is_truth ? truth[row] : tested[row]);
        line.counts = is_truth ? twins.truth[row]->Counts(0) : twins.tested->Counts(row);
        line.first = is_truth || row > 0 ? "" : std::exchange(first_, "");
        world_.writer.Add(line);
      }
    }
  }
  return absl::OkStatus();
}

absl::Status HistoryWorker::Settle(Twins& twins) { return twins.draft > 0 ? Accept(twins) : absl::OkStatus(); }

absl::Status HistoryWorker::ForkAndStep(Twins& twins) {
  Twins child;
  child.ids = {StrCat(twins.ids[0], "-child-", made_++)};
  child.draft = twins.draft;
  child.parents = twins.parents;
  GDN_ASSIGN_OR_RETURN(child.truth.emplace_back(), twins.truth[0]->Fork(child.ids[0]));
  GDN_ASSIGN_OR_RETURN(child.tested, twins.tested->Fork(child.ids[0]));
  Write(twins, 0, {.call = "fork", .to = child.ids[0]});
  open_.insert(child.ids[0]);
  GDN_ASSIGN_OR_RETURN(needs_copy_, twins.tested->IsDurable());
  GDN_RETURN_IF_ERROR(Settle(child));
  for (int32_t layer = 0; layer < kLayers; ++layer) GDN_RETURN_IF_ERROR(Step(child, "decode", layer, 1));
  GDN_RETURN_IF_ERROR(Export(child));
  needs_copy_ = false;
  return End(child);
}

absl::Status HistoryWorker::Export(Twins& twins) {
  GDN_ASSIGN_OR_RETURN(const std::string truth, twins.truth[0]->Export());
  GDN_ASSIGN_OR_RETURN(const std::string tested, twins.tested->Export());
  for (const auto& [run, file] : {std::pair("truth", &truth), std::pair("tested", &tested)}) {
    HistoryLine line = Line(run, twins.ids[0], "export");
    GDN_ASSIGN_OR_RETURN(line.output, DigestOfFile(*file));
    GDN_ASSIGN_OR_RETURN(const StateFileOrigin origin, ReadStateFileOrigin(*file));
    for (const auto& [layer, seen] : origin.seen) line.counts[layer] = seen.tokens;
    if (line.run == "tested") line.first = std::exchange(first_, "");
    world_.writer.Add(line);
  }
  return absl::OkStatus();
}

absl::Status HistoryWorker::Checkpoint(Twins& twins, const std::string& id) {
  GDN_ASSIGN_OR_RETURN(const v1::Checkpoint truth, twins.truth[0]->Checkpoint(id));
  GDN_ASSIGN_OR_RETURN(const v1::Checkpoint tested, twins.tested->Checkpoint(id));
  for (const auto& [run, made] : {std::pair("truth", &truth), std::pair("tested", &tested)}) {
    HistoryLine line = Line(run, twins.ids[0], "checkpoint");
    line.to = id.empty() ? "newest" : id;
    line.counts = CountsOf(made->layers());
    if (line.run == "tested") line.first = std::exchange(first_, "");
    world_.writer.Add(line);
  }
  return absl::OkStatus();
}

absl::Status HistoryWorker::Restore(Twins& twins, const std::string& id, int64_t set_backs) {
  GDN_ASSIGN_OR_RETURN(const v1::Session truth, twins.truth[0]->Restore(id));
  GDN_ASSIGN_OR_RETURN(const v1::Session tested, twins.tested->Restore(id));
  // The store may have been set back until the restore was answered.
  if (id.empty() && world_.set_backs() != set_backs) {
    return absl::DataLossError("the newest checkpoint may be another than the one that was made");
  }
  for (const auto& [run, back] : {std::pair("truth", &truth), std::pair("tested", &tested)}) {
    HistoryLine line = Line(run, twins.ids[0], "restore");
    line.to = id.empty() ? "newest" : id;
    line.counts = CountsOf(back->layers());
    if (line.run == "tested") line.first = std::exchange(first_, "");
    world_.writer.Add(line);
  }
  return absl::OkStatus();
}

absl::Status HistoryWorker::Watch(Twins& twins) {
  GDN_ASSIGN_OR_RETURN(const std::string file, twins.tested->Watch());
  GDN_ASSIGN_OR_RETURN(const StateFileOrigin origin, ReadStateFileOrigin(file));
  HistoryLine line = Line("tested", twins.ids[0], "watch");
  for (const auto& [layer, seen] : origin.seen) line.counts[layer] = seen.tokens;
  line.first = std::exchange(first_, "");
  world_.writer.Add(line);
  return absl::OkStatus();
}

// A prompt that is kept, and a session that begins behind it.
absl::Status HistoryWorker::KeepAndBegin() {
  GDN_ASSIGN_OR_RETURN(Twins keeper, Make("keeper", 1));
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    GDN_RETURN_IF_ERROR(Step(keeper, "prefill", layer, kPrefixTokens));
  }
  std::vector<int64_t> ids(kPrefixTokens + 1, static_cast<int64_t>(random_.Next() >> 1));
  const v1::PromptPrefix prefix = PromptPrefixOf(ids, kPrefixTokens);
  Crash("keep prefix");
  GDN_ASSIGN_OR_RETURN(const bool kept, keeper.tested->KeepPrefix(prefix));
  const std::string name = StrCat(keeper.ids[0], "-prefix");
  if (kept) {
    Write(keeper, 0, {.call = "keep", .to = name});
    Twins next;
    next.ids = {StrCat(keeper.ids[0], "-next")};
    v1::CreateSessionRequest create;
    create.set_session_id(next.ids[0]);
    v1::OperatorSpec* const spec = create.mutable_operator_();
    spec->set_key_heads(kKeyHeads);
    spec->set_value_heads(kValueHeads);
    spec->set_key_dim(kKeyDim);
    spec->set_value_dim(kValueDim);
    spec->set_layer_count(kLayers);
    // The undisturbed run's goes on from a fork of its keeper.
    GDN_ASSIGN_OR_RETURN(next.truth.emplace_back(), keeper.truth[0]->Fork(next.ids[0]));
    *create.mutable_prefix() = prefix;
    GDN_ASSIGN_OR_RETURN(next.tested, MakeDurablePlayer(world_.tested, {create}, {}));
    // Another crash may have taken what was kept.
    if (next.tested->prefix_tokens() == kPrefixTokens) {
      Write(next, 0, {.call = "begin", .to = name});
      open_.insert(next.ids[0]);
      needs_copy_ = true;  // a crash takes what was kept, too
      for (int32_t layer = 0; layer < kLayers; ++layer) GDN_RETURN_IF_ERROR(Step(next, "decode", layer, 1));
      GDN_RETURN_IF_ERROR(Export(next));
      needs_copy_ = false;
      GDN_RETURN_IF_ERROR(End(next));
    } else {
      GDN_RETURN_IF_ERROR(next.tested->Delete());
      GDN_RETURN_IF_ERROR(next.truth[0]->Delete());
    }
  }
  return End(keeper);
}

absl::Status HistoryWorker::End(Twins& twins) {
  recoveries_ += twins.tested->recoveries();
  GDN_RETURN_IF_ERROR(twins.tested->Delete());
  for (size_t row = 0; row < twins.ids.size(); ++row) {
    GDN_RETURN_IF_ERROR(twins.truth[row]->Delete());
    for (const char* run : {"truth", "tested"}) world_.writer.Add(Line(run, twins.ids[row], "end"));
    open_.erase(twins.ids[row]);
  }
  return absl::OkStatus();
}

absl::Status HistoryWorker::OneCall(Twins& twins, const std::string& call) {
  const int32_t layer = random_.NextInt(0, kLayers - 1);
  if (call == "accept" || call == "accept path") {
    GDN_RETURN_IF_ERROR(Settle(twins));
    GDN_RETURN_IF_ERROR(Draft(twins, /*tree=*/call == "accept path"));
    Crash(call);
    return Accept(twins);
  }
  // Half of the calls that may come with a draft do.
  const bool with_draft = call == "fork" || call == "export" || call == "checkpoint" || call == "watch";
  if (!with_draft || random_.NextInt(0, 1) == 0) GDN_RETURN_IF_ERROR(Settle(twins));
  if (call == "draft" || call == "draft tree") return Draft(twins, call == "draft tree", call);
  if (call == "keep prefix") return KeepAndBegin();
  if (call == "step") return StepMixed(twins, layer);
  if (call == "restore") {
    GDN_RETURN_IF_ERROR(Checkpoint(twins, ""));  // or a crash would take the session, and its named copies with it
    GDN_RETURN_IF_ERROR(Checkpoint(twins, "named"));
    for (int i = 0; i < 3; ++i) GDN_RETURN_IF_ERROR(Step(twins, "decode", layer, 1));
  }
  const int64_t set_backs = world_.set_backs();
  if (call == "restore newest") GDN_RETURN_IF_ERROR(Checkpoint(twins, ""));
  Crash(call);
  if (call == "prefill") return Step(twins, "prefill", layer, random_.NextInt(0, kMaxPrefill));
  if (call == "decode") return Step(twins, "decode", layer, 1);
  if (call == "fork") return ForkAndStep(twins);
  if (call == "export") return Export(twins);
  if (call == "checkpoint") return Checkpoint(twins, random_.NextInt(0, 1) == 0 ? "" : "mine");
  if (call == "watch") return Watch(twins);
  return Restore(twins, call == "restore" ? "named" : "", set_backs);
}

absl::Status HistoryWorker::TryCall(Twins& twins, const std::string& call) {
  if (call.empty()) {
    GDN_RETURN_IF_ERROR(Settle(twins));
    GDN_RETURN_IF_ERROR(Export(twins));
    return End(twins);
  }
  for (int32_t layer = 0; layer < kLayers && twins.draft == 0; ++layer) {
    GDN_RETURN_IF_ERROR(Step(twins, "decode", layer, 1));
  }
  return OneCall(twins, call);
}

}  // namespace gdn
