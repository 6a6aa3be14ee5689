// uint8 images to normalised fp32, cropped and flipped by counter-based draws (op.h).
// Each value is looked up in a table of 256 a channel, (v / 255 - mean) / stddev computed in fp64 and rounded once.
#pragma once

#include <memory>

#include "kernels/cpu/base/context.h"
#include "lockstep/op.h"

namespace lockstep::cpu {

std::unique_ptr<ImageInput> make_image_input(const ImageInputDescription& description, const CpuContext& context);

}  // namespace lockstep::cpu
