#include "test/support/program.h"

#include <gtest/gtest.h>

#include <map>

namespace lockstep::test {
namespace {

std::map<std::string, std::function<int(int argc, char** argv)>>& roles() {
  static std::map<std::string, std::function<int(int argc, char** argv)>> all;
  return all;
}

}  // namespace

Role::Role(const std::string& name, std::function<int(int argc, char** argv)> run) {
  roles().emplace("--" + name, std::move(run));
}

}  // namespace lockstep::test

int main(int argc, char** argv) {
  using namespace lockstep::test;  // NOLINT
  if (argc > 1) {
    if (const auto role = roles().find(argv[1]); role != roles().end()) return role->second(argc, argv);
  }
  ::testing::InitGoogleTest(&argc, argv);
  const int status = RUN_ALL_TESTS();
  return at_end ? at_end(status) : status;
}
