// Memory that clients on this host share with the server. Each region is a file: one client writes its tensors to it
// and reads its outputs from it.
//
// A region belongs to the principal that opened it, and is found by its name until it is ended. It counts against the
// caller's account (server/admission), so a caller gains nothing by inventing principals. Calls that found a region
// before it ended continue to use it; the last of them closes the file and ends the charge. The constructor removes
// files that a killed server left in the folder.
// Thread safety: safe from any thread. Ownership: a SharedRegions owns its regions' names; a caller that found a region
// shares it, and its charge, beyond End. The SharedRegions must outlive the regions.
//
//   SharedRegions regions({.directory = "/dev/shm"});
//   GDN_ASSIGN_OR_RETURN(SharedRegionPtr region, regions.Open(principal, account, bytes, [this] { OnDrain(); }));
//   GDN_ASSIGN_OR_RETURN(SharedRegionPtr found, regions.Find(principal, region->name()));
//   GDN_RETURN_IF_ERROR(found->Read(offset, {buffer, size}));
//   regions.End(region->name());
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/task/signal.h"
#include "server/shared_memory/shared_region.h"

namespace gdn {

struct SharedMemoryOptions {
  std::string directory = "/dev/shm";                // "": no memory is shared
  int64_t bytes = int64_t{1} << 30;                  // limit for all regions together
  int64_t bytes_per_principal = int64_t{256} << 20;  // limit for one account
  int32_t regions_per_principal = 256;
  int32_t regions = 4096;  // limit for all accounts; each region takes a file descriptor, and a ring three
  // How long the server looks for submissions of rings before it sleeps; nullopt: as long as suits the backend.
  std::optional<absl::Duration> ring_spin = std::nullopt;
};

class SharedRegions {
 public:
  // Removes files of regions that killed servers left in `directory`. If the server cannot make a file there, or
  // `directory` is "", it offers no memory, and unavailable() says why.
  explicit SharedRegions(SharedMemoryOptions options);
  // Ends the regions that are left. No SharedRegionPtr may outlive this object.
  ~SharedRegions();

  bool offered() const { return unavailable_.empty(); }
  const std::string& unavailable() const { return unavailable_; }
  const SharedMemoryOptions& options() const { return options_; }
  int64_t used_bytes() const;

  // Makes a region for the principal, and charges it to `account` (ByteAccount::name) until nobody has it any more.
  // Errors: UNIMPLEMENTED (SHARED_MEMORY_NOT_OFFERED), INVALID_ARGUMENT (INVALID_SPEC) for bytes below 1,
  // RESOURCE_EXHAUSTED (SHARED_MEMORY_EXHAUSTED: needed, available) over a limit, UNAVAILABLE (SERVER_DRAINING), and
  // those of SharedRegion::Make.
  absl::StatusOr<SharedRegionPtr> Open(const std::string& principal, const std::string& account, int64_t bytes);
  // Charges a ring of `bytes` bytes as a region, until nobody has the result any more. Errors of Open, without those of
  // SharedRegion::Make.
  absl::StatusOr<std::shared_ptr<void>> ChargeRing(const std::string& account, int64_t bytes);
  // Returns the principal's region of this name. NOT_FOUND (SHARED_REGION_NOT_FOUND: region), the same for unknown,
  // ended and other principals' regions.
  absl::StatusOr<SharedRegionPtr> Find(const std::string& principal, const std::string& name) const;
  // Ends a region: nobody finds it any more, and its file is unlinked. Callers that have it may go on using it. Returns
  // true to the caller that ends it first, false if there is no such region any more.
  bool End(const std::string& name);
  // Ends all regions, and refuses new ones from then on (SERVER_DRAINING). End of such a region returns false.
  void Drain();
  // Returns the signal that Drain raises. Calls that hold a region open wait for it.
  Signal& drained() { return drained_; }

 private:
  struct Entry {
    std::shared_ptr<SharedRegion> region;
    std::string principal;
  };
  struct Use {
    int64_t bytes = 0;
    int32_t regions = 0;
  };

  absl::Status CheckOffered(int64_t bytes) const;
  absl::Status Charge(const std::string& account, int64_t bytes);
  void Credit(const std::string& account, int64_t bytes);

  const SharedMemoryOptions options_;
  std::string unavailable_;
  mutable absl::Mutex mu_;
  absl::flat_hash_map<std::string, Entry> entries_ ABSL_GUARDED_BY(mu_);  // by name
  absl::flat_hash_map<std::string, Use> used_ ABSL_GUARDED_BY(mu_);       // by account
  Use total_ ABSL_GUARDED_BY(mu_);
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  Signal drained_;
};

}  // namespace gdn
