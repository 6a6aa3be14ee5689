// Import of CIFAR-10's binary batches. Source of the format: https://www.cs.toronto.edu/~kriz/cifar.html, "Binary
// version": records of 3073 bytes, a label (0 to 9), then 32 x 32 red, green and blue planes, each row-major.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "data/dataset.h"

namespace lockstep::data {

struct Cifar10Options {
  std::string source;  // the folder cifar-10-batches-bin (or the one that holds it), or one .bin file
  std::string output;
  std::string split = "train";      // train: data_batch_*.bin, test: test_batch.bin; of one .bin file only its name
  std::int64_t per_class = 0;       // the first so many of each class, in the order of the files; 0: all
  std::int64_t limit = 0;           // the first so many samples; 0: all
  std::vector<float> mean, stddev;  // of values in [0, 1]; empty: of the images that are imported
  bool replace = false;             // an existing output
};

struct ImportResult {
  ImageSetInfo info;
  std::vector<std::string> files;  // that were read
  std::vector<std::int64_t> samples_per_class;
  std::uint64_t size_bytes = 0;  // of the output
};

/// `progress(done, total)` counts samples read. The output appears only when it is whole.
ImportResult import_cifar10(const Cifar10Options& options,
                            const std::function<void(std::int64_t, std::int64_t)>& progress);

}  // namespace lockstep::data
