// A data set whose samples also have a field with their number, the position in the set: for what is drawn by the
// sample, as the dropout of adapters is. All else is that of the set.
#pragma once

#include <memory>

#include "data/dataset.h"

namespace lockstep::data {

/// The fields of the set, and then kSampleIdField (image_set.h), an int32 with the bits of an unsigned number.
std::shared_ptr<const Dataset> numbered(std::shared_ptr<const Dataset> set);

}  // namespace lockstep::data
