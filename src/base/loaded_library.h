// Libraries that are loaded when they are first used (dlopen), so that Lockstep can be built and started without them.
#pragma once

#include <array>

namespace lockstep {

struct LoadedLibrary {
  const char* name;                  // "libcurl"
  const char* use;                   // what needs it, for the message: "sending to MLflow"
  const char* package;               // of Debian
  const char* variable;              // of the environment: a file that replaces `files`
  std::array<const char*, 2> files;  // the second one is tried if the first one is missing
};

/// A function of a library, which becomes a pointer of its type.
struct LoadedFunction {
  template <typename Function>
  operator Function*() const {  // NOLINT(google-explicit-constructor)
    return reinterpret_cast<Function*>(address);
  }
  void* address = nullptr;
};

/// The handle of dlopen(). It is never closed, since libraries register exit handlers. Throws Error (not_supported).
void* load(const LoadedLibrary& library);
/// Throws Error (not_supported) if the library has no such function.
LoadedFunction find_function(void* handle, const LoadedLibrary& library, const char* name);

}  // namespace lockstep
