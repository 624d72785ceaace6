// The server's part for rings: the socket at which clients get them, and the thread that looks at them.
//
// Thread safety: as its members. Ownership: owns them.
//
//   GDN_ASSIGN_OR_RETURN(std::unique_ptr<Rings> rings, Rings::Start({.folder = "/dev/shm"}));
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "server/ring/ring_door.h"
#include "server/ring/ring_poller.h"

namespace gdn {

struct Rings {
  const std::unique_ptr<RingDoor> door;
  const std::unique_ptr<RingPoller> poller;

  // `folder`: for the socket. `spin`: as RingPoller::Start. Errors of both.
  static absl::StatusOr<std::unique_ptr<Rings>> Start(const std::string& folder, absl::Duration spin) {
    GDN_ASSIGN_OR_RETURN(std::unique_ptr<RingDoor> door, RingDoor::Open(folder));
    GDN_ASSIGN_OR_RETURN(std::unique_ptr<RingPoller> poller, RingPoller::Start(spin));
    return std::unique_ptr<Rings>(new Rings{.door = std::move(door), .poller = std::move(poller)});
  }
};

}  // namespace gdn
