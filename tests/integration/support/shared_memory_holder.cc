// A client that shares memory with the server at argv[1], writes a 1 to argv[2] as a port file, and waits to be killed.
#include <unistd.h>

#include <cstdio>

#include "client/cpp/client.h"
#include "tools/common/child_process.h"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const auto client = gdn::Client::Connect(argv[1]);
  const auto memory = client->ShareMemory(1 << 16);
  if (!memory.ok() || !gdn::WritePortFile(argv[2], 1).ok()) {
    std::fprintf(stderr, "%s\n", memory.status().ToString().c_str());
    return 1;
  }
  for (;;) pause();
}
