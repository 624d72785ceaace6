// The small files of a disk tier's folder, which somebody else may have written: how many servers began, whether the
// last one ended in order, what is still to be erased. The first byte chooses.
#include <spdlog/spdlog.h>

#include <fstream>

#include "base/files/temporary_folder.h"
#include "state_store/tiers/disk/disk_folder.h"
#include "state_store/tiers/disk/durable_file.h"
#include "state_store/tiers/disk/erasure_notes.h"
#include "tests/fuzz/fuzz_target.h"

namespace gdn {
namespace {

struct World {
  TemporaryFolder parent = *TemporaryFolder::MakeIn("/dev/shm");  // syncing takes no time there
  std::string path = parent.path() + "/disk";
  std::unique_ptr<DiskFolder> folder = *DiskFolder::Open(path);
};

World& TheWorld() {
  static World world;
  spdlog::set_level(spdlog::level::off);
  return world;
}

void Write(const std::string& path, std::string_view text) { std::ofstream(path, std::ios::binary) << text; }

void ReadNotes(const World& world, std::string_view text) {
  ErasureNotes notes(world.folder->OwedFolder());
  const StateKey key{.principal = "", .id = "s", .checkpoint = ""};
  GDN_FUZZ_CHECK(notes.Set(key, {"redis"}).ok(), "a note");
  Write(world.folder->OwedFolder() + "/anonymous/s-s", text);
  const auto all = notes.All();
  GDN_FUZZ_CHECK(all.ok() && all->size() == 1, all.status().ToString());
}

}  // namespace
}  // namespace gdn

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace gdn;  // NOLINT: a target is gdn's
  World& world = TheWorld();
  fuzz::Input input(data, size);
  switch (input.Byte() % 4) {
    case 0: {
      Write(world.path + "/incarnation", input.Rest());
      const auto incarnation = world.folder->NextIncarnation();
      fuzz::CheckRefusal(incarnation.status());
      GDN_FUZZ_CHECK(!incarnation.ok() || *incarnation > 0, "starts below 1");
      break;
    }
    case 1: {
      Write(world.path + "/clean", input.Rest());
      const auto taken = world.folder->TakeCleanMarker();
      GDN_FUZZ_CHECK(taken.ok(), taken.status().ToString());
      if (!taken->has_value()) break;
      const auto again = CleanMarker::Parse((*taken)->ToText());
      GDN_FUZZ_CHECK(again.has_value() && again->ToText() == (*taken)->ToText(), "a marker is read as it is written");
      break;
    }
    case 2:
      Write(world.path + "/principal-key", input.Rest());
      fuzz::CheckRefusal(world.folder->KeepSecret("secret").status());
      break;
    default:
      ReadNotes(world, input.Rest());
  }
  return 0;
}
