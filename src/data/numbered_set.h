// A data set whose samples have an additional field with their number, which is the position in the set. Random draws
// per sample, such as the dropout of adapters, depend on it. Everything else is unchanged.
#pragma once

#include <memory>

#include "data/dataset.h"

namespace lockstep::data {

/// The fields of the set, and then kSampleIdField (image_set.h), an int32 with the bits of an unsigned number.
std::shared_ptr<const Dataset> numbered(std::shared_ptr<const Dataset> set);

}  // namespace lockstep::data
