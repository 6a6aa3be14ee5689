// What a run or a plan reports before the first step: ranks, hosts, processors, batch, communication, memory.
#pragma once

#include <string>

#include "train/session.h"

namespace lockstep::train {

/// Collective; rank 0 writes it to the log.
void write_banner(Session& session);

/// The memory of a rank by kind, in MiB, as lines of text.
std::string memory_text(const MemoryReport& memory, MemorySpace space);
/// "11173962 parameters, 5130 of them trained"
std::string parameters_text(const graph::ParameterTable& table);
/// What differs from training all parameters alike with optimizer.learning_rate, one line each: the learning rate that
/// follows from the batch, and groups of parameters. Usually empty.
std::vector<std::string> learning_lines(const StepPlan& plan);
/// "64 in total = 2 ranks x 16 x 2 accumulated".
std::string batch_text(const BatchShape& batch);

}  // namespace lockstep::train
