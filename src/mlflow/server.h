// The requests that a run sends to an MLflow tracking server, in version 2.0 of its REST interface:
// https://mlflow.org/docs/latest/rest-api.html. Every call throws Problem if the server cannot be reached or refuses.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "mlflow/http.h"

namespace lockstep::mlflow {

/// Limits of MLflow for one request of log-batch.
inline constexpr std::size_t kMaxMetrics = 1000, kMaxParameters = 100, kMaxTags = 100;
/// The maximum length of a parameter's value in characters: since MLflow 2.8, and before that.
inline constexpr std::size_t kMaxParameterValue = 6000, kMaxOldParameterValue = 500;

/// What a server or the connection to it reports, in a sentence without full stop.
class Problem : public std::runtime_error {
 public:
  Problem(const std::string& what, bool is_temporary, std::string code = "")
      : std::runtime_error(what), is_temporary_(is_temporary), code_(std::move(code)) {}
  bool is_temporary() const { return is_temporary_; }  // another attempt may succeed
  const std::string& code() const { return code_; }    // MLflow's: "RESOURCE_DOES_NOT_EXIST"

 private:
  bool is_temporary_;
  std::string code_;
};

struct Metric {
  std::string key;
  double value = 0;
  std::int64_t time_ms = 0, step = 0;
};
using Texts = std::vector<std::pair<std::string, std::string>>;  // keys and values

struct RunOnServer {
  std::string id, artifact_uri;
};

class Server {
 public:
  /// `address`: "http://host:5000", perhaps with a path behind it. Throws Error (not_supported) without libcurl.
  Server(std::string address, const Limits& limits);

  const std::string& address() const { return address_; }
  /// The page of a run for browsers.
  std::string page_of(const std::string& experiment_id, const std::string& run_id) const;

  /// The id of an experiment, which is created if it does not exist.
  std::string experiment(const std::string& name);
  RunOnServer create_run(const std::string& experiment_id, const std::string& name, std::int64_t start_ms,
                         const Texts& tags);
  /// The run with this tag; an empty id if there is none.
  RunOnServer find_run(const std::string& experiment_id, const std::string& tag, const std::string& value);
  /// At most kMaxMetrics metrics, or kMaxParameters parameters, or kMaxTags tags.
  void log_metrics(const std::string& run_id, std::span<const Metric> metrics);
  void log_parameters(const std::string& run_id, const Texts& parameters);
  void log_tags(const std::string& run_id, const Texts& tags);
  /// RUNNING | FINISHED | FAILED | KILLED; end_ms: 0 for none.
  void set_status(const std::string& run_id, const std::string& status, std::int64_t end_ms);
  /// Whether upload() can write there: through the server, or into a folder that this machine sees.
  static bool supports(const std::string& artifact_uri, const std::string& run_id);
  /// The first `n_bytes` of a file. `name`: below the run's artifacts.
  void upload(const RunOnServer& run, const std::string& file, std::size_t n_bytes, const std::string& name);

 private:
  nlohmann::json call(const std::string& method, const std::string& path, const nlohmann::json& body);
  nlohmann::json answer_to(const Request& request, const std::string& what);

  std::string address_;
  HttpClient http_;
};

}  // namespace lockstep::mlflow
