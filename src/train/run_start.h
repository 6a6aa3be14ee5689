// What happens before the first step of a training run.
#pragma once

#include "train/checkpointing.h"
#include "train/evaluation.h"
#include "train/session.h"

namespace lockstep::train {

/// Collective. Repeats an evaluation that a signal interrupted when the run was last stopped, and saves its result.
/// False if a signal has asked a rank to stop, before the first step or during that evaluation.
bool may_start(Session& session, Validation& validation, Checkpointing& checkpointing);

}  // namespace lockstep::train
