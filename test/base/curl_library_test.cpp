// The numbers of src/base/curl_library.h are those of curl/curl.h, where that header is installed.
#include "base/curl_library.h"

#include <gtest/gtest.h>

#if __has_include(<curl/curl.h>)
#include <curl/curl.h>
#endif

namespace lockstep {
namespace {

TEST(CurlLibrary, NumbersAreThoseOfItsHeader) {
#ifdef LIBCURL_VERSION_NUM
  const std::pair<int, int> numbers[] = {
    {curl::kLowSpeedLimit, CURLOPT_LOW_SPEED_LIMIT},
    {curl::kLowSpeedTime, CURLOPT_LOW_SPEED_TIME},
    {curl::kNoProgress, CURLOPT_NOPROGRESS},
    {curl::kUpload, CURLOPT_UPLOAD},
    {curl::kPost, CURLOPT_POST},
    {curl::kSslVerifyPeer, CURLOPT_SSL_VERIFYPEER},
    {curl::kSslVerifyHost, CURLOPT_SSL_VERIFYHOST},
    {curl::kNoSignal, CURLOPT_NOSIGNAL},
    {curl::kTimeoutMs, CURLOPT_TIMEOUT_MS},
    {curl::kConnectTimeoutMs, CURLOPT_CONNECTTIMEOUT_MS},
#if LIBCURL_VERSION_NUM >= 0x075700
    {curl::kQuickExit, CURLOPT_QUICK_EXIT},
#endif
    {curl::kWriteData, CURLOPT_WRITEDATA},
    {curl::kUrl, CURLOPT_URL},
    {curl::kReadData, CURLOPT_READDATA},
    {curl::kErrorBuffer, CURLOPT_ERRORBUFFER},
    {curl::kPostFields, CURLOPT_POSTFIELDS},
    {curl::kUserAgent, CURLOPT_USERAGENT},
    {curl::kHttpHeader, CURLOPT_HTTPHEADER},
    {curl::kSslCert, CURLOPT_SSLCERT},
    {curl::kProgressData, CURLOPT_XFERINFODATA},
    {curl::kCaInfo, CURLOPT_CAINFO},
    {curl::kUsername, CURLOPT_USERNAME},
    {curl::kPassword, CURLOPT_PASSWORD},
    {curl::kWriteFunction, CURLOPT_WRITEFUNCTION},
    {curl::kReadFunction, CURLOPT_READFUNCTION},
    {curl::kProgressFunction, CURLOPT_XFERINFOFUNCTION},
    {curl::kInFileSizeLarge, CURLOPT_INFILESIZE_LARGE},
    {curl::kPostFieldSizeLarge, CURLOPT_POSTFIELDSIZE_LARGE},
    {curl::kResponseCode, CURLINFO_RESPONSE_CODE},
    {curl::kGlobalDefault, CURL_GLOBAL_DEFAULT},
    {curl::kErrorBufferBytes, CURL_ERROR_SIZE},
    {curl::kReadAbort, CURL_READFUNC_ABORT},
    {curl::kUnsupportedProtocol, CURLE_UNSUPPORTED_PROTOCOL},
    {curl::kMalformedUrl, CURLE_URL_MALFORMAT},
    {curl::kClientCertificate, CURLE_SSL_CERTPROBLEM},
    {curl::kServerCertificate, CURLE_PEER_FAILED_VERIFICATION},
    {curl::kCaFile, CURLE_SSL_CACERT_BADFILE},
  };
  for (std::size_t i = 0; i < std::size(numbers); ++i) EXPECT_EQ(numbers[i].first, numbers[i].second) << i;
  static_assert(sizeof(curl_off_t) == sizeof(std::int64_t));
#else
  GTEST_SKIP() << "there is no curl/curl.h (Debian: libcurl4-openssl-dev)";
#endif
}

}  // namespace
}  // namespace lockstep
