// The forms of co_await that check_coroutines.py allows, each tried with objects that count themselves: whether this
// compiler makes and destroys every temporary once. GCC 12 gets several other forms wrong; the script lists them.
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/task/resume_on.h"
#include "base/task/task.h"
#include "base/task/task_group.h"
#include "gtest/gtest.h"
#include "tests/support/simulated_executor.h"

namespace gdn {
namespace {

int g_live = 0;
bool g_moved_bitwise = false;

struct Counted {
  explicit Counted(int number) : value(number), self(this) { ++g_live; }
  Counted(const Counted& other) : value(other.value), self(this) { ++g_live; }
  Counted(Counted&& other) noexcept : value(other.value), self(this) { ++g_live; }
  Counted& operator=(Counted other) noexcept {
    value = other.value;
    return *this;
  }
  ~Counted() {
    --g_live;
    g_moved_bitwise |= self != this;
  }
  int value;
  Counted* self;
};

struct Pair {
  Counted counted;
  std::string text;
};

const char* const kLong = "a text that is too long for the inside of a std::string";

Task<void> Hop() {
  Executor& here = co_await ThisExecutor();
  co_await ResumeOn(here);
}
// NOLINTBEGIN(performance-unnecessary-value-param): how parameters are passed is what is tried.
Task<int> ByValue(Counted counted) {
  co_await Hop();
  co_return counted.value;
}
Task<int> ByReference(const Counted& counted) {
  co_await Hop();
  co_return counted.value;
}
Task<int> ByAggregate(Pair pair) {
  co_await Hop();
  co_return pair.counted.value;
}
Task<int> ByString(std::string text) {
  co_await Hop();
  co_return static_cast<int>(text.size());
}
Task<int> ByShared(std::shared_ptr<Counted> shared) {
  co_await Hop();
  co_return shared->value;
}
Task<int> ByOptional(std::optional<Counted> counted) {
  co_await Hop();
  co_return counted.has_value() ? counted->value : -1;
}
Task<int> WithDefault(Counted counted = Counted(5)) {
  co_await Hop();
  co_return counted.value;
}
// NOLINTEND(performance-unnecessary-value-param)
Task<Counted> Make(int number) {
  co_await Hop();
  co_return Counted(number);
}

Task<int> Named() {
  const Counted counted(5);
  co_return co_await ByReference(counted);
}
Task<int> TemporaryByReference() { co_return co_await ByReference(Counted(5)); }
Task<int> TemporaryByValue() { co_return co_await ByValue(Counted(5)); }
Task<int> Moved() {
  Counted counted(5);
  const int value = co_await ByValue(std::move(counted));
  co_return value;
}
Task<int> NamedAggregate() {
  Pair pair{Counted(5), kLong};
  const int value = co_await ByAggregate(std::move(pair));
  co_return value;
}
Task<int> Text() {
  const int size = co_await ByString(kLong);
  co_return size == static_cast<int>(std::string(kLong).size()) ? 5 : 0;
}
Task<int> Shared() { co_return co_await ByShared(std::make_shared<Counted>(5)); }
Task<int> Optional() { co_return co_await ByOptional(Counted(5)); }
Task<int> DefaultArgument() { co_return co_await WithDefault(); }
Task<int> Result() {
  const Counted counted = co_await Make(5);
  co_return counted.value;
}
Task<int> ResultBoundToReference() {
  const Counted& counted = co_await Make(5);
  co_await Hop();
  co_return counted.value;
}
Task<int> ResultsMember() { co_return (co_await Make(5)).value; }
Task<int> ResultAssigned() {
  Counted counted(1);
  counted = co_await Make(5);
  co_return counted.value;
}
Task<int> ResultDropped() {
  co_await Make(5);
  co_return 5;
}
Task<int> ResultIntoUnique() {
  auto unique = std::make_unique<Counted>(co_await Make(5));
  co_return unique->value;
}
Task<int> AwaitInsideAnArgument() { co_return co_await ByValue(co_await Make(5)); }
Task<int> Loop() {
  int sum = 0;
  const std::vector<Counted> all(5, Counted(1));
  for (const Counted& counted : all) sum += co_await ByReference(counted);
  co_return sum;
}
Task<int> NamedTask() {
  Task<int> task = ByValue(Counted(5));
  co_return co_await std::move(task);
}

TEST(CoroutineShapes, EveryTemporaryIsMadeAndDestroyedOnce) {
  const std::vector<std::pair<const char*, Task<int> (*)()>> shapes = {
      {"Named", Named},
      {"TemporaryByReference", TemporaryByReference},
      {"TemporaryByValue", TemporaryByValue},
      {"Moved", Moved},
      {"NamedAggregate", NamedAggregate},
      {"Text", Text},
      {"Shared", Shared},
      {"Optional", Optional},
      {"DefaultArgument", DefaultArgument},
      {"Result", Result},
      {"ResultBoundToReference", ResultBoundToReference},
      {"ResultsMember", ResultsMember},
      {"ResultAssigned", ResultAssigned},
      {"ResultDropped", ResultDropped},
      {"ResultIntoUnique", ResultIntoUnique},
      {"AwaitInsideAnArgument", AwaitInsideAnArgument},
      {"Loop", Loop},
      {"NamedTask", NamedTask},
  };
  for (const auto& [name, shape] : shapes) {
    SimulatedExecutor executor(1);
    g_live = 0;
    g_moved_bitwise = false;
    EXPECT_EQ(BlockOn(executor, shape()), 5) << name;
    EXPECT_EQ(g_live, 0) << name;
    EXPECT_FALSE(g_moved_bitwise) << name;
  }
}

}  // namespace
}  // namespace gdn
