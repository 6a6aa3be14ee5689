// Import of CIFAR-10's binary batches. Source of the format: https://www.cs.toronto.edu/~kriz/cifar.html, "Binary
// version": records of 3073 bytes, a label (0 to 9), then 32 x 32 red, green and blue planes, each row-major.
#pragma once

#include "data/import.h"

namespace lockstep::data {

/// `source`: the folder cifar-10-batches-bin (or the one that holds it), or one .bin file. `split`: train,
/// data_batch_*.bin, or test, test_batch.bin; of one .bin file only its name. Samples keep the order of the files. The
/// output appears only when it is whole.
ImportResult import_cifar10(const ImportOptions& options, const ImportProgress& progress);

}  // namespace lockstep::data
