#include "server/session/durable/foreign_state.h"

#include "base/error.h"
#include "base/string_cat.h"
#include "server/session/session.h"

namespace gdn {
namespace {

std::string CountsText(const SlotExtent& extent) {
  return StrCat(extent.token_count, " tokens, ", extent.log_length, " of them logged, and a draft of ",
                extent.draft_length);
}

absl::Status OtherCounts(const Session& session, int32_t layer, const SlotExtent& found, const SlotExtent& expected) {
  const std::string name = StrCat("sessions/", session.id());
  return MakeError(
      absl::StatusCode::kDataLoss, reason::kInvalidStateFile,
      StrCat("the stored state of ", name, " has in layer ", layer, " ", CountsText(found), "; the session has ",
             CountsText(expected), ". It was changed where it is stored; go back to a checkpoint"),
      {{"session", name}, {"layer", StrCat(layer)}, {"tensor", "header"}});
}

}  // namespace

absl::Status CheckIsStateOf(const Session& session, const SessionImage& image) {
  auto next = image.layers.begin();
  for (const LayerInfo& info : session.Layers()) {
    const bool there = next != image.layers.end() && next->layer == info.layer;
    const SlotExtent found = there ? next++->extent : SlotExtent();
    if (found != info.progress) return OtherCounts(session, info.layer, found, info.progress);
  }
  return next == image.layers.end() ? absl::OkStatus() : OtherCounts(session, next->layer, next->extent, {});
}

absl::Status ReplyDoesNotFit(const std::string& id, int32_t layer, const StoredReply& reply, int64_t expected) {
  const std::string name = StrCat("sessions/", id);
  return MakeError(
      absl::StatusCode::kAborted, reason::kReplyDropped,
      StrCat("the imported or stored state of ", name, " layer ", layer, " already has the step of request_id '",
             reply.request_id, "', but the reply stored for it has ", reply.output.size(),
             " bytes and this call's reply would have ", expected,
             ". To get the output, restore a checkpoint and send the inputs since then again; otherwise send the next "
             "step"),
      {{"session", name},
       {"layer", StrCat(layer)},
       {"request_id", reply.request_id},
       {"token_count", StrCat(reply.token_count)}});
}

}  // namespace gdn
