// The part of libcurl's interface that is used, without its header, which many clusters do not have. The interface of
// libcurl.so.4 has been stable since 2006: functions and the numbers of options do not change (ABI policy,
// https://curl.se/libcurl/abi.html). test/base/curl_library_test.cpp compares the numbers with curl/curl.h.
#pragma once

#include <cstddef>
#include <string>

#include "base/loaded_library.h"

namespace lockstep {

namespace curl {
// Options of type long, of pointers, of functions and of curl_off_t, which begin at multiples of 10000.
inline constexpr int kLowSpeedLimit = 19, kLowSpeedTime = 20, kNoProgress = 43, kUpload = 46, kPost = 47,
                     kSslVerifyPeer = 64, kFreshConnect = 74, kSslVerifyHost = 81, kNoSignal = 99, kTimeoutMs = 155,
                     kConnectTimeoutMs = 156, kQuickExit = 322;
inline constexpr int kWriteData = 10001, kUrl = 10002, kReadData = 10009, kErrorBuffer = 10010, kPostFields = 10015,
                     kUserAgent = 10018, kHttpHeader = 10023, kSslCert = 10025, kProgressData = 10057, kCaInfo = 10065,
                     kUsername = 10173, kPassword = 10174;
inline constexpr int kWriteFunction = 20011, kReadFunction = 20012, kProgressFunction = 20219;
inline constexpr int kInFileSizeLarge = 30115, kPostFieldSizeLarge = 30120;
inline constexpr int kResponseCode = 0x200000 + 2;
inline constexpr long kGlobalDefault = 3;
inline constexpr std::size_t kErrorBufferBytes = 256, kReadAbort = 0x10000000;
// Errors that another attempt would not avoid: a wrong address, and certificates that are missing or not trusted.
inline constexpr int kUnsupportedProtocol = 1, kMalformedUrl = 3, kClientCertificate = 58, kServerCertificate = 60,
                     kCaFile = 77;

inline constexpr LoadedLibrary kLibrary{.name = "libcurl",
                                        .use = "sending to MLflow",
                                        .package = "libcurl4",
                                        .variable = "LOCKSTEP_LIBCURL",
                                        .files = {"libcurl.so.4", "libcurl-gnutls.so.4"}};
using Symbol = LoadedFunction<kLibrary>;
}  // namespace curl

struct CurlLibrary {
  int (*global_init)(long flags) = curl::Symbol("curl_global_init");
  void* (*easy_init)() = curl::Symbol("curl_easy_init");
  void (*easy_cleanup)(void*) = curl::Symbol("curl_easy_cleanup");
  void (*easy_reset)(void*) = curl::Symbol("curl_easy_reset");
  int (*easy_setopt)(void*, int option, ...) = curl::Symbol("curl_easy_setopt");
  int (*easy_perform)(void*) = curl::Symbol("curl_easy_perform");
  int (*easy_getinfo)(void*, int info, ...) = curl::Symbol("curl_easy_getinfo");
  const char* (*easy_strerror)(int) = curl::Symbol("curl_easy_strerror");
  void* (*slist_append)(void*, const char*) = curl::Symbol("curl_slist_append");
  void (*slist_free_all)(void*) = curl::Symbol("curl_slist_free_all");
  const char* (*version)() = curl::Symbol("curl_version");
};

/// Loads it when it is first called. Throws Error (not_supported) if there is none.
const CurlLibrary& curl_library();
/// "7.88.1", or "not found".
std::string libcurl_version();

}  // namespace lockstep
