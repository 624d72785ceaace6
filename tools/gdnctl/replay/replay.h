// Replays recorded layers through a server and measures how far its answers are from the recorded ones.
//
// For every layer, it sends the prompt in one Prefill, and to other sessions in uneven segments over StreamPrefill. The
// first sessions then decode over Decode and the others over StreamDecode, all sequences in one call. A Prefill
// computes the whole sequence. At the end, ExportState reads the conv and recurrent states of the decoded sessions.
// Every step has an expected token count, and a request_id if its reply is small enough to be stored.
// Thread safety: a free function that blocks. Ownership: the sessions it makes are deleted before it returns, also on
// failure.
//
//   GDN_ASSIGN_OR_RETURN(GoldenIo io, ReadGoldenIo(path));
//   GDN_ASSIGN_OR_RETURN(ErrorTable table, Replay(*client, io, {.model = "models/qwen"}));
//   return table.Within(1e-5);
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/dtype.h"
#include "client/cpp/client.h"
#include "tools/gdnctl/error_table.h"
#include "tools/gdnctl/replay/golden_io.h"

namespace gdn {

struct ReplayOptions {
  std::string model;          // "models/NAME"
  DType dtype = DType::kF32;  // dtype of the inputs; outputs are always requested in F32
  // Called before each path of a layer with its name ("layer 3: decode unary"), and before each session's states
  // ("state of sessions/ID"). An error ends the replay and is returned. May be empty.
  std::function<absl::Status(std::string_view what)> before_part;
};

// Columns of the table, in this order.
enum ReplayPath : size_t {
  kPrefillUnary,
  kPrefillStreamed,
  kDecodeUnary,
  kDecodeStreamed,
  kWhole,
  kConvState,       // the larger error of the unary and the streamed sessions
  kRecurrentState,  // the larger error of the unary and the streamed sessions
};

// Returns the lengths of a prompt's streamed segments: 1, 7, 64, 250, 1, 7, .. until its end.
std::vector<int64_t> UnevenSegments(int64_t tokens);

// Replays all layers and returns the table of errors. Returns the server's errors with the layer and path before the
// message. FAILED_PRECONDITION if the model does not have the recorded layers or hidden size, or the server has only
// some of its heads. INTERNAL if a reply's token count does not match the steps. Errors of SafetensorsFile, or
// FAILED_PRECONDITION, if an exported state does not fit the recording.
absl::StatusOr<ErrorTable> Replay(Client& client, const GoldenIo& io, const ReplayOptions& options);

}  // namespace gdn
