#include "kernels/cuda/base/library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <vector>

#include "lockstep/error.h"

namespace lockstep::cuda {

OpenedLibrary open_library(const std::string& file) {
  std::vector<std::string> places{file};
  for (const char* variable : {"CUDNN_HOME", "CUDA_HOME"})
    if (const char* home = std::getenv(variable))
      for (const char* folder : {"/lib64/", "/lib/"}) places.push_back(home + std::string(folder) + file);
  OpenedLibrary opened;
  for (const std::string& place : places) {
    opened.handle = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
    opened.path = place;
    if (opened.handle) break;
    if (const char* text = dlerror(); text && opened.reason.empty()) opened.reason = text;
  }
  return opened;
}

Library::Library(const std::string& name, const std::string& file) : name_(name) {
  const OpenedLibrary opened = open_library(file);
  path_ = opened.path;
  handle_ = opened.handle;
  if (handle_) return;
  fail(ErrorCode::not_supported,
       "{} is needed on a GPU, and {} could not be opened ({}): load its module, put its folder into "
       "LD_LIBRARY_PATH, set CUDNN_HOME or CUDA_HOME to its installation, or use device=cpu",
       name_, file, opened.reason);
}

void* Library::address(const char* symbol) const {
  void* found = dlsym(handle_, symbol);
  require(found != nullptr, ErrorCode::not_supported,
          "{} ({}) has no function {}, so it is not the version that is needed, {}", path_, name_, symbol, name_);
  return found;
}

}  // namespace lockstep::cuda
