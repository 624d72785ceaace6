// The programs that ring_submissions_fuzz.cc runs: what a client that keeps no rules does with its ring.
//
// A program is a sequence of instructions. Each is a byte, modulo kRingInstructions, and then its operands; those of a
// program that ends too early are zeros. Thread safety: plain values. Ownership: none.
//
//   const std::string program = RingProgram().Stage(1).Do(RingInstruction::kSubmit).text();
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace gdn {

enum class RingInstruction : uint8_t {
  kStage,       // u8 kind: puts a good call into the area, and has its submission ready
  kPatch,       // u8 place, u8 value: changes a byte of that submission
  kWrite,       // u32 place, u16 count, bytes: writes anywhere into the ring's memory
  kSubmit,      // submits what is ready
  kSubmitRaw,   // 128 bytes: submits these
  kAnnounce,    // u8 all: if odd, as much as fits into the eventfd; else u32 count
  kSetWord,     // u8 which, u32 value: of the six words of the header
  kMoveBack,    // i8: adds this to the number of submissions, so that old ones come again, or ones that nobody wrote
  kAwait,       // waits a little for a completion
  kCancel,      // u8: the call so many before the last one
  kFetch,       // u8 as kCancel, u32 offset, u8 room
  kReopen,      // opens another ring, and leaves this one
  kLeave,       // ends the call that keeps the ring
  kMessage,     // makes a call beside the ring
  kPunch,       // u8 first page, u8 pages less one: gives memory of the ring back to the system
  kDisconnect,  // closes the connection to the server's socket
};
inline constexpr int kRingInstructions = 16;

// Writes a program.
class RingProgram {
 public:
  RingProgram& Do(RingInstruction instruction) { return Byte(static_cast<uint8_t>(instruction)); }
  RingProgram& Byte(uint8_t value) {
    text_ += static_cast<char>(value);
    return *this;
  }
  RingProgram& Word(uint32_t value) {
    for (int shift = 0; shift < 32; shift += 8) Byte(static_cast<uint8_t>(value >> shift));
    return *this;
  }
  RingProgram& Stage(uint8_t kind) { return Do(RingInstruction::kStage).Byte(kind); }
  RingProgram& Submit() { return Do(RingInstruction::kSubmit); }
  RingProgram& Await() { return Do(RingInstruction::kAwait); }
  // A call as the rules want it.
  RingProgram& Call(uint8_t kind) { return Stage(kind).Submit().Await(); }
  RingProgram& Patch(uint8_t place, uint8_t value) { return Do(RingInstruction::kPatch).Byte(place).Byte(value); }
  RingProgram& Write(uint32_t place, std::string_view bytes) {
    Do(RingInstruction::kWrite).Word(place);
    Byte(static_cast<uint8_t>(bytes.size())).Byte(static_cast<uint8_t>(bytes.size() >> 8));
    text_ += bytes;
    return *this;
  }
  RingProgram& SetWord(uint8_t which, uint32_t value) { return Do(RingInstruction::kSetWord).Byte(which).Word(value); }
  RingProgram& Raw(std::string_view bytes) {
    text_ += bytes;
    return *this;
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// Returns the programs that fuzzing begins from, by name.
std::map<std::string, std::string> RingSeeds();

}  // namespace gdn
