#include "base/curl_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <string>

#include "lockstep/error.h"

namespace lockstep {
namespace {

void* open_libcurl() {
  const char* given = std::getenv("LOCKSTEP_LIBCURL");
  const bool is_given = given != nullptr && *given != '\0';
  std::string reason;
  for (const char* path : {is_given ? given : "libcurl.so.4", is_given ? given : "libcurl-gnutls.so.4"}) {
    // Never closed: its TLS library registers exit handlers.
    if (void* handle = ::dlopen(path, RTLD_NOW | RTLD_LOCAL)) return handle;
    if (reason.empty()) reason = ::dlerror();
  }
  fail(ErrorCode::not_supported,
       "sending to MLflow needs the library libcurl.so.4, which cannot be loaded ({}): install libcurl (Debian: "
       "libcurl4), or load a module that has it",
       reason);
}

}  // namespace

curl::Symbol::Symbol(const char* name) {
  static void* const library = open_libcurl();
  address = ::dlsym(library, name);
  require(address != nullptr, ErrorCode::not_supported, "the libcurl that was loaded is too old: it has no {}", name);
}

const CurlLibrary& curl_library() {
  static const CurlLibrary library = [] {  // retried by the next call if it throws
    const CurlLibrary loaded;
    require(loaded.global_init(curl::kGlobalDefault) == 0, ErrorCode::library, "libcurl cannot be initialised");
    return loaded;
  }();
  return library;
}

std::string libcurl_version() {
  try {
    const std::string text = curl_library().version();  // "libcurl/7.88.1 OpenSSL/3.0.11 ..."
    const std::size_t begin = text.find('/') + 1;
    return text.substr(begin, text.find(' ') - begin);
  } catch (const Error&) {
    return "not found";
  }
}

}  // namespace lockstep
