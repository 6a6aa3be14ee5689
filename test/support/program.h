// The main() of every test program (program.cpp). It runs GoogleTest's tests, or one of the program's roles: a test
// that needs a process of its own starts this program again as `PROGRAM --NAME ARGUMENT...`.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

namespace lockstep::test {

/// The function that `PROGRAM --NAME ...` runs; its result is the exit status. A global object in the source of the
/// test registers it.
class Role {
 public:
  Role(const std::string& name, std::function<int(int argc, char** argv)> run);
};

/// Runs after all tests, with their status; its result is the program's exit status.
inline std::function<int(int status)> at_end;

/// This program's path.
inline std::string self() { return std::filesystem::read_symlink("/proc/self/exe").string(); }

/// The folder of the test programs. It also contains the libraries that tests load, each in the folder of its source.
inline std::filesystem::path folder_of_tests() { return std::filesystem::path(self()).parent_path(); }

}  // namespace lockstep::test
