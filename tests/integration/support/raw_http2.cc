#include "tests/integration/support/raw_http2.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace gdn {
namespace {

constexpr size_t kFrameHeaderBytes = 9;
constexpr size_t kMaxFrameBytes = 16384;  // what a server takes that has not said more
constexpr uint8_t kEndHeaders = 4;

std::string BigEndian(uint32_t value, int bytes) {
  std::string text;
  for (int i = bytes - 1; i >= 0; --i) text.push_back(static_cast<char>(value >> (8 * i)));
  return text;
}

uint32_t FromBigEndian(std::string_view bytes) {
  uint32_t value = 0;
  for (const char c : bytes) value = value << 8 | static_cast<uint8_t>(c);
  return value;
}

// A header field that is no entry of any table: HPACK's literal without indexing, by a new name.
std::string Literal(std::string_view name, std::string_view value) {
  std::string field(1, '\0');
  for (const std::string_view text : {name, value}) {
    field.push_back(static_cast<char>(text.size()));  // below 127
    field += text;
  }
  return field;
}

}  // namespace

uint32_t Http2Frame::error() const {
  const size_t offset = type == kGoAway ? 4 : 0;
  return payload.size() < offset + 4 ? 0 : FromBigEndian(std::string_view(payload).substr(offset, 4));
}

std::string MessagePrefix(uint32_t bytes) { return std::string(1, '\0') + BigEndian(bytes, 4); }

RawHttp2::RawHttp2(const std::string& address) : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in peer{};
  peer.sin_family = AF_INET;
  peer.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  peer.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(socket_, reinterpret_cast<const sockaddr*>(&peer), sizeof(peer)) != 0) return;
  SendAll("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
  SendFrame(Http2Frame::kSettings, 0, 0, "");
}

RawHttp2::~RawHttp2() { close(socket_); }

bool RawHttp2::StartCall(uint32_t stream, std::string_view path) {
  return SendFrame(Http2Frame::kHeaders, kEndHeaders, stream,
                   Literal(":method", "POST") + Literal(":scheme", "http") + Literal(":path", path) +
                       Literal(":authority", "localhost") + Literal("te", "trailers") +
                       Literal("content-type", "application/grpc"));
}

bool RawHttp2::SendData(uint32_t stream, std::string_view bytes) {
  while (!bytes.empty()) {
    const std::string_view piece = bytes.substr(0, kMaxFrameBytes);
    if (!SendFrame(Http2Frame::kData, 0, stream, piece)) return false;
    bytes.remove_prefix(piece.size());
  }
  return true;
}

bool RawHttp2::SendPing() { return SendFrame(Http2Frame::kPing, 0, 0, "12345678"); }

std::optional<Http2Frame> RawHttp2::Read() {
  char header[kFrameHeaderBytes];
  if (!ReadAll(header, sizeof(header))) return std::nullopt;
  const std::string_view view(header, sizeof(header));
  Http2Frame frame;
  frame.payload.resize(FromBigEndian(view.substr(0, 3)));
  frame.type = static_cast<uint8_t>(header[3]);
  frame.flags = static_cast<uint8_t>(header[4]);
  frame.stream = FromBigEndian(view.substr(5, 4));
  if (!ReadAll(frame.payload.data(), frame.payload.size())) return std::nullopt;
  return frame;
}

bool RawHttp2::Readable(int milliseconds) const {
  pollfd waiting{.fd = socket_, .events = POLLIN, .revents = 0};
  return poll(&waiting, 1, milliseconds) > 0;
}

bool RawHttp2::SendFrame(uint8_t type, uint8_t flags, uint32_t stream, std::string_view payload) {
  std::string frame = BigEndian(static_cast<uint32_t>(payload.size()), 3);
  frame.push_back(static_cast<char>(type));
  frame.push_back(static_cast<char>(flags));
  frame += BigEndian(stream, 4);
  frame += payload;
  return SendAll(frame);
}

bool RawHttp2::SendAll(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

bool RawHttp2::ReadAll(char* out, size_t bytes) {
  while (bytes > 0) {
    const ssize_t got = recv(socket_, out, bytes, 0);
    if (got <= 0) return false;
    out += got;
    bytes -= static_cast<size_t>(got);
  }
  return true;
}

}  // namespace gdn
