#include "base/curl_library.h"

#include <string>

#include "lockstep/error.h"

namespace lockstep {

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
