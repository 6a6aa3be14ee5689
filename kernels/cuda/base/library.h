// A shared library that is opened when it is first used, so that the program starts without it, and stays open.
#pragma once

#include <string>

namespace lockstep::cuda {

struct OpenedLibrary {
  void* handle = nullptr;
  std::string path;
  std::string reason;  // why there is no handle, in the loader's words
};

/// Tries the folders that the loader searches, then lib64 and lib below the environment's CUDNN_HOME and CUDA_HOME.
/// What it opens stays open.
OpenedLibrary open_library(const std::string& file);

class Library {
 public:
  /// As open_library() finds it. Throws not_supported where there is none: `name` ("cuDNN 9"), the file, and what to
  /// do.
  Library(const std::string& name, const std::string& file);

  /// Throws not_supported where this version of the library has no such function.
  template <typename Function>
  Function* function(const char* symbol) const {
    return reinterpret_cast<Function*>(address(symbol));
  }
  void* handle() const { return handle_; }

 private:
  void* address(const char* symbol) const;

  std::string name_, path_;
  void* handle_ = nullptr;
};

}  // namespace lockstep::cuda
