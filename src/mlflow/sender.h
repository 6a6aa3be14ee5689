// Sends a run to MLflow while it trains, from a thread of its own on rank 0. The thread follows the files of the run
// (mlflow/upload.h), so its queue is on disk and its memory use is bounded. A server that is missing, slow or broken
// never stops the training: the thread tries again, after 1, 2, 4, ... up to 60 s. If the server refuses the run, it
// warns and ends. What was not sent stays in RUN for `lockstep report mlflow`.
#pragma once

#include <memory>
#include <string>
#include <thread>

#include "mlflow/upload.h"

namespace lockstep::mlflow {

class Sender {
 public:
  /// If there is no libcurl, logs that in a warning and sends nothing.
  explicit Sender(UploadOptions options);
  /// Calls finish("failed") unless finish() was called before.
  ~Sender();
  Sender(const Sender&) = delete;
  Sender& operator=(const Sender&) = delete;

  /// The run has ended with this status (done, stopped, failed). Sends what is left, and waits for that: up to 5 s, or
  /// 1 s if the server has not answered before, and about a second more until a request has ended. Warns if something
  /// was not sent.
  void finish(const std::string& status);

 private:
  struct Work;
  std::shared_ptr<Work> work_;
  std::thread thread_;
};

}  // namespace lockstep::mlflow
