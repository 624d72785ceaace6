// gdnctl state slice | join: a session's file, from one way of slicing a model's value heads to another.
#include <deque>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/str_format.h"
#include "base/error.h"
#include "base/files/mapped_file.h"
#include "base/files/output_file.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "state_store/state_file/head_slices.h"
#include "tools/gdnctl/commands.h"
#include "tools/gdnctl/print.h"

ABSL_DECLARE_FLAG(std::string, out);
ABSL_FLAG(std::string, heads, "",
          "Value heads FIRST-LAST/TOTAL, as in the server's --heads: 0-15/32 means the heads 0 to 15 of 32.");

namespace gdn {
namespace {

absl::Status Write(std::string_view bytes) {
  const std::string path = absl::GetFlag(FLAGS_out);
  GDN_ASSIGN_OR_RETURN(OutputFile file, OutputFile::Create(path));
  GDN_RETURN_IF_ERROR(file.Append(bytes));
  GDN_RETURN_IF_ERROR(file.Commit());
  absl::PrintF("%s in '%s'\n", FormatBytes(static_cast<int64_t>(bytes.size())), path);
  return absl::OkStatus();
}

absl::StatusOr<int> RunSlice(const std::vector<std::string>& paths) {
  if (paths.size() != 1) return UsageError("one FILE is needed");
  if (absl::GetFlag(FLAGS_heads).empty()) return UsageError("--heads is needed");
  if (absl::GetFlag(FLAGS_out).empty()) return UsageError("--out is needed");
  GDN_ASSIGN_OR_RETURN(const HeadSlice heads, ParseHeadSlice(absl::GetFlag(FLAGS_heads)));
  GDN_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(paths[0]));
  const absl::StatusOr<std::string> sliced = SliceStateFile(file.bytes(), heads);
  if (!sliced.ok()) return WithPrefix(sliced.status(), StrCat("'", paths[0], "'"));
  GDN_RETURN_IF_ERROR(Write(*sliced));
  return kExitOk;
}

absl::StatusOr<int> RunJoin(const std::vector<std::string>& paths) {
  if (paths.empty()) return UsageError("the FILEs of all slices are needed");
  if (absl::GetFlag(FLAGS_out).empty()) return UsageError("--out is needed");
  std::deque<MappedFile> files;
  std::vector<std::string_view> parts;
  for (const std::string& path : paths) {
    GDN_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
    files.push_back(std::move(file));
    parts.push_back(files.back().bytes());
  }
  GDN_ASSIGN_OR_RETURN(const std::string joined, JoinStateFiles(parts));
  GDN_RETURN_IF_ERROR(Write(joined));
  return kExitOk;
}

}  // namespace

std::vector<Command> SliceCommands() {
  return {
      {.name = "state slice",
       .arguments = "FILE",
       .summary = "Copy some value heads of a state file to a new file, for a server that has only these",
       .details = "Needs no server. A server of some heads can also import a whole file; it takes its own part.\n"
                  "Example: gdnctl state slice chat.safetensors --heads 0-15/32 --out chat-low.safetensors\n",
       .flags = {"heads", "out"},
       .run = RunSlice},
      {.name = "state join",
       .arguments = "FILE [FILE ...]",
       .summary = "Join the state files of all slices of a session",
       .details = "Needs no server. The files may be in any order. Each value head must be in one file, and all files\n"
                  "must have taken the same steps.\n"
                  "Example: gdnctl state join chat-low.safetensors chat-high.safetensors --out chat.safetensors\n",
       .flags = {"out"},
       .run = RunJoin}};
}

}  // namespace gdn
