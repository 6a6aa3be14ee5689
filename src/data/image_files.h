// Image files as a data set without labels: JPEG and PNG files, each decoded and shaped when it is read.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/image_set.h"

namespace lockstep::data {

class ImageFiles : public ImageSet {
 public:
  /// Why a sample that was read has no image (its bytes are 0 then); empty: it has one.
  virtual const std::string& problem(std::int64_t sample) const = 0;
};

struct ImageFilesOptions {
  int height = 0, width = 0, channels = 0;  // of each sample
  int resize = 0;  // length of the shorter side before the centre is taken, pixels (image_shape.h)
};

/// Sample i is the file paths[i], without a label. An image that already has the size is used as it is, unless `resize`
/// says otherwise (keeps_size()). Others are resized, which needs height and width to be equal.
std::unique_ptr<ImageFiles> open_image_files(std::vector<std::string> paths, const ImageFilesOptions& options);

/// Whether the name of a file ends in .jpg, .jpeg or .png, in upper or lower case.
bool has_image_name(const std::string& path);

}  // namespace lockstep::data
