// Replays recorded layers through a server and measures how far its answers are from the recorded ones.
//
// For every layer: the prompt in one Prefill, and in uneven segments over StreamPrefill; then the decode steps, all
// sequences in one call a step, over Decode on the sessions of the first and over StreamDecode on those of the second;
// the whole sequence in one Prefill; and at the end the conv and recurrent states of the decoded sessions, read by
// ExportState. Every step carries its expected token count, and a request_id where the reply is small enough to be
// stored.
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
#include "tools/gdnctl/golden_io.h"

namespace gdn {

struct ReplayOptions {
  std::string model;          // "models/NAME"
  DType dtype = DType::kF32;  // of the inputs; outputs are always asked for in F32
  // Called before each part with what it is ("layer 3: decode unary"); an error ends the replay with it. May be empty.
  std::function<absl::Status(std::string_view what)> before_part;
};

// Columns of the table, in this order.
enum ReplayPath : size_t {
  kPrefillUnary,
  kPrefillStreamed,
  kDecodeUnary,
  kDecodeStreamed,
  kWhole,
  kConvState,       // of the unary and the streamed sessions, the worse
  kRecurrentState,  // likewise
};

// Lengths of the streamed segments of a prompt: 1, 7, 64, 250, 1, 7, .. until its end.
std::vector<int64_t> UnevenSegments(int64_t tokens);

// The server's errors, with the layer and path before the message; FAILED_PRECONDITION where the model does not have
// the recorded layers or width; INTERNAL where a reply's token count or an exported file is not what the steps must
// have left.
absl::StatusOr<ErrorTable> Replay(Client& client, const GoldenIo& io, const ReplayOptions& options);

}  // namespace gdn
