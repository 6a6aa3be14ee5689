// A shared library that is opened when it is first used, so that the program starts without it, and stays open.
#pragma once

#include <fmt/format.h>

#include <string>

namespace lockstep::cuda {

struct OpenedLibrary {
  void* handle = nullptr;
  std::string path;
  std::string reason;  // the loader's message if there is no handle
};

/// Tries the folders that the loader searches, then lib64 and lib in the environment's CUDNN_HOME and CUDA_HOME, and
/// then the folders of other CUDA libraries beside these and beside `neighbour`, the path of a library that is open:
/// PyTorch's wheels install each CUDA library into a folder of its own, such as nvidia/cu13/lib beside
/// nvidia/cudnn/lib. The library stays open.
OpenedLibrary open_library(const std::string& file, const std::string& neighbour = "");

/// "9.13.0" of a version as cuDNN (9: 91300) and cuBLASLt count it.
inline std::string dotted(std::size_t version) {
  return fmt::format("{}.{}.{}", version / 10000, version % 10000 / 100, version % 100);
}

class Library {
 public:
  /// Uses open_library(). Throws not_supported if the library cannot be opened; the message has `name` ("cuDNN 9"), the
  /// file, and what to do.
  Library(const std::string& name, const std::string& file, const std::string& neighbour = "");

  /// Throws not_supported if this version of the library has no such function.
  template <typename Function>
  Function* function(const char* symbol) const {
    return reinterpret_cast<Function*>(address(symbol));
  }
  void* handle() const { return handle_; }
  const std::string& path() const { return path_; }

 private:
  void* address(const char* symbol) const;

  std::string name_, path_;
  void* handle_ = nullptr;
};

}  // namespace lockstep::cuda
