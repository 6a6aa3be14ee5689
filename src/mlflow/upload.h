// Sends the files of a run to an MLflow server: the configuration as parameters, metrics.jsonl as metrics, and files as
// artefacts. The trainer does not depend on it. The same code sends while a run trains (mlflow/sender.h) and afterwards
// (`lockstep report mlflow`). RUN/mlflow.json records what was sent, so each call sends only what is new.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "lockstep/config.h"
#include "mlflow/events.h"
#include "mlflow/server.h"

namespace lockstep::mlflow {

struct UploadOptions {
  std::string run;  // RUN
  std::string address, experiment;
  Config config;
};

/// What was sent, or what there is to send.
struct Amount {
  std::int64_t parameters = 0, metrics = 0, files = 0;
  bool status = false;
  bool any() const { return parameters + metrics + files > 0 || status; }
};

/// The MLflow status for the content of RUN/status: RUNNING, FINISHED, KILLED or FAILED; empty for any other text.
std::string status_for(const std::string& status);

class Upload {
 public:
  /// Throws Error (not_supported) without libcurl. Does not contact the server.
  Upload(UploadOptions options, const Limits& limits);

  /// Creates the run if it does not exist. All of these throw Problem, and continue where they stopped when they are
  /// called again.
  void open();
  void send_parameters();
  /// `progress`: called after each request with the bytes of metrics.jsonl that were sent, and all.
  void send_metrics(const std::function<void(std::uint64_t, std::uint64_t)>& progress = {});
  /// `status`: as in MLflow. Does nothing if the server already has it.
  void send_status(const std::string& status);
  /// Files of RUN; those that do not exist, or have not changed since they were sent, are left out.
  void send_files(const std::vector<std::string>& names);

  /// What the calls above would send, without contacting the server. `status`: as in MLflow.
  Amount missing(const std::string& status, const std::vector<std::string>& names) const;

  const Amount& sent() const { return sent_; }
  bool is_open() const { return !state_.run.id.empty(); }
  std::string page() const { return server_.page_of(state_.experiment_id, state_.run.id); }
  /// Why files are not sent; empty if they are.
  std::string files_note() const;

 private:
  struct File {
    std::string path, name, hash;
    std::size_t n_bytes = 0;
  };
  /// What was sent to this server and experiment: an entry of RUN/mlflow.json, so that a resumed run continues the same
  /// run of MLflow and nothing is sent twice.
  struct State {
    std::string experiment_id;
    std::string creation_id;  // a tag of the run; set before the run is created, whose answer may get lost
    RunOnServer run{};        // an empty id: it was not created yet
    std::string status;       // the last one that was sent
    std::map<std::string, std::string> parameters{};  // as sent, with changes that a resumed run made
    std::map<std::string, std::string> files{};       // the hash of each file that was sent
    Position position{};
  };
  std::string state_path() const { return options_.run + "/mlflow.json"; }
  std::string state_key() const { return server_.address() + " " + options_.experiment; }
  /// A missing or damaged file counts as empty, so that a new run is created.
  State read_state() const;
  /// Replaces the entry of this server. Throws Error (system_call), for example on a full disk.
  void save() const;

  std::vector<File> changed_files(const std::vector<std::string>& names) const;
  struct Parameters {
    Texts fresh, changed;
  };
  Parameters unsent_parameters() const;
  Texts tags() const;

  UploadOptions options_;
  Server server_;
  State state_;
  Amount sent_;
};

/// config.yaml; and what is complete when a run has ended: also metrics.json, log.txt and metrics.jsonl. No weights.
inline const std::vector<std::string> kFilesAtStart{"config.yaml"};
inline const std::vector<std::string> kFilesAtEnd{"config.yaml", "metrics.json", "log.txt", "metrics.jsonl",
                                                  "samples.txt"};

}  // namespace lockstep::mlflow
