// gdnctl try.

#include <filesystem>
#include <iostream>

#include "absl/flags/flag.h"
#include "absl/strings/match.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "tools/gdnctl/commands.h"
#include "tools/gdnctl/try/try_run.h"

ABSL_FLAG(std::string, server, "", "The gdn_server to start. By default the one beside gdnctl, or the one in PATH.");
ABSL_FLAG(std::string, recording, "",
          "Folder with a checkpoint and its recorded inputs and outputs (io.safetensors). By default the small model "
          "that comes with gdnctl.");

namespace gdn {
namespace {

std::filesystem::path OwnFolder() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
}

// Looks where packages put the model (bin beside share), then in a clone (build/PRESET/bin).
absl::StatusOr<std::string> ModelByFlag() {
  if (!absl::GetFlag(FLAGS_recording).empty()) return absl::GetFlag(FLAGS_recording);
  const std::filesystem::path folders[] = {OwnFolder() / "../share/gdn-service/try-model",
                                           OwnFolder() / "../../../tests/golden/qwen3_next_5"};
  std::error_code error;
  for (const std::filesystem::path& folder : folders) {
    if (std::filesystem::exists(folder / "io.safetensors", error)) return folder.lexically_normal().string();
  }
  return absl::NotFoundError(StrCat("the small model is neither at ", folders[0].lexically_normal().string(),
                                    " nor at ", folders[1].lexically_normal().string(),
                                    "; name a folder like tests/golden/qwen3_next_5 with --recording=DIR"));
}

absl::StatusOr<int> RunTry(const std::vector<std::string>&) {
  TryOptions options{.server = absl::GetFlag(FLAGS_server), .model = {}};
  GDN_ASSIGN_OR_RETURN(options.model, ModelByFlag());
  if (options.server.empty()) {
    std::error_code error;
    const std::filesystem::path beside = OwnFolder() / "gdn_server";
    options.server = std::filesystem::exists(beside, error) ? beside.string() : "gdn_server";
  }
  const absl::Status status = TryServer(options, std::cout);
  std::cout << std::flush;
  if (absl::IsNotFound(status) && options.server == "gdn_server" &&
      absl::StrContains(status.message(), "cannot execute")) {
    return absl::NotFoundError(StrCat(status.message(), "; install gdn_server, or name one with --server=FILE"));
  }
  GDN_RETURN_IF_ERROR(status);
  return kExitOk;
}

}  // namespace

std::vector<Command> TryCommands() {
  return {{.name = "try",
           .summary = "Watch a session survive a crash, on a server of its own; takes seconds",
           .details =
               "Starts a gdn_server with a small model, runs recorded tokens, kills the server, starts it again\n"
               "and goes on. Compares all outputs with Hugging Face transformers'. Needs no running server,\n"
               "no download and no GPU, and leaves nothing behind.\n",
           .flags = {"server", "recording"},
           .run = RunTry}};
}

}  // namespace gdn
