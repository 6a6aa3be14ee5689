#include "kernels/cuda/base/library.h"

#include <dlfcn.h>
#include <link.h>

#include <cstdlib>
#include <filesystem>
#include <vector>

#include "lockstep/error.h"

namespace lockstep::cuda {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> places_of(const std::string& file, const std::string& neighbour) {
  std::vector<std::string> places{file};
  std::vector<fs::path> wheels;  // folders that may contain the wheels of several libraries
  for (const char* variable : {"CUDNN_HOME", "CUDA_HOME"}) {
    const char* const home = std::getenv(variable);
    if (home == nullptr || *home == '\0') continue;
    for (const char* folder : {"lib64", "lib"}) places.push_back((fs::path(home) / folder / file).string());
    wheels.push_back(fs::path(home).lexically_normal() / "..");
  }
  if (!neighbour.empty()) {
    const fs::path folder = fs::path(neighbour).parent_path();
    places.push_back((folder / file).string());
    wheels.push_back(folder / ".." / "..");
  }
  const std::string of_version = "cu" + file.substr(file.rfind('.') + 1);  // cu13 for libcudart.so.13
  for (const fs::path& folder : wheels)
    for (const std::string& name : {of_version, std::string("cuda_runtime"), std::string("cuda_nvrtc"),
                                    std::string("cublas"), std::string("cudnn")})
      places.push_back((folder / name / "lib" / file).string());
  return places;
}

/// The path at which the loader found the library.
std::string path_of(void* handle) {
  link_map* map = nullptr;
  return dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 ? map->l_name : "";
}

}  // namespace

OpenedLibrary open_library(const std::string& file, const std::string& neighbour) {
  OpenedLibrary opened;
  for (const std::string& place : places_of(file, neighbour)) {
    opened.handle = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (opened.handle) {
      opened.path = path_of(opened.handle);
      break;
    }
    if (const char* text = dlerror(); text && opened.reason.empty()) opened.reason = text;
  }
  return opened;
}

Library::Library(const std::string& name, const std::string& file, const std::string& neighbour) : name_(name) {
  const OpenedLibrary opened = open_library(file, neighbour);
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
