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

/// The handle of dlopen(). It is never closed, since libraries register exit handlers. Throws Error (not_supported).
void* load(const LoadedLibrary& library);
/// Throws Error (not_supported) if the library has no such function.
void* find_function(void* handle, const LoadedLibrary& library, const char* name);

/// A function of a library, which is loaded with the first of them. It becomes a pointer of its type.
template <const LoadedLibrary& kLibrary>
class LoadedFunction {
 public:
  explicit LoadedFunction(const char* name) {
    static void* const handle = load(kLibrary);
    address_ = find_function(handle, kLibrary, name);
  }
  template <typename Function>
  operator Function*() const {  // NOLINT(google-explicit-constructor)
    return reinterpret_cast<Function*>(address_);
  }

 private:
  void* address_;
};

}  // namespace lockstep
