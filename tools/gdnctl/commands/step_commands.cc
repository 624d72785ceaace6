// gdnctl prefill, gdnctl decode.
#include <utility>

#include "absl/flags/flag.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/files/output_file.h"
#include "base/files/safetensors.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "client/cpp/tensor_codec.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "tools/gdnctl/commands.h"
#include "tools/gdnctl/replay/recorded_input.h"

ABSL_FLAG(int32_t, layer, 0, "Layer index: one of the model's GDN layers.");
ABSL_FLAG(std::string, in, "", "Safetensors file to read.");
ABSL_FLAG(std::string, out, "", "Safetensors file to write. For state watch: folder to write to.");
ABSL_FLAG(std::string, output_dtype, "", "Dtype of the output: F32, F16 or BF16. Empty: that of the input.");
ABSL_FLAG(std::string, request_id, "",
          "Makes a retry safe: a second call with the same id and input does not change the state again.");
ABSL_FLAG(int64_t, expected_token_count, -1,
          "Refuse the step unless the layer has seen this many tokens. -1: do not check.");
ABSL_FLAG(double, scale, 0, "delta_rule: factor for q. 0: the server's default, K^-0.5.");
ABSL_FLAG(bool, use_qk_l2norm, false, "delta_rule: normalise q and k first.");
ABSL_FLAG(bool, allow_beta_to_two, false, "delta_rule: accept beta in (1, 2].");
ABSL_FLAG(int64_t, sequence, 0, "Recording: the sequence to take, or for decode the first of them.");
ABSL_FLAG(int64_t, step, 0, "Recording: the decode step to take.");
ABSL_FLAG(bool, allow_non_finite, false, "Accept NaN and Inf in the input.");

namespace gdn {
namespace {

constexpr char kInputHelp[] =
    "The input file has one of these sets of tensors, by name. Other tensors are ignored.\n"
    "  hidden_states         the whole layer\n"
    "  mixed_qkv, z, b, a    the layer without its projections\n"
    "  q, k, v, g, beta      the bare delta rule\n"
    "  layer.L.prefill.in, layer.L.decode.S.in   a recording, such as tests/golden/qwen3_next_5/io.safetensors\n";

// Every tensor of an input, from the tensor of the file that has the field's name.
absl::Status SetTensors(const SafetensorsFile& file, google::protobuf::Message* input) {
  const google::protobuf::Descriptor& fields = *input->GetDescriptor();
  for (int i = 0; i < fields.field_count(); ++i) {
    const google::protobuf::FieldDescriptor* const field = fields.field(i);
    if (field->message_type() != v1::Tensor::descriptor()) continue;
    GDN_ASSIGN_OR_RETURN(const TensorView view, file.Tensor(field->name()));
    auto& tensor = static_cast<v1::Tensor&>(*input->GetReflection()->MutableMessage(input, field));
    GDN_ASSIGN_OR_RETURN(tensor, MakeTensor(view));
  }
  return absl::OkStatus();
}

// The input of a recording, if `file` is one.
absl::StatusOr<bool> SetRecordedInput(const SafetensorsFile& file, v1::PrefillRequest* request) {
  const std::string name = RecordedPrefill(file, request->layer());
  if (name.empty()) return false;
  GDN_ASSIGN_OR_RETURN(*request->mutable_hidden_states()->mutable_hidden_states(),
                       RecordedSequence(file, name, absl::GetFlag(FLAGS_sequence)));
  return true;
}
absl::StatusOr<bool> SetRecordedInput(const SafetensorsFile& file, v1::DecodeRequest* request) {
  const std::string name = RecordedDecode(file, request->layer(), absl::GetFlag(FLAGS_step));
  if (name.empty()) return false;
  GDN_ASSIGN_OR_RETURN(*request->mutable_hidden_states()->mutable_hidden_states(),
                       RecordedSequences(file, name, absl::GetFlag(FLAGS_sequence), request->sessions_size()));
  return true;
}

// The input of a PrefillRequest or DecodeRequest from the tensors that `file` has.
template <typename Request>
absl::Status SetInput(const SafetensorsFile& file, Request* request) {
  GDN_ASSIGN_OR_RETURN(const bool recorded, SetRecordedInput(file, request));
  if (recorded) return absl::OkStatus();
  const int kinds = file.Contains("hidden_states") + file.Contains("mixed_qkv") + file.Contains("q");
  if (kinds != 1) {
    return absl::InvalidArgumentError(StrCat("the input file has the tensors of ", kinds, " kinds of input for layer ",
                                             request->layer(), ", expected 1.\n", kInputHelp));
  }
  if (file.Contains("hidden_states")) return SetTensors(file, request->mutable_hidden_states());
  if (file.Contains("mixed_qkv")) return SetTensors(file, request->mutable_projected());
  v1::DeltaRuleInput* const input = request->mutable_delta_rule();
  if (absl::GetFlag(FLAGS_scale) != 0) input->set_scale(static_cast<float>(absl::GetFlag(FLAGS_scale)));
  input->set_use_qk_l2norm(absl::GetFlag(FLAGS_use_qk_l2norm));
  input->set_allow_beta_to_two(absl::GetFlag(FLAGS_allow_beta_to_two));
  return SetTensors(file, input);
}

// What prefill and decode have in common, but for the sessions.
template <typename Request>
absl::Status FillRequest(Request* request) {
  if (absl::GetFlag(FLAGS_in).empty() || absl::GetFlag(FLAGS_out).empty()) {
    return UsageError("--in and --out are needed");
  }
  if (const std::string name = absl::GetFlag(FLAGS_output_dtype); !name.empty()) {
    const absl::StatusOr<DType> dtype = ParseDType(name);
    if (!dtype.ok()) return UsageError(StrCat("--output_dtype: ", dtype.status().message()));
    request->set_output_dtype(ToProtoDType(*dtype));
  }
  request->set_layer(absl::GetFlag(FLAGS_layer));
  request->set_request_id(absl::GetFlag(FLAGS_request_id));
  request->set_allow_non_finite(absl::GetFlag(FLAGS_allow_non_finite));
  GDN_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::Open(absl::GetFlag(FLAGS_in)));
  return SetInput(file, request);
}

// Opens --out, so that a step whose output cannot be written is not taken.
template <typename Request>
absl::StatusOr<OutputFile> OpenOutput(const Request& request) {
  constexpr int64_t kHeaderBytes = 4096;
  constexpr int64_t kWidened = 2;  // F32 asked for a 16-bit input
  GDN_ASSIGN_OR_RETURN(OutputFile file, OutputFile::Create(absl::GetFlag(FLAGS_out)));
  GDN_RETURN_IF_ERROR(file.Reserve(static_cast<int64_t>(request.ByteSizeLong()) * kWidened + kHeaderBytes));
  return file;
}

absl::Status WriteOutput(const v1::Tensor& output, const std::string& token_counts, OutputFile& file) {
  GDN_ASSIGN_OR_RETURN(const TensorView view, ViewTensor(output));
  GDN_ASSIGN_OR_RETURN(const std::string bytes,
                       SerializeSafetensors({{"output", view}}, {{"token_counts", token_counts}}));
  absl::Status status = file.Append(bytes);
  if (status.ok()) status = file.Commit();
  if (status.ok()) return status;
  return absl::Status(
      status.code(),
      AbslView(StrCat(status.message(), "; the step has been taken, token counts are ", token_counts,
                      absl::GetFlag(FLAGS_request_id).empty()
                          ? ", and its output is lost; with a --request-id you could ask for the output again"
                          : "; run the command again with the same --request-id and another --out for its output")));
}

absl::StatusOr<int> RunPrefill(const std::vector<std::string>&) {
  v1::PrefillRequest request;
  GDN_ASSIGN_OR_RETURN(*request.mutable_session(), OneSession());
  if (const int64_t expected = absl::GetFlag(FLAGS_expected_token_count); expected >= 0) {
    request.set_expected_token_count(expected);
  }
  GDN_RETURN_IF_ERROR(FillRequest(&request));
  GDN_ASSIGN_OR_RETURN(OutputFile file, OpenOutput(request));
  GDN_ASSIGN_OR_RETURN(const v1::PrefillResponse reply, ConnectByFlags()->Prefill(request));
  GDN_RETURN_IF_ERROR(WriteOutput(reply.output(), StrCat(reply.token_count()), file));
  absl::PrintF("%s layer %d: output %s in '%s', %d tokens seen, %d us of compute\n", request.session(), request.layer(),
               ShapeToString(reply.output().shape()), absl::GetFlag(FLAGS_out), reply.token_count(),
               reply.compute_time_us());
  return kExitOk;
}

absl::StatusOr<int> RunDecode(const std::vector<std::string>&) {
  const std::vector<std::string> sessions = absl::GetFlag(FLAGS_session);
  if (sessions.empty())
    return UsageError("--session is needed: ids separated by commas, one for each row of the input");
  v1::DecodeRequest request;
  for (const std::string& session : sessions) {
    GDN_ASSIGN_OR_RETURN(*request.add_sessions(), ToSessionName(session));
    if (const int64_t expected = absl::GetFlag(FLAGS_expected_token_count); expected >= 0) {
      request.add_expected_token_counts(expected);
    }
  }
  GDN_RETURN_IF_ERROR(FillRequest(&request));
  GDN_ASSIGN_OR_RETURN(OutputFile file, OpenOutput(request));
  GDN_ASSIGN_OR_RETURN(const v1::DecodeResponse reply, ConnectByFlags()->Decode(request));
  const std::string counts = absl::StrJoin(reply.token_counts(), ",");
  GDN_RETURN_IF_ERROR(WriteOutput(reply.output(), counts, file));
  absl::PrintF("%d sessions layer %d: output %s in '%s', %s tokens seen, %d us of compute\n", request.sessions_size(),
               request.layer(), ShapeToString(reply.output().shape()), absl::GetFlag(FLAGS_out), counts,
               reply.compute_time_us());
  return kExitOk;
}

std::vector<std::string_view> StepFlags() {
  return {"session",
          "layer",
          "sequence",
          "step",
          "in",
          "out",
          "output_dtype",
          "request_id",
          "expected_token_count",
          "scale",
          "use_qk_l2norm",
          "allow_beta_to_two",
          "allow_non_finite"};
}

}  // namespace

std::vector<Command> StepCommands() {
  static const auto* const details = new std::pair<std::string, std::string>(
      StrCat(kInputHelp,
             "Their first dimension is the tokens, [T, ..]; the output is written as 'output'.\n"
             "Example: gdnctl prefill --session chat-1 --layer 0 --in prompt.safetensors --out out.safetensors\n"),
      StrCat(kInputHelp,
             "Their first dimensions are sessions and tokens, [B, T, ..]; the output is written as 'output'.\n"
             "Example: gdnctl decode --session chat-1,chat-2 --layer 0 --in step.safetensors --out out.safetensors\n"));
  return {{.name = "prefill",
           .summary = "Advance one layer of a session by the tokens of a file",
           .details = details->first,
           .flags = StepFlags(),
           .run = RunPrefill},
          {.name = "decode",
           .summary = "Advance one layer of many sessions by a few tokens each",
           .details = details->second,
           .flags = StepFlags(),
           .run = RunDecode}};
}

}  // namespace gdn
