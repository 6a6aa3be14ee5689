#include "mlflow/curl_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <string>
#include <type_traits>
#include <vector>

#include "lockstep/error.h"

namespace lockstep::mlflow {
namespace {

CurlLibrary load() {
  const char* given = std::getenv("LOCKSTEP_LIBCURL");
  const bool is_given = given != nullptr && *given != '\0';
  const std::vector<std::string> paths =
      is_given ? std::vector<std::string>{given} : std::vector<std::string>{"libcurl.so.4", "libcurl-gnutls.so.4"};
  void* handle = nullptr;
  std::string reason;
  for (const std::string& path : paths) {
    handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);  // never closed: its TLS library registers exit handlers
    if (handle != nullptr) break;
    if (reason.empty()) reason = ::dlerror();
  }
  require(handle != nullptr, ErrorCode::not_supported,
          "sending to MLflow needs the library libcurl.so.4, which cannot be loaded ({}): install libcurl (Debian: "
          "libcurl4), or load a module that has it",
          reason);
  CurlLibrary library;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(handle, name));
    require(function != nullptr, ErrorCode::not_supported,
            "sending to MLflow needs libcurl 7.32 or newer, but the one that was loaded has no {}", name);
  };
  find(library.global_init, "curl_global_init");
  find(library.easy_init, "curl_easy_init");
  find(library.easy_cleanup, "curl_easy_cleanup");
  find(library.easy_reset, "curl_easy_reset");
  find(library.easy_setopt, "curl_easy_setopt");
  find(library.easy_perform, "curl_easy_perform");
  find(library.easy_getinfo, "curl_easy_getinfo");
  find(library.easy_strerror, "curl_easy_strerror");
  find(library.slist_append, "curl_slist_append");
  find(library.slist_free_all, "curl_slist_free_all");
  find(library.version, "curl_version");
  const int status = library.global_init(curl::kGlobalDefault);
  require(status == 0, ErrorCode::library, "libcurl cannot be initialised: {}", library.easy_strerror(status));
  return library;
}

}  // namespace

const CurlLibrary& curl_library() {
  static const CurlLibrary library = load();  // retried by the next call if it throws
  return library;
}

}  // namespace lockstep::mlflow
