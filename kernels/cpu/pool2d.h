// Max and average pooling, global average among it, with a pending normalisation of the input.
// Forward applies it while reading; backward gathers the data gradient, then goes back through it in a second pass.
// Max: the first of equals in window order (row by row) gets the gradient, and a NaN wins, both as in PyTorch.
// `saved`: its position in the window, one byte an element of y. Averages are summed in fp64.
// x and y may lie in different layouts.
#pragma once

#include <memory>

#include "kernels/cpu/base/context.h"
#include "lockstep/op.h"

namespace lockstep::cpu {

std::unique_ptr<Pool2d> make_pool2d(const Pool2dDescription& description, const CpuContext& context);

}  // namespace lockstep::cpu
