#include "mlflow/http.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <span>

#include "base/curl_library.h"
#include "base/file.h"
#include "base/process.h"
#include "base/version.h"
#include "lockstep/error.h"

namespace lockstep::mlflow {
namespace {

using namespace curl;

constexpr double kConnectSeconds = 10;
constexpr std::size_t kMaxBodyBytes = std::size_t{4} << 20;

/// Whether MLflow's client would take the text for true.
bool is_true(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text == "true" || text == "1";
}

std::size_t append_body(const char* data, std::size_t size, std::size_t count, void* body) {
  auto& text = *static_cast<std::string*>(body);
  const std::size_t n = size * count;
  if (text.size() + n > kMaxBodyBytes) return 0;  // ends the request with an error
  text.append(data, n);
  return n;
}

struct FileBody {
  Descriptor file;
  std::uint64_t offset = 0, end = 0;
};

std::size_t read_body(char* target, std::size_t size, std::size_t count, void* context) {
  auto& body = *static_cast<FileBody*>(context);
  const std::size_t n = std::min<std::uint64_t>(size * count, body.end - body.offset);
  if (n > 0 &&
      try_read_at(body.file, std::as_writable_bytes(std::span(target, n)), body.offset) != ReadOutcome::complete)
    return kReadAbort;
  body.offset += n;
  return n;
}

/// libcurl calls this at least about once per second. Any value but 0 ends the request.
int end_when_over(void* limits, std::int64_t, std::int64_t, std::int64_t, std::int64_t) {
  return static_cast<const Limits*>(limits)->is_over() ? 1 : 0;
}

bool is_temporary(int status) {
  return status != kUnsupportedProtocol && status != kMalformedUrl && status != kClientCertificate &&
         status != kServerCertificate && status != kCaFile;
}

}  // namespace

double Limits::remaining_seconds() const {
  return deadline - std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

HttpClient::HttpClient(const Limits& limits) : limits_(limits), handle_(curl_library().easy_init()) {
  require(handle_ != nullptr, ErrorCode::library, "libcurl has no memory for a connection");
}

HttpClient::~HttpClient() { curl_library().easy_cleanup(handle_); }

Response HttpClient::send(const Request& request) {
  const CurlLibrary& c = curl_library();
  const auto set = [&](int option, auto value) { c.easy_setopt(handle_, option, value); };
  Response response;
  if (limits_.is_over()) return {.problem = "the request timed out", .is_temporary = true};
  c.easy_reset(handle_);  // keeps the connection
  std::array<char, kErrorBufferBytes> text{};
  set(kErrorBuffer, text.data());
  set(kUrl, request.url.c_str());
  set(kNoSignal, 1L);
  set(kFreshConnect, request.new_connection ? 1L : 0L);
  set(kQuickExit, 1L);  // do not wait for a resolver that hangs; versions before 7.87 ignore this option
  const std::string agent = "lockstep/" + version();
  set(kUserAgent, agent.c_str());
  set(kNoProgress, 0L);
  set(kProgressFunction, end_when_over);
  set(kProgressData, &limits_);
  set(kWriteFunction, append_body);
  set(kWriteData, &response.body);
  const double remaining = std::clamp(limits_.remaining_seconds(), 0.01, 1e6);
  const auto milliseconds = [&](double seconds) {
    return static_cast<long>(std::ceil(1e3 * std::min(seconds, remaining)));
  };
  set(kConnectTimeoutMs, milliseconds(kConnectSeconds));
  void* headers = nullptr;
  const auto add_header = [&](const std::string& line) { headers = c.slist_append(headers, line.c_str()); };
  // libcurl copies texts.
  const std::string user = environment("MLFLOW_TRACKING_USERNAME"), password = environment("MLFLOW_TRACKING_PASSWORD"),
                    token = environment("MLFLOW_TRACKING_TOKEN");
  if (!user.empty() && !password.empty()) {
    set(kUsername, user.c_str());
    set(kPassword, password.c_str());
  } else if (!token.empty()) {
    add_header("Authorization: Bearer " + token);
  }
  if (const std::string trusted = environment("MLFLOW_TRACKING_SERVER_CERT_PATH"); !trusted.empty())
    set(kCaInfo, trusted.c_str());
  if (const std::string own = environment("MLFLOW_TRACKING_CLIENT_CERT_PATH"); !own.empty()) set(kSslCert, own.c_str());
  if (is_true(environment("MLFLOW_TRACKING_INSECURE_TLS"))) {
    set(kSslVerifyPeer, 0L);
    set(kSslVerifyHost, 0L);
  }
  add_header("Expect:");  // no pause before the body
  FileBody file;
  if (!request.file.empty()) {
    file = {.file = open_regular_file(request.file), .end = request.file_bytes};
    add_header("Content-Type: application/octet-stream");
    set(kUpload, 1L);
    set(kReadFunction, read_body);
    set(kReadData, &file);
    set(kInFileSizeLarge, static_cast<std::int64_t>(request.file_bytes));
    set(kLowSpeedLimit, 1L);
    set(kLowSpeedTime, static_cast<long>(std::ceil(request.timeout_seconds)));
  } else {
    set(kTimeoutMs, milliseconds(request.timeout_seconds));
    if (request.method != "GET") {
      add_header("Content-Type: application/json");
      set(kPost, 1L);
      set(kPostFields, request.body.c_str());
      set(kPostFieldSizeLarge, static_cast<std::int64_t>(request.body.size()));
    }
  }
  set(kHttpHeader, headers);
  const int status = c.easy_perform(handle_);
  c.slist_free_all(headers);
  if (status == 0) {
    c.easy_getinfo(handle_, kResponseCode, &response.status);
  } else {
    response.problem = text[0] != '\0' ? text.data() : c.easy_strerror(status);
    response.is_temporary = is_temporary(status);
  }
  return response;
}

}  // namespace lockstep::mlflow
