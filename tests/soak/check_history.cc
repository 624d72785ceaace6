// Checks histories of answered calls (README.md here).
//
//   check_history FILE...
//
// Prints what was found. Exit code 1 where an answer is wrong, a call was applied other than once, or nothing was
// compared.
#include <iostream>
#include <string>
#include <vector>

#include "tests/soak/history.h"

int main(int argc, char** argv) {
  const std::vector<std::string> paths(argv + 1, argv + argc);
  const gdn::HistoryReport report = gdn::CheckHistory(paths);
  for (const std::string& fault : report.faults) std::cerr << "check_history: " << fault << "\n";
  std::cout << "check_history: " << report.lines << " lines, " << report.compared << " outputs compared, "
            << report.lost << " sessions lost, " << report.faults.size() << " faults\n";
  return report.faults.empty() && report.compared > 0 ? 0 : 1;
}
