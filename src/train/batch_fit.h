// train.batch_per_rank: auto and train.accumulate: auto. What fits is found as `lockstep plan` knows it: by planning
// the step for a batch, without memory or a run.
#pragma once

#include <cstdint>

#include "comm/topology.h"
#include "lockstep/backend.h"
#include "lockstep/config.h"
#include "tasks/task.h"

namespace lockstep::train {

/// Of the device's memory. The rest is for what is not planned: the libraries' own, and their ways once timed.
inline constexpr double kUsableMemory = 0.9;

/// The largest number of samples that a rank may run at once, so that its step fits into that part of `memory_bytes`
/// (DeviceInfo's); a multiple of 8 from 8 on. At most `limit`; 0 where a single one does not fit.
std::int64_t batch_that_fits(const Config& config, const tasks::Task& task, int ranks, Backend& backend,
                             const comm::Topology& topology, std::size_t memory_bytes, std::int64_t limit);

/// Whether train.batch_per_rank or train.accumulate asks for what fits.
bool wants_fit(const Config& config);

/// Puts numbers in the places of both `auto`s, for so many ranks, where `fits` samples fit at once.
///
/// accumulate: as few as make each micro-batch fit, and not larger than a train.batch_per_rank that is a number (a run
/// that goes on with fewer ranks keeps its global batch, so that each has more to do); 1 where train.batch_per_rank
/// makes the global batch. Throws out_of_memory where nothing fits. batch_per_rank: `fits`, but not so much that the
/// global batch is larger than the data set.
void resolve_batch(Config& config, int ranks, std::int64_t fits, std::int64_t n_samples);

}  // namespace lockstep::train
