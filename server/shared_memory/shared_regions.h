// Memory that clients of this host share with the server: regions, each a file that one client writes its tensors to
// and reads its outputs from.
//
// A region belongs to the principal that asked for it, and is found under its name until it is ended. It counts as its
// account's (server/admission): principals that a caller invents have one together. Calls that found it before go on
// with it; the file's descriptor is closed, and the count taken back, with the last of them. Files that a killed server
// left in the folder are removed by the next one that is made for it.
// Thread safety: safe from any thread. Ownership: a SharedRegions owns its regions' names; whoever found a region
// shares it, and its count, beyond End. The SharedRegions must outlive the regions.
//
//   SharedRegions regions({.directory = "/dev/shm"});
//   GDN_ASSIGN_OR_RETURN(SharedRegionPtr region, regions.Open(principal, account, bytes, [this] { OnDrain(); }));
//   GDN_ASSIGN_OR_RETURN(SharedRegionPtr found, regions.Find(principal, region->name()));
//   GDN_RETURN_IF_ERROR(found->Read(offset, {buffer, size}));
//   regions.End(region->name());
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/shared_memory/shared_region.h"

namespace gdn {

struct SharedMemoryOptions {
  std::string directory = "/dev/shm";                // "": nothing is shared
  int64_t bytes = int64_t{1} << 30;                  // of all regions
  int64_t bytes_per_principal = int64_t{256} << 20;  // of one account's
  int32_t regions_per_principal = 256;
  int32_t regions = 4096;  // each is a file descriptor
};

class SharedRegions {
 public:
  // Called once for a region that Drain has ended; its End then answers false.
  using OnDrain = std::function<void()>;

  // Where `directory` cannot be written to, nothing is offered, and unavailable() says why.
  explicit SharedRegions(SharedMemoryOptions options);
  // All regions must have been ended.
  ~SharedRegions();

  bool offered() const { return unavailable_.empty(); }
  const std::string& unavailable() const { return unavailable_; }
  const SharedMemoryOptions& options() const { return options_; }
  int64_t used_bytes() const;

  // A new region. UNIMPLEMENTED (SHARED_MEMORY_NOT_OFFERED), INVALID_ARGUMENT (INVALID_SPEC) for bytes below 1,
  // RESOURCE_EXHAUSTED (SHARED_MEMORY_EXHAUSTED: needed, available) over a limit, UNAVAILABLE (SERVER_DRAINING), errors
  // of SharedRegion::Make.
  absl::StatusOr<SharedRegionPtr> Open(const std::string& principal, const std::string& account, int64_t bytes,
                                       OnDrain on_drain);
  // NOT_FOUND (SHARED_REGION_NOT_FOUND: region), the same for unknown, ended and other principals' regions.
  absl::StatusOr<SharedRegionPtr> Find(const std::string& principal, const std::string& name) const;
  // Nobody finds the region from here on, and its file is unlinked. True for who ends it first.
  bool End(const std::string& name);
  // Ends all regions, and refuses new ones from here on.
  void Drain();

 private:
  struct Entry {
    std::shared_ptr<SharedRegion> region;
    std::string principal;
    OnDrain on_drain;
  };
  struct Use {
    int64_t bytes = 0;
    int32_t regions = 0;
  };

  absl::Status Charge(const std::string& account, int64_t bytes);
  void Credit(const std::string& account, int64_t bytes);

  const SharedMemoryOptions options_;
  std::string unavailable_;
  mutable absl::Mutex mu_;
  absl::flat_hash_map<std::string, Entry> entries_ ABSL_GUARDED_BY(mu_);  // by name
  absl::flat_hash_map<std::string, Use> used_ ABSL_GUARDED_BY(mu_);       // by principal
  Use total_ ABSL_GUARDED_BY(mu_);
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace gdn
