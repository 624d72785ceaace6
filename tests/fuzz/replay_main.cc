// Runs files through a fuzz target, without libFuzzer: the corpus as a test of every build. Each file as it is, and
// then with a few changes that its own bytes decide, the same in every run.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "base/hash.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/support/random.h"

namespace {

namespace fs = std::filesystem;

std::vector<fs::path> FilesUnder(int count, char** paths) {
  std::vector<fs::path> files;
  for (int i = 0; i < count; ++i) {
    if (!fs::is_directory(paths[i])) {
      files.emplace_back(paths[i]);
      continue;
    }
    for (const auto& entry : fs::recursive_directory_iterator(paths[i])) {
      if (entry.is_regular_file()) files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

void Run(const std::string& bytes) {
  // The copy has exactly the size of the input, so that a sanitizer sees reads beyond it.
  const std::vector<uint8_t> input(bytes.begin(), bytes.end());
  LLVMFuzzerTestOneInput(input.data(), input.size());
}

// Some bytes changed, taken out, doubled or cut off.
std::string Changed(std::string bytes, gdn::Random& random) {
  for (int changes = random.NextInt(1, 3); changes > 0 && !bytes.empty(); --changes) {
    const size_t at = random.Next() % bytes.size();
    const size_t some = random.Next() % 9;
    switch (random.NextInt(0, 4)) {
      case 0:
        bytes[at] = static_cast<char>(random.Next());
        break;
      case 1:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << random.NextInt(0, 7)));
        break;
      case 2:
        bytes.erase(at, some);
        break;
      case 3:
        bytes.insert(at, bytes.substr(at, some));
        break;
      default:
        bytes.resize(at);
    }
  }
  return bytes;
}

}  // namespace

int main(int argc, char** argv) {
  constexpr int kChangesPerFile = 50;
  const std::vector<fs::path> files = FilesUnder(argc - 1, argv + 1);
  if (files.empty()) {
    std::fprintf(stderr, "usage: %s FILE_OR_FOLDER...: none of them has a file\n", argv[0]);
    return EXIT_FAILURE;
  }
  for (const fs::path& path : files) {
    std::fprintf(stderr, "%s\n", path.c_str());  // the last line before a crash
    std::ifstream file(path, std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    Run(bytes);
    gdn::Random random(gdn::HashBytes(bytes).low);
    for (int i = 0; i < kChangesPerFile; ++i) Run(Changed(bytes, random));
  }
  std::fprintf(stderr, "%zu files, each as it is and with %d changes\n", files.size(), kChangesPerFile);
  return EXIT_SUCCESS;
}
