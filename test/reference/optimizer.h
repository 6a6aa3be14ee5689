// What works on whole arenas: optimizers, gradient clipping, sums by a tree, running statistics and the hash, from
// op.h.
#pragma once

#include <memory>

#include "lockstep/op.h"

namespace lockstep::reference {

std::unique_ptr<Optimizer> make_optimizer(const OptimizerDescription& description);
std::unique_ptr<ClipNorm> make_clip_norm(const ClipNormDescription& description);
std::unique_ptr<OrderedSum> make_ordered_sum(const OrderedSumDescription& description);
std::unique_ptr<Cast> make_cast(const CastDescription& description);
std::unique_ptr<MovingAverage> make_moving_average(const MovingAverageDescription& description);
std::unique_ptr<Hash> make_hash(const HashDescription& description);

}  // namespace lockstep::reference
