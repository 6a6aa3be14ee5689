// HTTP requests with libcurl, which is loaded when the first request is made (dlopen). Lockstep can thus be built
// without it, starts as fast as without it, and runs where it is missing: only what needs it then fails, with an error
// that says so. Authentication and certificates are those of MLflow's own client; libcurl reads http_proxy and its
// relatives.
//
//   MLFLOW_TRACKING_USERNAME, MLFLOW_TRACKING_PASSWORD   basic authentication
//   MLFLOW_TRACKING_TOKEN                                a bearer token, if there is no user and password
//   MLFLOW_TRACKING_INSECURE_TLS=true                    certificates are not checked
//   MLFLOW_TRACKING_SERVER_CERT_PATH                     the certificates to trust, instead of the system's
//   MLFLOW_TRACKING_CLIENT_CERT_PATH                     the client's certificate and key
//   LOCKSTEP_LIBCURL                                     a libcurl.so.4 that is not in the library path
#pragma once

#include <atomic>
#include <limits>
#include <string>

#include "base/clock.h"

namespace lockstep::mlflow {

/// Shared with the thread that may end a request. A request ends within about a second after either.
struct Limits {
  std::atomic<bool> is_cancelled = false;
  /// Seconds of Clock since its epoch.
  std::atomic<double> deadline = std::numeric_limits<double>::infinity();

  double remaining_seconds() const;
  bool is_over() const { return is_cancelled || remaining_seconds() <= 0; }
};

struct Request {
  std::string method = "POST";  // POST, GET or PUT
  std::string url;
  std::string body{};  // JSON
  std::string file{};  // instead of it: the first file_bytes bytes of this file
  std::size_t file_bytes = 0;
  double timeout_seconds = 30;  // of the whole request; of a file: without any progress
  /// If a reused connection breaks without an answer, libcurl sends the request once more. On a new connection it does
  /// not.
  bool new_connection = false;
};

struct Response {
  long status = 0;            // of HTTP; 0: there was no answer
  std::string body{};         // at most 4 MiB
  std::string problem{};      // why there was no answer, in libcurl's words
  bool is_temporary = false;  // of a problem: another attempt may succeed
};

/// Makes one request at a time, and keeps the connection for the next one.
class HttpClient {
 public:
  /// Throws Error (not_supported) if there is no libcurl, and Error (system_call) if it cannot be used.
  explicit HttpClient(const Limits& limits);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  Response send(const Request& request);

 private:
  const Limits& limits_;
  void* handle_;
};

}  // namespace lockstep::mlflow
