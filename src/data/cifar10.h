// Import of CIFAR-10's binary batches. Source of the format: https://www.cs.toronto.edu/~kriz/cifar.html, "Binary
// version": records of 3073 bytes, a label (0 to 9), then 32 x 32 red, green and blue planes, each row-major.
#pragma once

#include "data/import.h"

namespace lockstep::data {

/// `source`: the folder cifar-10-batches-bin (or the folder that contains it), or one .bin file. `split`: train
/// (data_batch_*.bin) or test (test_batch.bin); for one .bin file it is only a name. Samples keep the order of the
/// files. The output appears only when it is complete.
ImportResult import_cifar10(const ImportOptions& options, const ImportProgress& progress);

}  // namespace lockstep::data
