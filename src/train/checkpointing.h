// When checkpoints are due, what they contain, and the one that is being written while training continues.
//
// A save copies this rank's part, and a thread writes the copy (checkpoint/background_saver.h). Ranks agree on the
// phases of these threads through the flags of each step. A save that fails is reported immediately, and training
// continues until the next one is due. If the last save of a run has failed, finish() throws.
#pragma once

#include <optional>
#include <string>

#include "base/clock.h"
#include "checkpoint/background_saver.h"
#include "run/run_lock.h"
#include "train/recorder.h"
#include "train/session.h"

namespace lockstep::train {

class Checkpointing {
 public:
  /// A save fails if the run directory no longer belongs to this job.
  Checkpointing(Session& session, Recorder& recorder, const run::RunLock& lock);

  /// Whether a save is due: by steps, epochs or rank 0's clock, or at the end of the run. The same on all ranks.
  bool due_after(std::int64_t step) const;
  /// Whether a checkpoint of this quality would be the best so far, and the target of the link `best`.
  bool would_be_best(std::optional<double> quality) const;
  /// Sets this rank's flags of a step that begins.
  void write_flags(std::int64_t step, StepFlags& flags);
  /// Reads the flags of all ranks in a step that has finished. Collective when all have finished a phase.
  void read_flags(std::int64_t step, const StepFlags& flags);

  /// Collective. Training waits for the copy, and before that for a save that is still running. `quality`: greater is
  /// better; none if nothing was measured.
  void save(std::int64_t steps_done, std::optional<double> quality);
  /// Collective: waits for a save that still runs. Throws on all ranks if the last one has failed.
  const std::string& finish();

 private:
  std::string last_good_text() const;  // for messages
  struct Running {
    std::int64_t step = 0;
    bool is_best = false;
    TrainingProgress before;  // with the best so far without it
    run::Totals totals;       // when it was begun
    Clock::time_point begin;
    double blocked_seconds = 0;  // in which training waited for the copy, or for the end
  };

  checkpoint::StateJson state(std::int64_t steps_done, std::optional<double> quality) const;
  bool note_best(std::optional<double> quality);
  void wait();
  void conclude(const checkpoint::BackgroundSaver::Outcome& outcome);

  Session& s_;
  Recorder& recorder_;
  const run::RunLock& lock_;
  checkpoint::KnownFiles known_files_;  // used by the thread of saver_, which ends first
  checkpoint::BackgroundSaver saver_;
  Running running_;
  std::int64_t written_step_ = -1;  // the last step whose flags were written
  std::int64_t phase_step_ = -1;    // flags of steps up to this one are about an earlier phase
  bool is_due_by_clock_ = false;
  Clock::time_point last_save_ = Clock::now();
  std::string last_good_;            // empty: none yet
  std::optional<Error> last_error_;  // of the last save, if it failed
  std::int64_t n_failed_ = 0;        // saves in a row, for the same reason
};

}  // namespace lockstep::train
