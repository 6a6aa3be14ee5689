// Makes test/comm/fake_nccl.cpp the NCCL of this process.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "test/support/program.h"

namespace lockstep::comm {

using test::folder_of_tests;

/// Creates a folder that contains this library and sets NCCL_HOME to it. The destructor removes the folder.
class NcclHome {
 public:
  explicit NcclHome(const std::filesystem::path& library = folder_of_tests() / "comm" / "fake_nccl.so")
      : path_(std::filesystem::temp_directory_path() /
              ("nccl-home." + std::to_string(::getpid()) + "." + std::to_string(n_made++))) {
    std::filesystem::create_directories(path_ / "lib");
    std::filesystem::remove(path_ / "lib" / "libnccl.so.2");
    std::filesystem::create_symlink(library, path_ / "lib" / "libnccl.so.2");
    ::setenv("NCCL_HOME", path_.c_str(), 1);
  }
  ~NcclHome() { std::filesystem::remove_all(path_); }
  NcclHome(const NcclHome&) = delete;
  NcclHome& operator=(const NcclHome&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  static inline int n_made = 0;  // a new path each time, because a loaded library is identified by its path
  std::filesystem::path path_;
};

}  // namespace lockstep::comm
