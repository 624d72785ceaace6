// Writes the corpus that the fuzz targets begin from, a folder a target: make_fuzz_seeds FOLDER. The same files in
// every run, but for what is random in a state file (its snapshot's id, its times).
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

#include "base/files/safetensors.h"
#include "base/hash.h"
#include "gdn/v1/lease.pb.h"
#include "gdn/v1/session.pb.h"
#include "gdn/v1/snapshot.pb.h"
#include "gdn/v1/state.pb.h"
#include "gdn/v1/step.pb.h"
#include "state_store/state_file/parse.h"
#include "state_store/tiers/disk/clean_marker.h"
#include "state_store/tiers/redis/redis_folder.h"
#include "tests/fuzz/ring_program.h"
#include "tests/state_store/test_image.h"
#include "tests/support/gguf_writer.h"

namespace gdn {
namespace {

class Corpus {
 public:
  explicit Corpus(std::string folder) : folder_(std::move(folder)) {}
  void Add(const std::string& target, const std::string& name, const std::string& bytes) const {
    std::filesystem::create_directories(folder_ + "/" + target);
    std::ofstream(folder_ + "/" + target + "/" + name, std::ios::binary) << bytes;
  }

 private:
  const std::string folder_;
};

// Returns a field in the form that Input::Field of fuzz_target.h reads.
std::string Field(const std::string& bytes) {
  return std::string{static_cast<char>(bytes.size() & 0xff), static_cast<char>(bytes.size() >> 8)} + bytes;
}

// One layer with a log, of the smallest dimensions that have every part.
TestSession SmallSession() {
  constexpr LayerDims kSmall{
      .key_heads = 1, .value_heads = 2, .key_dim = 2, .value_dim = 3, .conv_width = 3, .hidden_size = 4};
  Random random(3);
  TestSession session;
  session.header.dims = kSmall;
  session.header.id = "s";
  session.header.layers = {0, 1};
  session.layers = {MakeLayer(kSmall, 0, {.token_count = 2}, random),
                    MakeLayer(kSmall, 1, {.token_count = 45, .log_length = 2, .draft_length = 1}, random)};
  session.layers[1].reply = MakeReply("id", RepliedBytes(kSmall, 1));
  return session;
}

void AddStateFiles(const Corpus& corpus) {
  TestMemory memory;
  TestSession session = SmallSession();
  const std::string full = Encode(session, memory.host, {.include_owner = true});
  corpus.Add("state_file", "small", full);
  TestSession leased = SmallSession();
  leased.header.lease = "engine";
  leased.header.lease_grace = absl::Seconds(30);
  corpus.Add("state_file", "leased", Encode(leased, memory.host, {.include_owner = true}));
  corpus.Add("state_file", "operator", Encode(MakeOperatorSession(), memory.host, {.include_recurrent_state = true}));
  corpus.Add("state_file", "bf16",
             Encode(session, memory.host, {.include_recurrent_state = true, .recurrent_state_dtype = DType::kBF16}));
  session.layers.clear();
  corpus.Add("state_file", "no_layers", Encode(session, memory.host, {.include_owner = true}));
  // A file of another tool has no checksums and no log.
  const std::string dims =
      R"({"key_heads":1,"value_heads":1,"key_dim":1,"value_dim":2,"conv_width":0,"hidden_size":0})";
  const std::string state(8, '\0');
  const std::vector<RawTensor> tensors = {
      {.name = "layer.0.recurrent_state", .dtype = "F32", .shape = {1, 1, 2}, .data = state}};
  const auto header = SafetensorsHeader(tensors, {{"format", "gdn.state"},
                                                  {"format_version", "1"},
                                                  {"dims", dims},
                                                  {"layer_count", "1"},
                                                  {"layer.0", R"({"token_count":3})"}});
  corpus.Add("state_file", "foreign", *header + state);

  session = SmallSession();
  const auto parsed = ParseStateFile(full);
  session.layers[0].has_base = false;
  corpus.Add(
      "state_delta", "one_base_left_out",
      Field(full) + Encode(session, memory.host, {.include_owner = true, .base_snapshot_id = parsed->snapshot_id}));
  corpus.Add("state_delta", "not_a_delta", Field(full) + full);

  corpus.Add("safetensors", "state_file", full);
  corpus.Add("safetensors", "header_alone", header->substr(0, *SafetensorsHeaderEnd(*header)));
  const std::string data(19, '\1');
  const std::string_view view = data;
  const std::vector<RawTensor> all = {{.name = "a", .dtype = "F32", .shape = {2}, .data = view.substr(0, 8)},
                                      {.name = "b", .dtype = "BF16", .shape = {2, 1}, .data = view.substr(8, 4)},
                                      {.name = "c", .dtype = "F16", .shape = {}, .data = view.substr(12, 2)},
                                      {.name = "d", .dtype = "F4", .shape = {4}, .data = view.substr(14, 2)},
                                      {.name = "e", .dtype = "F6_E2M3", .shape = {4}, .data = view.substr(16, 3)},
                                      {.name = "f", .dtype = "I64", .shape = {0, 7}, .data = {}}};
  corpus.Add("safetensors", "dtypes", *SafetensorsHeader(all, {{"format", "pt"}}) + data);

  // A whole state as Redis has it: the manifest, its only chunk.
  const RedisManifest manifest{.version = "v",
                               .bytes = static_cast<int64_t>(full.size()),
                               .chunk_bytes = 65536,
                               .xxh3 = HashBytes(full).ToHex()};
  const auto bulk = [](const std::string& text) { return "$" + std::to_string(text.size()) + "\r\n" + text + "\r\n"; };
  const std::string load(1, '\0'), describe(1, '\1'), list(1, '\2');
  corpus.Add("redis_replies", "load", load + bulk(manifest.ToJson()) + bulk(full));
  corpus.Add("redis_replies", "load_nothing", load + "$-1\r\n");
  corpus.Add("redis_replies", "load_missing_chunk", load + bulk(manifest.ToJson()) + "$-1\r\n");
  corpus.Add("redis_replies", "describe", describe + bulk(manifest.ToJson()) + bulk(full.substr(0, 8)) + bulk(full));
  corpus.Add("redis_replies", "list",
             list + "*2\r\n$1\r\n0\r\n*1\r\n" + bulk("gdn:{/s}") + "*2\r\n" + bulk("state") + bulk("checkpoint:c") +
                 bulk(manifest.ToJson()) + bulk(full.substr(0, 8)) + bulk(full) + "$-1\r\n");
  corpus.Add("redis_manifest", "manifest", std::string(1, '\0') + manifest.ToJson());
  corpus.Add(
      "redis_manifest", "chunks_of_a_byte",
      std::string(1, '\0') + RedisManifest{.version = "v", .bytes = int64_t{1} << 42, .chunk_bytes = 1}.ToJson());
}

void AddRedis(const Corpus& corpus) {
  corpus.Add("redis_replies", "list_names_nothing", "\2*2\r\n$1\r\n0\r\n*1\r\n$-1\r\n");
  corpus.Add("redis_replies", "list_names_a_number", "\2*2\r\n$1\r\n0\r\n*1\r\n:5\r\n");
  corpus.Add("redis_replies", "list_names_too_short", "\2*2\r\n$1\r\n0\r\n*1\r\n$1\r\na\r\n");
  corpus.Add("redis_replies", "list_has_no_fields", "\2*2\r\n$1\r\n0\r\n*1\r\n$8\r\ngdn:{/s}\r\n*2\r\n$-1\r\n:3\r\n");
  corpus.Add("redis_replies", "take", "\3*3\r\n:4\r\n$3\r\na b\r\n$1\r\na\r\n");
  corpus.Add("redis_replies", "take_without_a_stop", "\3*2\r\n:4\r\n$3\r\na b\r\n");
  corpus.Add("redis_replies", "secret", "\4:1\r\n$6\r\nsecret\r\n");
  corpus.Add("redis_replies", "claim", "\5-FENCED other\r\n");
  corpus.Add("redis_replies", "claim_set_back", "\5-FENCED nobody\r\n+OK\r\n");
  corpus.Add("redis_replies", "erase", "\6+OK\r\n");
  corpus.Add("redis_replies", "out_of_memory", "\6-OOM command not allowed\r\n");
  corpus.Add("redis_manifest", "endpoint", "\1redis://us%41r@[::1]:6379/3");
  corpus.Add("redis_manifest", "socket", "\1unix:/run/redis");
  corpus.Add("redis_manifest", "host", "\1host:6379");
  corpus.Add("redis_manifest", "sentinels", "\1sentinel://user@a:26379,[::1],b:1/mymaster/2");
}

void AddTexts(const Corpus& corpus) {
  const std::string config =
      R"("hidden_size":16,"num_hidden_layers":4,"linear_num_key_heads":2,"linear_num_value_heads":4,)"
      R"("linear_key_head_dim":8,"linear_value_head_dim":4,"linear_conv_kernel_dim":4,"rms_norm_eps":1e-6,)"
      R"("hidden_act":"silu")";
  corpus.Add("model_config", "interval", R"({"model_type":"qwen3_next","full_attention_interval":2,)" + config + "}");
  corpus.Add("model_config", "nested",
             R"({"model_type":"qwen3_5_moe","text_config":{"model_type":"qwen3_5_moe_text","layer_types":)"
             R"(["linear_attention","full_attention","linear_attention","full_attention"],)" +
                 config + "}}");
  corpus.Add("model_config", "gate", R"({"model_type":"qwen4_exp","output_gate_type":"sigmoid",)" + config + "}");
  corpus.Add("model_config", "defaults",
             R"({"model_type":"olmo_hybrid","hidden_size":64,"num_attention_heads":3,"num_hidden_layers":4,)"
             R"("linear_allow_neg_eigval":false,"hidden_act":"silu"})");
  corpus.Add(
      "model_config", "listed",
      R"({"model_type":"gigachat3_5","full_attention_layers":[1,3],"linear_sigmoid_gate_scale":1.5,)" + config + "}");
  const std::string kda = R"("hidden_size":16,"num_hidden_layers":4,"rms_norm_eps":1e-6,"hidden_act":"silu")";
  corpus.Add("model_config", "kimi",
             R"({"model_type":"kimi_linear","linear_attn_config":{"head_dim":8,"num_heads":2,"kda_layers":[1,2,4],)"
             R"("short_conv_kernel_size":4,"full_attn_layers":[3]},)" +
                 kda + "}");
  corpus.Add("model_config", "glm",
             R"({"model_type":"glm5_next","text_config":{"model_type":"glm5_next_text","linear_attn_config":)"
             R"({"head_dim":8,"num_heads":2,"short_conv_kernel_size":4,"gate_lower_bound":-5.0,"safe_gate":true},)" +
                 kda + "}}");
  corpus.Add("model_config", "ling",
             R"({"model_type":"bailing_hybrid","num_attention_heads":2,"head_dim":8,"short_conv_kernel_size":4,)"
             R"("layer_group_size":2,"kda_lower_bound":-5.0,"no_kda_lora":true,"linear_attention":"kda",)" +
                 kda + "}");
  corpus.Add(
      "checkpoint_index", "two_shards",
      R"({"metadata":{"total_size":3},"weight_map":{"a.weight":"model-1.safetensors","b":"model-2.safetensors"}})");
  corpus.Add("checkpoint_index", "outside", R"({"weight_map":{"a":"../b","c":"d"}})");
  const std::string digest(64, 'a');
  corpus.Add("principals", "two",
             R"({"principals":[{"name":"search","sha256":[")" + digest + R"("],"weight":2.5},)" +
                 R"({"name":"chat","sha256":[")" + std::string(64, '0') + R"("]}]})");
  corpus.Add("principals", "twice",
             R"({"principals":[{"name":"a","sha256":[")" + digest + R"(",")" + digest + R"("]}]})");
  corpus.Add("token_list", "two",
             R"({"subjects":[{"subject":"alice","roles":["user"],"tokens":[{"sha256":")" + digest +
                 R"(","expires":"2027-01-31T00:00:00Z"}]},{"subject":"ops.example","roles":["admin"]}]})");
  corpus.Add(
      "token_list", "twice",
      R"({"subjects":[{"subject":"a","tokens":[{"sha256":")" + digest + R"("},{"sha256":")" + digest + R"("}]}]})");
  corpus.Add("disk_folder", "incarnation", std::string(1, '\0') + "41\n");
  corpus.Add("disk_folder", "incarnation_is_the_last_number", std::string(1, '\0') + "9223372036854775807\n");
  corpus.Add("disk_folder", "clean", "\0011000");
  CleanMarker marker;
  marker.sessions[{.principal = "ab", .id = "s", .checkpoint = ""}] = {.tier = "redis", .version = {.changes = 3}};
  corpus.Add("disk_folder", "clean_marker", "\1" + marker.ToText());
  corpus.Add("disk_folder", "secret", "\2c2VjcmV0");
  corpus.Add("disk_folder", "owed", "\3disk\nredis");
}

void AddConfigs(const Corpus& corpus) {
  const std::string file(1, '\0'), quotas(1, '\1');
  corpus.Add("config_file", "flags",
             file +
                 "threads: 5\nreflection: false\ncheckpoint-every: 1m\nlisten:\n  - 127.0.0.1:1\n  - \"unix:/a\"\n"
                 "model: {q: /m}\nredis: redis://u:p@h:1\nquotas: {default: {sessions: 3}}\n");
  corpus.Add("config_file", "faults", file + "threads: many\nthread: 1\nthreads: 2\nlisten: {a: [b]}\nx: *y\n");
  corpus.Add("config_file", "quotas",
             quotas +
                 "all: {sessions: 5000, state-bytes: 64GiB}\ndefault:\n  idle-ttl: 1h30m\n  token-burst: 4096\n"
                 "principals:\n  \"o'ps\": {weight: 2.5, tokens-per-second: none}\n");
}

void AddRequests(const Corpus& corpus) {
  const std::string none(1, '\0');
  corpus.Add("credentials", "token", "\1" + Field("Bearer secret"));
  corpus.Add("credentials", "proxy", "\24" + Field("bob") + Field("proxy"));
  corpus.Add("credentials", "proxy_of_nobody", "\24" + Field("bob") + Field("eve"));
  corpus.Add("credentials", "certificate", "\20" + Field("bob"));
  corpus.Add("credentials", "trace", none + "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
  corpus.Add("credentials", "later_trace", none + "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00-more");
  corpus.Add("http_request", "get", "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n");
  corpus.Add("http_request", "admin", "GET /statusz?a=b HTTP/1.1\r\nHost: [::1]:9\r\nAuthorization: Bearer a\r\n\r\n");
  corpus.Add("http_request", "post", "POST /healthz HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc");
  corpus.Add("http_request", "path", "HEAD /../%2e/statusz/ HTTP/1.0\r\n\r\n");
}

void Fill(v1::Tensor* tensor, const std::vector<int64_t>& shape, bool shared = false) {
  tensor->set_dtype(v1::DTYPE_F32);
  int64_t bytes = 4;
  for (const int64_t dim : shape) {
    tensor->add_shape(dim);
    bytes *= dim;
  }
  if (shared) {
    tensor->mutable_shared()->set_region("r");
    tensor->mutable_shared()->set_offset(64);
    tensor->mutable_shared()->set_bytes(bytes);
  } else {
    tensor->set_data(std::string(static_cast<size_t>(bytes), '\0'));
  }
}

// The first byte is the message, as session_requests_fuzz.cc has it.
void AddSessionRequests(const Corpus& corpus) {
  const std::string target = "session_requests";
  v1::SnapshotSessionsRequest snapshots;
  for (const char* key : {"turn-1", "turn-2", "+"}) {
    v1::SnapshotSessionRequest* const one = snapshots.add_requests();
    one->set_session("sessions/chat");
    one->set_key(key);
    one->set_expected_token_count(7);
  }
  corpus.Add(target, "snapshots", std::string(1, '\0') + snapshots.SerializeAsString());
  v1::DeleteSnapshotsRequest deletion;
  for (const char* key : {"turn-1", "", "a/b"}) deletion.add_keys(key);
  corpus.Add(target, "deletion", "\1" + deletion.SerializeAsString());
  v1::OpenLeaseRequest opening;
  opening.set_lease_id("engine");
  opening.mutable_grace()->set_seconds(60);
  corpus.Add(target, "lease", "\2" + opening.SerializeAsString());
  opening.mutable_grace()->set_seconds(std::numeric_limits<int64_t>::max());
  opening.mutable_grace()->set_nanos(-1);
  corpus.Add(target, "lease_for_ever", "\2" + opening.SerializeAsString());
  v1::RenewLeaseRequest renewal;
  renewal.set_name("leases/engine");
  corpus.Add(target, "renewal", "\3" + renewal.SerializeAsString());
  v1::CreateSessionRequest create;
  create.set_session_id("chat");
  create.set_snapshot("turn-1");
  create.set_lease("leases/engine");
  corpus.Add(target, "creation", "\4" + create.SerializeAsString());
  v1::ForkSessionRequest fork;
  fork.set_name("sessions/+turn-1");
  fork.set_snapshot("turn-1");
  fork.add_session_ids("child");
  corpus.Add(target, "fork", "\5" + fork.SerializeAsString());
  corpus.Add(target, "name_of_session", std::string("\6") + "sessions/chat");
  corpus.Add(target, "name_of_lease", std::string("\6") + "leases/engine");
  corpus.Add(target, "name_of_snapshot", std::string("\6") + "sessions/+turn-1");
}

void AddSteps(const Corpus& corpus) {
  const std::string of_operator(1, '\0'), of_model(1, '\1');  // the dimensions, as step_wire_fuzz.cc has them
  v1::PrefillRequest prefill;
  prefill.set_session("sessions/s");
  prefill.set_request_id("id");
  v1::DeltaRuleInput* input = prefill.mutable_delta_rule();
  Fill(input->mutable_q(), {2, 1, 2});
  Fill(input->mutable_k(), {2, 1, 2});
  Fill(input->mutable_v(), {2, 2, 3});
  Fill(input->mutable_g(), {2, 2});
  Fill(input->mutable_beta(), {2, 2});
  corpus.Add("step_wire", "prefill_delta_rule", std::string(1, '\0') + of_operator + prefill.SerializeAsString());
  v1::StreamPrefillRequest stream_prefill;
  *stream_prefill.mutable_segment() = prefill;
  corpus.Add("step_wire", "stream_prefill", "\2" + of_operator + stream_prefill.SerializeAsString());

  v1::PrefillRequest hidden;
  hidden.set_session("sessions/s");
  Fill(hidden.mutable_hidden_states()->mutable_hidden_states(), {3, 5});
  corpus.Add("step_wire", "prefill_hidden", std::string(1, '\0') + of_model + hidden.SerializeAsString());

  v1::DecodeRequest decode;
  decode.add_sessions("sessions/a");
  decode.add_sessions("sessions/b");
  v1::ProjectedInput* projected = decode.mutable_projected();
  Fill(projected->mutable_mixed_qkv(), {2, 1, 10}, /*shared=*/true);
  Fill(projected->mutable_z(), {2, 1, 6});
  Fill(projected->mutable_b(), {2, 1, 2}, /*shared=*/true);
  Fill(projected->mutable_a(), {2, 1, 2});
  corpus.Add("step_wire", "decode_projected", "\1" + of_model + decode.SerializeAsString());
  v1::DecodeRequest rows;
  rows.add_sessions("sessions/a");
  Fill(rows.mutable_hidden_states()->mutable_hidden_states(), {1, 1, 5}, /*shared=*/true);
  corpus.Add("step_wire", "decode_shared", "\1" + of_model + rows.SerializeAsString());
  v1::StreamDecodeRequest stream_decode;
  *stream_decode.mutable_step() = rows;
  corpus.Add("step_wire", "stream_decode", "\3" + of_model + stream_decode.SerializeAsString());

  v1::StepRequest step;
  const auto row = [&step](const std::string& session, v1::StepKind kind, int32_t tokens) {
    v1::StepRow* const added = step.add_rows();
    added->set_session(session);
    added->set_kind(kind);
    added->set_token_count(tokens);
    return added;
  };
  row("sessions/a", v1::STEP_KIND_DECODE, 1)->mutable_accept_before()->set_accepted_tokens(2);
  v1::StepRow* const draft = row("sessions/b", v1::STEP_KIND_DRAFT, 3);
  for (const int parent : {-1, 0, 0}) draft->add_draft_parents(parent);
  for (const int token : {0, 2}) draft->mutable_accept_before()->add_path(token);
  row("sessions/c", v1::STEP_KIND_PREFILL, 2)->set_expected_token_count(7);
  row("sessions/d", v1::STEP_KIND_DECODE, 0)->set_session_epoch(1);
  step.set_request_id("id");
  Fill(step.mutable_hidden_states()->mutable_hidden_states(), {6, 5});
  corpus.Add("step_wire", "step_hidden", "\4" + of_model + step.SerializeAsString());
  v1::StreamStepRequest stream_step;
  *stream_step.mutable_step() = step;
  corpus.Add("step_wire", "stream_step", "\5" + of_model + stream_step.SerializeAsString());
  step.mutable_rows(0)->mutable_accept_before()->set_accepted_tokens(std::numeric_limits<int32_t>::max());
  corpus.Add("step_wire", "step_greatest_acceptance", "\4" + of_model + step.SerializeAsString());
  step.mutable_rows(0)->clear_accept_before();
  step.mutable_rows(2)->set_token_count(std::numeric_limits<int32_t>::max());
  corpus.Add("step_wire", "step_greatest_length", "\4" + of_model + step.SerializeAsString());
  step.clear_rows();
  row("sessions/a", v1::STEP_KIND_PREFILL, 2);
  step.clear_hidden_states();
  Fill(step.mutable_hidden_states()->mutable_hidden_states(), {2, 5}, /*shared=*/true);
  step.mutable_output_shared()->set_region("r");
  step.mutable_output_shared()->set_bytes(40);
  corpus.Add("step_wire", "step_shared", "\4" + of_model + step.SerializeAsString());
  Fill(step.mutable_delta_rule()->mutable_q(), {2, 1, 2});
  Fill(step.mutable_delta_rule()->mutable_k(), {2, 1, 2});
  Fill(step.mutable_delta_rule()->mutable_v(), {2, 2, 3});
  Fill(step.mutable_delta_rule()->mutable_g(), {2, 2});
  Fill(step.mutable_delta_rule()->mutable_beta(), {2, 2});
  step.clear_output_shared();
  step.set_partial_ok(true);
  corpus.Add("step_wire", "step_delta_rule", "\4" + of_operator + step.SerializeAsString());
}

// A linear block of the smallest dimensions, by three architectures' names, of several types.
void AddGguf(const Corpus& corpus) {
  const auto model = [](const std::string& architecture, bool split_ba) {
    GgufWriter writer;
    writer.Text("general.architecture", architecture);
    writer.Texts("tokenizer.ggml.tokens", {"a", "b"});
    constexpr std::pair<const char*, uint32_t> kInts[] = {
        {"block_count", 2},        {"embedding_length", 32}, {"ssm.state_size", 2},  {"ssm.group_count", 1},
        {"ssm.time_step_rank", 2}, {"ssm.inner_size", 4},    {"ssm.conv_kernel", 2}, {"full_attention_interval", 2}};
    for (const auto& [key, value] : kInts) writer.Int(architecture + "." + key, value);
    writer.Float(architecture + ".attention.layer_norm_rms_epsilon", 1e-6f);
    writer.Bools(architecture + ".attention.recurrent_layers", {true, false});
    writer.Tensor("blk.0.attn_qkv.weight", {8, 32}, GgmlType::kQ8_0, std::string(8 * 34, '\1'));
    writer.Tensor("blk.0.attn_gate.weight", {4, 32}, GgmlType::kQ4_0, std::string(4 * 18, '\2'));
    if (split_ba) {
      writer.Tensor("blk.0.ssm_alpha.weight", {2, 32}, GgmlType::kBF16, std::string(128, '\0'));
      writer.Tensor("blk.0.ssm_beta.weight", {2, 32}, GgmlType::kF16, std::string(128, '\0'));
    } else {
      writer.Tensor("blk.0.ssm_ba.weight", {4, 32}, GgmlType::kF32, std::string(512, '\0'));
    }
    writer.Tensor("blk.0.ssm_conv1d.weight", {8, 2}, GgmlType::kF32, std::string(64, '\0'));
    writer.Tensor("blk.0.ssm_a", {2}, GgmlType::kF32, std::string(8, '\0'));
    writer.Tensor("blk.0.ssm_dt.bias", {2}, GgmlType::kF32, std::string(8, '\0'));
    writer.Tensor("blk.0.ssm_norm.weight", {2}, GgmlType::kF32, std::string(8, '\0'));
    writer.Tensor("blk.0.ssm_out.weight", {32, 4}, GgmlType::kF32, std::string(512, '\0'));
    return writer.Bytes();
  };
  corpus.Add("gguf", "qwen35", model("qwen35", /*split_ba=*/true));
  corpus.Add("gguf", "qwen3next", model("qwen3next", /*split_ba=*/false));
  GgufWriter kda;
  kda.Text("general.architecture", "bailingmoe3");
  constexpr std::pair<const char*, uint32_t> kInts[] = {{"block_count", 2},
                                                        {"embedding_length", 32},
                                                        {"attention.head_count", 1},
                                                        {"kda.head_dim", 2},
                                                        {"ssm.conv_kernel", 2}};
  for (const auto& [key, value] : kInts) kda.Int(std::string("bailingmoe3.") + key, value);
  kda.Float("bailingmoe3.attention.layer_norm_rms_epsilon", 1e-6f);
  kda.Float("bailingmoe3.kda.gate_lower_bound", -5.0f);
  kda.Bool("bailingmoe3.kda.safe_gate", true);
  kda.Ints("bailingmoe3.attention.head_count_kv", {0, 1});
  for (const char* matrix : {"attn_q", "attn_k", "attn_v", "ssm_f_a", "ssm_g_a"}) {
    kda.Tensor(std::string("blk.0.") + matrix + ".weight", {2, 32}, GgmlType::kQ8_0, std::string(2 * 34, '\1'));
  }
  kda.Tensor("blk.0.ssm_beta.weight", {1, 32}, GgmlType::kQ4_0, std::string(18, '\2'));
  for (const char* kernel : {"q", "k", "v"}) {
    kda.Tensor(std::string("blk.0.ssm_conv1d_") + kernel + ".weight", {1, 2, 1, 2}, GgmlType::kF32,
               std::string(16, '\0'));
  }
  kda.Tensor("blk.0.ssm_a", {1, 1}, GgmlType::kF32, std::string(4, '\0'));
  kda.Tensor("blk.0.ssm_dt.bias", {2}, GgmlType::kF32, std::string(8, '\0'));
  kda.Tensor("blk.0.ssm_norm.weight", {2}, GgmlType::kF32, std::string(8, '\0'));
  kda.Tensor("blk.0.attn_output.weight", {32, 2}, GgmlType::kF32, std::string(256, '\0'));
  corpus.Add("gguf", "bailingmoe3", kda.Bytes());
  GgufWriter blocks;
  blocks.Text("general.architecture", "llama");
  blocks.Tensor("k", {1, 256}, GgmlType::kQ4_K, std::string(144, '\3'));
  blocks.Tensor("six", {1, 256}, GgmlType::kQ6_K, std::string(210, '\4'));
  blocks.Tensor("iq", {1, 256}, GgmlType::kIQ3_S, std::string(110, '\4'));
  blocks.Tensor("unknown", {7}, static_cast<GgmlType>(39), std::string(7, '\5'));
  corpus.Add("gguf", "other", blocks.Bytes());
}

}  // namespace
}  // namespace gdn

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
    return EXIT_FAILURE;
  }
  const gdn::Corpus corpus(argv[1]);
  gdn::AddStateFiles(corpus);
  gdn::AddRedis(corpus);
  gdn::AddTexts(corpus);
  gdn::AddConfigs(corpus);
  gdn::AddGguf(corpus);
  gdn::AddRequests(corpus);
  gdn::AddSessionRequests(corpus);
  gdn::AddSteps(corpus);
  for (const auto& [name, program] : gdn::RingSeeds()) corpus.Add("ring_submissions", name, program);
  return EXIT_SUCCESS;
}
