// How fast the devices of a run multiply matrices: the denominator of model_flops_utilization.
#pragma once

#include "lockstep/backend.h"
#include "lockstep/dtype.h"

namespace lockstep {
class World;
}

namespace lockstep {

/// Fills device memory with numbers in (-1, 1), for measurements: a device that computes with zeros draws less power,
/// and its clock is higher. fp32, bf16 or fp16. They are drawn for the first MiB or two, and then repeated.
void fill_random(Backend& backend, Memory& d_memory, DType dtype, Stream& stream);

/// Operations per second that a rank's op `matmul` reaches in the precision's compute type, with a square product that
/// is large enough for the device. Takes about a tenth of a second. Must not be called after Backend::freeze().
double measure_matmul_rate(Backend& backend, Precision precision);

/// The same for all ranks together, which multiply at the same time, as they do in training. Collective.
double matmul_rate_of_ranks(Backend& backend, Precision precision, World& world);

}  // namespace lockstep
