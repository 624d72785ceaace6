// A raw HTTP/2 connection, for tests of clients that break rules: they send half a message, or do not answer pings.
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
  // Returns the error code of a kResetStream or kGoAway frame.
  uint32_t error() const;
};

// Returns the 5 bytes that precede a gRPC message of `bytes` bytes.
std::string MessagePrefix(uint32_t bytes);

class RawHttp2 {
 public:
  // Connects to "127.0.0.1:PORT", and sends the preface and empty settings.
  explicit RawHttp2(const std::string& address);
  ~RawHttp2();
  RawHttp2(const RawHttp2&) = delete;
  RawHttp2& operator=(const RawHttp2&) = delete;

  // Begins a call. Stream numbers must be odd and ascending. This and the other Send methods return false if the
  // connection is closed.
  bool StartCall(uint32_t stream, std::string_view path);
  // Sends data of a call. Does not observe the server's window (64 KiB for a new stream), so the caller must.
  bool SendData(uint32_t stream, std::string_view bytes);
  bool SendPing();
  // Reads the next frame; nullopt if either side has closed the connection.
  std::optional<Http2Frame> Read();
  // True if bytes or the end of the connection can be read within so many milliseconds.
  bool Readable(int milliseconds) const;

 private:
  bool SendFrame(uint8_t type, uint8_t flags, uint32_t stream, std::string_view payload);
  bool SendAll(std::string_view bytes);
  bool ReadAll(char* out, size_t bytes);

  int socket_ = -1;
};

}  // namespace gdn
