// train.batch_per_rank: auto and train.accumulate: auto. The batch that fits is found as `lockstep plan` does it: by
// planning the step for a batch, without taking memory and without running anything.
#pragma once

#include <cstdint>

#include "comm/topology.h"
#include "lockstep/backend.h"
#include "lockstep/config.h"
#include "tasks/task.h"
#include "train/step_plan.h"

namespace lockstep::train {

/// Part of the device's memory. The rest is for what is not planned: the libraries themselves and their algorithms.
inline constexpr double kUsableMemory = 0.9;

/// The largest number of samples that a rank may run at once, such that its step fits into that part of `memory_bytes`
/// (DeviceInfo's), and no op refuses the batch (not_supported). A multiple of 8 from 8 on, and at most `limit`; 0 if
/// not even one sample fits.
std::int64_t batch_that_fits(const Config& config, const tasks::Task& task, int ranks, Backend& backend,
                             const comm::Topology& topology, std::size_t memory_bytes, std::int64_t limit);

/// The memory of a step that counts against DeviceInfo's memory: on a GPU, host memory is not included.
std::size_t memory_of_device(const MemoryReport& memory, MemorySpace space);
/// Throws out_of_memory unless the rest of a step on a GPU fits into `there` bytes of host memory.
void require_host_memory(const MemoryReport& memory, std::size_t there);

/// Whether train.batch_per_rank or train.accumulate is auto.
bool has_automatic_batch(const Config& config);

/// Replaces both `auto` values by numbers, for this number of ranks, if `fits` samples fit at once.
///
/// accumulate: the smallest number such that each micro-batch fits and is not larger than a train.batch_per_rank that
/// is given as a number. (A run that is resumed on fewer ranks keeps its global batch, so each rank has more to do.) It
/// is 1 if train.batch_per_rank determines the global batch. Throws out_of_memory if nothing fits. batch_per_rank:
/// `fits`, or less if the global batch would be larger than the data set.
void resolve_batch(Config& config, int ranks, std::int64_t fits, std::int64_t n_samples);

}  // namespace lockstep::train
