// How an evaluation reads its set: each of the first evaluation.max_samples samples (0: all) once, in their order, in
// batches that are divided among the ranks.
#pragma once

#include "data/loader.h"
#include "lockstep/communicator.h"
#include "lockstep/config.h"

namespace lockstep::inference {

/// Of the samples of a set.
std::int64_t evaluated_samples(const Config& config, const data::Dataset& set);

/// `capacity`: samples of a rank per step. `last_step` of the result is the number of steps.
data::LoaderOptions evaluation_loader(const Config& config, const data::Dataset& set, std::int64_t capacity,
                                      const World& world, Backend& backend);

}  // namespace lockstep::inference
