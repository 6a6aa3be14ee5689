// A save beside the training. start() copies this rank's part, which is all that training waits for; a thread of the
// rank's own, which makes no MPI calls, then writes it in the phases of a Saver. Between two phases the ranks exchange
// short texts (places, hashes), which their main threads do: advance(), when every rank's phase is done, which they
// know from the flags of a step; or wait(), when there is nothing else to do.
//
// A save that fails on any rank ends on all of them with that rank's Error as its outcome, and leaves nothing behind.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/saver.h"
#include "lockstep/error.h"

namespace lockstep::checkpoint {

class BackgroundSaver {
 public:
  /// Takes the memory of the copy: copy_bytes().
  BackgroundSaver(std::vector<TensorSource> tensors, World& world);
  /// Waits for the phase that runs. A save that is not over stays a partial file.
  ~BackgroundSaver();
  BackgroundSaver(const BackgroundSaver&) = delete;
  BackgroundSaver& operator=(const BackgroundSaver&) = delete;

  /// What a rank's part takes: its tensors as they are stored, and the largest of them in canonical form.
  static std::size_t copy_bytes(const std::vector<TensorSource>& tensors, int rank, int size);

  /// None may be running. `before` and `after` run in rank 0's thread, before the file is made and when it has its
  /// name; what they throw fails the save.
  struct Hooks {
    std::function<void()> before, after;
  };
  void start(const std::string& path, StateJson state, Hooks hooks);
  bool is_running() const { return saver_.has_value(); }
  /// This rank has finished the phase that was last begun.
  bool phase_is_done() const;

  /// The end of a save: no Error where the file is there, whole and durable.
  struct Outcome {
    std::string path;
    std::optional<Error> error;
  };
  /// Collective. Begins the next phase where all ranks have finished theirs; the outcome where it was the last.
  std::optional<Outcome> advance();
  /// Collective. Until the save is over, saying now and then what it waits for.
  Outcome wait();

 private:
  void begin_phase();
  void run();
  std::string outcome_of_phase();
  std::span<const float> canonical_copy(std::size_t tensor);
  std::string finished_text() const;  // of this rank's phase; empty while it runs

  const std::vector<TensorSource> tensors_;
  World& world_;
  std::vector<std::vector<float>> copies_;  // of this rank's tensors, as stored; the others' are empty
  std::vector<float> canonical_;            // one at a time

  std::optional<Saver> saver_;
  StateJson state_;
  Hooks hooks_;
  int phase_ = 0;
  std::vector<std::string> results_;  // all ranks', of the phase before

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool has_work_ = false, ends_ = false;
  std::string outcome_;  // of the phase that the thread finished
  std::thread thread_;
};

}  // namespace lockstep::checkpoint
