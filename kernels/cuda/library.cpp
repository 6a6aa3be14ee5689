#include "kernels/cuda/library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <vector>

#include "lockstep/error.h"

namespace lockstep::cuda {

Library::Library(const std::string& name, const std::string& file) : name_(name) {
  std::vector<std::string> places{file};
  for (const char* variable : {"CUDNN_HOME", "CUDA_HOME"})
    if (const char* home = std::getenv(variable))
      for (const char* folder : {"/lib64/", "/lib/"}) places.push_back(home + std::string(folder) + file);
  std::string reason;
  for (const std::string& place : places) {
    path_ = place;
    handle_ = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_) return;
    if (const char* text = dlerror(); text && reason.empty()) reason = text;
  }
  fail(ErrorCode::not_supported,
       "{} is needed on a GPU, and {} could not be opened ({}): load the cluster's module of it, put its folder into "
       "LD_LIBRARY_PATH, or use device=cpu",
       name_, file, reason);
}

void* Library::address(const char* symbol) const {
  void* found = dlsym(handle_, symbol);
  require(found != nullptr, ErrorCode::not_supported, "{} ({}) has no function {}: it is of another version than {}",
          path_, name_, symbol, name_);
  return found;
}

}  // namespace lockstep::cuda
