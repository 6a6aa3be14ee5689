#include "base/loaded_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <string>

#include "lockstep/error.h"

namespace lockstep {

void* load(const LoadedLibrary& library) {
  const char* const given = std::getenv(library.variable);
  const bool is_given = given != nullptr && *given != '\0';
  std::string reason;
  for (const char* file : library.files) {
    if (void* handle = ::dlopen(is_given ? given : file, RTLD_NOW | RTLD_LOCAL)) return handle;
    if (reason.empty()) reason = ::dlerror();
  }
  fail(ErrorCode::not_supported,
       "{} needs the library {}, which cannot be loaded ({}): install {} (Debian: {}), or load a module that has it",
       library.use, library.files.front(), reason, library.name, library.package);
}

void* find_function(void* handle, const LoadedLibrary& library, const char* name) {
  void* const address = ::dlsym(handle, name);
  require(address != nullptr, ErrorCode::not_supported, "the {} that was loaded is too old: it has no {}", library.name,
          name);
  return address;
}

}  // namespace lockstep
