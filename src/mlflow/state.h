// RUN/mlflow.json: what was sent to which server, so that a resumed run continues the same run of MLflow and nothing is
// sent twice. One entry per server and experiment.
#pragma once

#include <map>
#include <string>

#include "mlflow/events.h"
#include "mlflow/server.h"

namespace lockstep::mlflow {

struct State {
  std::string experiment_id;
  std::string creation_id;  // a tag of the run; set before the run is created, whose answer may get lost
  RunOnServer run{};        // an empty id: it was not created yet
  std::string status;       // the last one that was sent
  std::map<std::string, std::string> parameters{};  // as sent, with changes that a resumed run made
  std::map<std::string, std::string> files{};       // the hash of each file that was sent
  Position position{};
};

class StateFile {
 public:
  /// A missing or damaged file counts as empty, so that a new run is created.
  StateFile(const std::string& run_directory, const std::string& address, const std::string& experiment);
  State read() const;
  /// Replaces the entry of this server. Throws Error (system_call), for example on a full disk.
  void write(const State& state) const;

 private:
  std::string path_, key_;
};

}  // namespace lockstep::mlflow
