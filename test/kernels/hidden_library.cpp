// A library for LD_AUDIT that hides other libraries from a program: the loader behaves as if files whose path contains
// the value of HIDDEN_LIBRARY did not exist.
#include <link.h>

#include <cstdlib>
#include <cstring>

extern "C" {

unsigned la_version(unsigned version) { return version; }

char* la_objsearch(const char* name, uintptr_t*, unsigned) {
  const char* const hidden = std::getenv("HIDDEN_LIBRARY");
  const bool is_hidden = hidden != nullptr && *hidden != '\0' && std::strstr(name, hidden) != nullptr;
  return is_hidden ? nullptr : const_cast<char*>(name);
}

}  // extern "C"
