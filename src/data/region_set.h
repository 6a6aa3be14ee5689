// Decoded images of several sizes. A batch has the regions of the images that its samples need, packed; the op
// image_input resizes them.
#pragma once

#include <memory>

#include "data/image_set.h"
#include "data/sample_file.h"

namespace lockstep::data {

/// shaping.image_size is not 0. Every offset and size of the file was checked when it was opened.
std::unique_ptr<ImageSet> make_region_set(SampleFile file, const ImageShaping& shaping);

}  // namespace lockstep::data
