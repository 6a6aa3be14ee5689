// A save in the background. Training waits only for start(), which copies this rank's shard. From a device it only
// queues the copies, into pinned memory: they run during the next step, whose update waits for them on the device. With
// Adam, the state has 12 bytes per parameter: 6 GB at 0.5B parameters, 0.1 to 0.25 s over PCIe at 50 or 25 GB/s,
// divided by the number of ranks. A thread of each rank, which makes no MPI calls, then waits for the copies, and
// writes the shard in the phases of a Saver. Between two phases, the main threads exchange short texts (offsets,
// hashes). They call advance() once the phase is done on every rank, which the flags of a step tell them, or wait()
// when there is nothing else to do.
//
// A save that fails on any rank ends on all of them, with that rank's Error as its outcome, and leaves nothing behind.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/saver.h"
#include "lockstep/backend.h"
#include "lockstep/error.h"

namespace lockstep::checkpoint {

/// How a device copies its tensors. Functions that are empty are not called.
struct Copying {
  std::function<void(int round)> begin{};  // collective: before tensors are read in a round, each round in turn
  std::function<void()> end{};             // after the last one
  std::function<void()> wait{};            // in the saver's thread: returns when what was read has arrived
  Backend* backend = nullptr;              // allocates the memory of the copy; null: ordinary memory
};

class BackgroundSaver {
 public:
  /// Allocates the memory of the copy: copy_bytes().
  BackgroundSaver(std::vector<TensorSource> tensors, World& world, Copying copying = {});
  /// Waits for the current phase. A save that is not finished stays a partial file.
  ~BackgroundSaver();
  BackgroundSaver(const BackgroundSaver&) = delete;
  BackgroundSaver& operator=(const BackgroundSaver&) = delete;

  /// Memory for a rank's shard: its tensors as they are stored, and the largest of them in canonical form.
  static std::size_t copy_bytes(const std::vector<TensorSource>& tensors, int rank, int size);

  /// Called in the thread of rank 0: `before` before the file is created, `after` once it has its final name. The save
  /// fails if one of them throws.
  struct Hooks {
    std::function<void()> before, after;
  };
  /// Collective. No other save may be running.
  void start(const std::string& path, StateJson state, Hooks hooks);
  bool is_running() const { return saver_.has_value(); }
  /// Whether this rank has finished the current phase.
  bool phase_is_done() const;

  /// The end of a save. Without an error, the file is complete and durable.
  struct Outcome {
    std::string path;
    std::optional<Error> error;
  };
  /// Collective. Starts the next phase if all ranks have finished theirs. Returns the outcome after the last phase.
  std::optional<Outcome> advance();
  /// Collective. Waits until the save is finished, and reports once a minute what it waits for.
  Outcome wait();

 private:
  void begin_phase();
  void run();
  std::string outcome_of_phase();
  std::span<const float> canonical_copy(std::size_t tensor);
  std::string finished_text() const;  // result of this rank's phase; empty while it runs

  const std::vector<TensorSource> tensors_;
  World& world_;
  const Copying copying_;
  /// The system provides ordinary memory only when it is first written, so a run on processors that saves only at its
  /// end does not use it before then. Pinned memory is taken at once, since pinning it takes longer than the copy.
  struct Buffer {
    explicit Buffer(std::size_t n = 0, Backend* backend = nullptr) : size(n) {
      if (n > 0 && backend != nullptr) pinned = backend->allocate_host(n * sizeof(float), "copy for checkpoints");
      if (n > 0 && backend == nullptr) values = std::make_unique_for_overwrite<float[]>(n);
    }
    std::span<float> span() const { return {pinned ? static_cast<float*>(pinned->data()) : values.get(), size}; }
    std::unique_ptr<float[]> values;
    std::unique_ptr<Memory> pinned;
    std::size_t size;
  };
  std::vector<Buffer> copies_;  // of this rank's tensors, as stored; empty for the others
  Buffer canonical_;            // one at a time

  std::optional<Saver> saver_;
  StateJson state_;
  Hooks hooks_;
  int phase_ = 0;
  std::vector<std::string> results_;  // of the previous phase, from all ranks

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool has_work_ = false, is_ending_ = false;
  std::string outcome_;  // of the last phase that the thread finished
  std::thread thread_;
};

}  // namespace lockstep::checkpoint
