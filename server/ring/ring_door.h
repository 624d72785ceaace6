// The socket at which clients get their rings: who sends a ring's token gets the ring's descriptors, once.
//
// A token is 32 random bytes, which the server gave to one client (ShareMemory), so any user and any container that can
// see the socket may connect. A connection that sends nothing costs a descriptor for two seconds. At most 64 wait; then
// the user with the most of them loses the oldest one, so a user who connects without end costs no other user anything.
// Thread safety: safe from any thread. Ownership: owns the socket, its file and a thread; shares rings until their
// token is used, taken back, or too old.
//
//   GDN_ASSIGN_OR_RETURN(std::unique_ptr<RingDoor> door, RingDoor::Open("/dev/shm"));
//   const std::string token = door->Offer(ring);
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/owned_fd.h"
#include "base/threads/steady_clock.h"
#include "server/ring/ring.h"

namespace gdn {

class RingDoor {
 public:
  // Listens at a path with a random name in `folder`, and removes sockets that killed servers left there. UNAVAILABLE
  // if that fails.
  static absl::StatusOr<std::unique_ptr<RingDoor>> Open(const std::string& folder);
  RingDoor(const RingDoor&) = delete;
  RingDoor& operator=(const RingDoor&) = delete;
  ~RingDoor();

  const std::string& path() const { return path_; }
  // Returns a token for the ring, which works once, for at most kTokenLife.
  std::string Offer(std::shared_ptr<Ring> ring);
  void TakeBack(const std::string& token);

  static constexpr absl::Duration kTokenLife = absl::Seconds(10);

  // Returns the index of the visitor who makes room for another one: the first of the user who has most. `users`: of
  // each visitor, the oldest first; at least one.
  static size_t MakesRoom(const std::vector<uid_t>& users);

 private:
  struct Offered {
    std::shared_ptr<Ring> ring;
    SteadyTime until;
  };
  // A connection that has not sent its token yet.
  struct Visitor {
    OwnedFd fd;
    uid_t user = 0;
    SteadyTime until;
    std::string sent;
  };

  RingDoor(std::string path, OwnedFd socket, OwnedFd stop);
  void Run();
  // Lets in those who have connected, and reads what they have sent already.
  void Accept();
  // Reads what the visitor has sent. Returns true if it is to be asked again.
  bool Hear(Visitor& visitor);
  std::shared_ptr<Ring> Redeem(const std::string& token);

  const std::string path_;
  const OwnedFd socket_;
  const OwnedFd stop_;  // an eventfd; readable: the thread shall end
  std::vector<Visitor> visitors_;
  absl::Mutex mu_;
  absl::flat_hash_map<std::string, Offered> offered_ ABSL_GUARDED_BY(mu_);  // by token
  std::thread thread_;
};

}  // namespace gdn
