// The part of libcurl's interface that is used, without its header, which many clusters do not have. The interface of
// libcurl.so.4 has been stable since 2006: functions and the numbers of options do not change (ABI policy,
// https://curl.se/libcurl/abi.html). test/mlflow/curl_library_test.cpp compares the numbers with curl/curl.h.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep::mlflow {

namespace curl {
// Values of long, of pointers, of functions and of curl_off_t begin at multiples of 10000.
enum Option : int {
  kLowSpeedLimit = 19,
  kLowSpeedTime = 20,
  kNoProgress = 43,
  kNoBody = 44,
  kUpload = 46,
  kPost = 47,
  kSslVerifyPeer = 64,
  kFreshConnect = 74,
  kHttpGet = 80,
  kSslVerifyHost = 81,
  kNoSignal = 99,
  kHttpAuth = 107,
  kTimeoutMs = 155,
  kConnectTimeoutMs = 156,
  kQuickExit = 322,
  kWriteData = 10001,
  kUrl = 10002,
  kReadData = 10009,
  kErrorBuffer = 10010,
  kPostFields = 10015,
  kUserAgent = 10018,
  kHttpHeader = 10023,
  kSslCert = 10025,
  kProgressData = 10057,
  kCaInfo = 10065,
  kUsername = 10173,
  kPassword = 10174,
  kWriteFunction = 20011,
  kReadFunction = 20012,
  kProgressFunction = 20219,
  kInFileSizeLarge = 30115,
  kPostFieldSizeLarge = 30120,
};
inline constexpr int kResponseCode = 0x200000 + 2;
inline constexpr long kGlobalDefault = 3, kAuthBasic = 1;
inline constexpr std::size_t kErrorBufferBytes = 256, kReadAbort = 0x10000000;
// Errors that another attempt would not avoid: a wrong address, and certificates that are missing or not trusted.
inline constexpr int kUnsupportedProtocol = 1, kMalformedUrl = 3, kClientCertificate = 58, kServerCertificate = 60,
                     kCaFile = 77;
}  // namespace curl

struct CurlLibrary {
  int (*global_init)(long flags) = nullptr;
  void* (*easy_init)() = nullptr;
  void (*easy_cleanup)(void*) = nullptr;
  void (*easy_reset)(void*) = nullptr;
  int (*easy_setopt)(void*, int option, ...) = nullptr;
  int (*easy_perform)(void*) = nullptr;
  int (*easy_getinfo)(void*, int info, ...) = nullptr;
  const char* (*easy_strerror)(int) = nullptr;
  void* (*slist_append)(void*, const char*) = nullptr;
  void (*slist_free_all)(void*) = nullptr;
  const char* (*version)() = nullptr;
};

/// Loads it when it is first called. Throws Error (not_supported) if there is none.
const CurlLibrary& curl_library();

}  // namespace lockstep::mlflow
