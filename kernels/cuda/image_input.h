// uint8 images to the network's input on the device: crop, flip, normalise. Contract: lockstep/op.h, ImageInput.
#pragma once

#include <memory>

#include "kernels/cuda/base/context.h"
#include "lockstep/op.h"

namespace lockstep::cuda {

std::unique_ptr<ImageInput> make_image_input(const ImageInputDescription& description, const CudaContext& context);

}  // namespace lockstep::cuda
