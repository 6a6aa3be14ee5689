// When checkpoints are due, what they hold, and the one that is being written beside the training.
//
// A save copies this rank's part and is written by a thread (checkpoint/background_saver.h), whose phases ranks agree
// on by the flags of each step. One that fails is said at once and tried again when the next is due; if the last of a
// run has failed, finish() throws.
#pragma once

#include <optional>
#include <string>

#include "base/clock.h"
#include "checkpoint/background_saver.h"
#include "train/recorder.h"
#include "train/run_lock.h"
#include "train/session.h"

namespace lockstep::train {

class Checkpointing {
 public:
  /// A save fails where the run directory is not this job's any more.
  Checkpointing(Session& session, Recorder& recorder, const RunLock& lock);

  /// By steps, epochs or rank 0's clock, and at the end of the run. The same on all ranks.
  bool due_after(std::int64_t step) const;
  /// What this rank says in the flags of a step that begins.
  void write_flags(std::int64_t step, StepFlags& flags);
  /// What all ranks said in the flags of a step that is over. Collective when all have finished a phase.
  void read_flags(std::int64_t step, const StepFlags& flags);

  /// Collective; training stands still for the copy, and before it for a save that still runs. `quality`: greater is
  /// better; none where nothing was measured.
  void save(std::int64_t steps_done, std::optional<double> quality);
  /// Collective: waits for the save that runs. Throws on all ranks where the last one has failed.
  void finish();

 private:
  struct Running {
    std::int64_t step = 0;
    bool is_best = false;
    RunProgress before;  // the best so far without it
    Clock::time_point begin;
    double blocked_seconds = 0;  // for the copy, and where training had to wait for the end
  };

  checkpoint::StateJson state(std::int64_t steps_done, std::optional<double> quality) const;
  bool note_best(std::optional<double> quality);
  void wait();
  void conclude(const checkpoint::BackgroundSaver::Outcome& outcome);

  Session& s_;
  Recorder& recorder_;
  const RunLock& lock_;
  checkpoint::BackgroundSaver saver_;
  Running running_;
  std::int64_t written_step_ = -1;  // the last one whose flags were given
  std::int64_t phase_step_ = -1;    // flags of steps up to this one are about an earlier phase
  bool clock_says_due_ = false;
  Clock::time_point last_save_ = Clock::now();
  std::string last_good_;            // empty: none yet
  std::optional<Error> last_error_;  // of the last save, if it failed
};

}  // namespace lockstep::train
