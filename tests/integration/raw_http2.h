// A connection that speaks HTTP/2 by hand: a client that does what no gRPC client does, as sending half a message, or
// leaving pings unanswered.
//
// Thread safety: none. Ownership: owns its socket.
//
//   RawHttp2 client(server.address());
//   client.StartCall(1, "/gdn.v1.GdnService/Decode");
//   client.SendData(1, MessagePrefix(1 << 20) + half);
//   while (const auto frame = client.Read()) ...  // nothing: the server has closed the connection
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace gdn {

struct Http2Frame {
  enum Type : uint8_t { kData = 0, kHeaders = 1, kResetStream = 3, kSettings = 4, kPing = 6, kGoAway = 7 };
  static constexpr uint32_t kEnhanceYourCalm = 0xb;

  uint8_t type = 0;
  uint8_t flags = 0;
  uint32_t stream = 0;
  std::string payload;

  bool is_ack() const { return (flags & 1) != 0; }
  // Of kResetStream and kGoAway.
  uint32_t error() const;
};

// What stands before a gRPC message of so many bytes.
std::string MessagePrefix(uint32_t bytes);

class RawHttp2 {
 public:
  // "127.0.0.1:PORT". Sends the preface and empty settings.
  explicit RawHttp2(const std::string& address);
  ~RawHttp2();
  RawHttp2(const RawHttp2&) = delete;
  RawHttp2& operator=(const RawHttp2&) = delete;

  // Streams have odd numbers, ascending. False, as of all that sends: the connection is closed.
  bool StartCall(uint32_t stream, std::string_view path);
  // Whoever sends more than the server's window has room for breaks the protocol: 64 KiB of a new stream.
  bool SendData(uint32_t stream, std::string_view bytes);
  bool SendPing();
  // The next frame; nothing once the connection is closed, by whatever side.
  std::optional<Http2Frame> Read();
  // Whether there is something to read, or an end to see, within so long.
  bool Readable(int milliseconds) const;

 private:
  bool SendFrame(uint8_t type, uint8_t flags, uint32_t stream, std::string_view payload);
  bool SendAll(std::string_view bytes);
  bool ReadAll(char* out, size_t bytes);

  int socket_ = -1;
};

}  // namespace gdn
