#include "train/run_start.h"

#include "base/stop_signal.h"

namespace lockstep::train {

bool may_start(Session& session, Validation& validation, Checkpointing& checkpointing) {
  const std::int64_t step = session.progress.step;
  const bool repeats_evaluation = validation.was_interrupted();
  const bool is_over = (step >= session.last_step || validation.ends_run()) && !repeats_evaluation;
  if (!is_over && session.world.any(stop_requested())) return false;
  if (!repeats_evaluation) return true;
  if (!validation.run(step)) return false;
  checkpointing.save(step, validation.quality(true));
  return true;
}

}  // namespace lockstep::train
