#include "tools/gdn_bench/event_pair.h"

#include "base/status_macros.h"

namespace gdn::bench {
namespace {

constexpr double kMicro = 1e6;

}  // namespace

absl::StatusOr<std::unique_ptr<EventPair>> EventPair::Make(const gpu::Stream& stream) {
  auto pair = std::unique_ptr<EventPair>(new EventPair(stream));
  GDN_ASSIGN_OR_RETURN(pair->begin_, gpu::MakeEvent());
  GDN_ASSIGN_OR_RETURN(pair->end_, gpu::MakeEvent());
  return pair;
}

EventPair::~EventPair() {
  if (begin_ != nullptr) gpu::DestroyEvent(begin_);
  if (end_ != nullptr) gpu::DestroyEvent(end_);
}

absl::StatusOr<double> EventPair::EndSeconds() {
  GDN_RETURN_IF_ERROR(gpu::RecordEvent(end_, stream_));
  GDN_ASSIGN_OR_RETURN(const double microseconds, gpu::MicrosecondsBetween(begin_, end_));
  return microseconds / kMicro;
}

}  // namespace gdn::bench
