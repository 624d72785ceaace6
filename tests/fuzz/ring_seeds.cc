// The programs of ring_program.h that fuzzing begins from.
#include <cstddef>

#include "ring/ring_layout.h"
#include "tests/fuzz/ring_program.h"

namespace gdn {

std::map<std::string, std::string> RingSeeds() {
  using enum RingInstruction;
  // Kinds of GoodCall; an odd one has its tensors beside its message.
  constexpr uint8_t kDecode = 1, kDraft = 5, kPrefill = 9, kMixed = 13, kAccept = 16;
  constexpr auto kRequestOffset = static_cast<uint8_t>(offsetof(gdn_ring_submission, request_offset));
  constexpr auto kTimeout = static_cast<uint8_t>(offsetof(gdn_ring_submission, timeout_us));
  constexpr auto kMessageBytes = static_cast<uint8_t>(offsetof(gdn_ring_submission, message_bytes));
  constexpr auto kReplyOffset = static_cast<uint8_t>(offsetof(gdn_ring_submission, reply_offset));
  constexpr auto kReplyRoom = static_cast<uint8_t>(offsetof(gdn_ring_submission, reply_room));
  std::map<std::string, std::string> seeds;

  RingProgram all;
  for (const int kind : {1, 0, 9, 8, 13, 12, 5, 17, 16, 11, 15}) all.Call(static_cast<uint8_t>(kind));
  seeds["every_method"] = all.text();
  seeds["draft_and_acceptance"] =
      RingProgram().Call(kDraft).Call(kAccept).Call(kDraft - 1).Call(kAccept + 1).Call(kDecode).text();
  RingProgram burst;
  for (const int kind : {1, 9, 13, 1, 9, 13, 0, 8, 12, 1, 1, 1}) burst.Stage(static_cast<uint8_t>(kind)).Submit();
  seeds["burst"] = burst.Await().Await().text();

  seeds["replayed"] = RingProgram().Call(kDecode).Do(kMoveBack).Byte(0xff).Await().Do(kMoveBack).Byte(3).Await().text();
  seeds["claims_too_many"] =
      RingProgram().Stage(kDecode).Submit().SetWord(0, 1000).Do(kAnnounce).Byte(0).Word(1).Await().text();
  seeds["same_id_again"] = RingProgram().Stage(kDecode).Submit().Submit().Await().Submit().Await().text();
  seeds["cancelled"] = RingProgram()
                           .Stage(kMixed)
                           .Submit()
                           .Do(kCancel)
                           .Byte(0)
                           .Await()
                           .Stage(kPrefill)
                           .Submit()
                           .Do(kCancel)
                           .Byte(1)
                           .text();
  seeds["fetched"] = RingProgram()
                         .Stage(kPrefill)
                         .Patch(kReplyRoom, 0)
                         .Patch(kReplyRoom + 1, 0)
                         .Submit()
                         .Await()
                         .Do(kFetch)
                         .Byte(0)
                         .Word(0)
                         .Byte(64)
                         .Do(kFetch)
                         .Byte(0)
                         .Word(64)
                         .Byte(255)
                         .Do(kFetch)
                         .Byte(0)
                         .Word(1u << 31)
                         .Byte(255)
                         .Await()
                         .text();
  seeds["deadlines"] = RingProgram()
                           .Stage(kDecode)
                           .Patch(kTimeout, 1)
                           .Submit()
                           .Await()
                           .Stage(kPrefill)
                           .Patch(kTimeout + 6, 255)
                           .Submit()
                           .text();

  seeds["header_overwritten"] = RingProgram()
                                    .Write(0, std::string(512, '\xff'))
                                    .Call(kDecode)
                                    .Write(64, std::string(384, 0))
                                    .Call(kPrefill)
                                    .text();
  seeds["entries_overwritten"] =
      RingProgram().Write(448, std::string(600, 'x')).SetWord(0, 4).Do(kAnnounce).Byte(0).Word(1).Await().text();
  seeds["area_rewritten"] =
      RingProgram().Stage(kDecode).Submit().Write(16384, "\x0a\xff\xff\xff\xff\x0f").Call(kMixed).text();
  RingProgram outside;
  for (const uint8_t place : {kRequestOffset, kMessageBytes, kReplyOffset, kReplyRoom}) {
    outside.Stage(kDecode).Patch(static_cast<uint8_t>(place + 7), 0x80).Submit().Await().Do(kReopen);
  }
  seeds["outside_of_the_area"] = outside.text();
  seeds["raw_submissions"] = RingProgram().Do(kSubmitRaw).Raw(std::string(128, '\xff')).Await().Do(kSubmitRaw).text();

  seeds["left_and_reopened"] = RingProgram()
                                   .Stage(kDecode)
                                   .Submit()
                                   .Do(kLeave)
                                   .Do(kReopen)
                                   .Call(kDecode)
                                   .Do(kDisconnect)
                                   .Call(kDecode)
                                   .Do(kLeave)
                                   .text();
  seeds["holes"] = RingProgram()
                       .Stage(kDecode)
                       .Submit()
                       .Do(kPunch)
                       .Byte(0)
                       .Byte(0)
                       .Await()
                       .Do(kPunch)
                       .Byte(1)
                       .Byte(255)
                       .Call(kDecode)
                       .text();
  seeds["announcements"] = RingProgram()
                               .Do(kAnnounce)
                               .Byte(1)
                               .Do(kAnnounce)
                               .Byte(1)
                               .Call(kDecode)
                               .Do(kAnnounce)
                               .Byte(0)
                               .Word(0)
                               .Call(kDecode)
                               .text();
  seeds["beside_messages"] =
      RingProgram().Stage(kDecode).Submit().Do(kMessage).Await().Do(kMessage).Call(kDecode).text();
  return seeds;
}

}  // namespace gdn
