// How a training run ends: what is written last, and the exit status.
#pragma once

#include <cstdint>

#include "train/checkpointing.h"
#include "train/recorder.h"
#include "train/session.h"

namespace lockstep::train {

/// Collective. All ranks have agreed to stop, and the training state is saved: the same command resumes the run.
int end_stopped(Session& session, Checkpointing& checkpointing, Recorder& recorder, std::int64_t steps_done);
/// Collective. The run is complete: rank 0 writes the trained model. `first_step`: steps that were done before this
/// start.
int end_done(Session& session, Checkpointing& checkpointing, Recorder& recorder, std::int64_t first_step,
             std::int64_t steps_done);

}  // namespace lockstep::train
