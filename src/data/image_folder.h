// Import of JPEG and PNG files: class folders as for torchvision's ImageFolder, and Tiny ImageNet as it is distributed.
#pragma once

#include "data/import.h"

namespace lockstep::data {

enum class ImageStorage { automatic, decoded, encoded };

struct ImageFolderOptions : ImportOptions {
  ImageStorage storage = ImageStorage::automatic;
  int short_side = 0;     // images are stored decoded, with a shorter side of at most this many pixels; 0: as they are
  bool skip_bad = false;  // skip images that cannot be decoded instead of ending the import
};

/// Imports `source`/CLASS/**/*.jpg, .jpeg and .png, in upper or lower case. If no channels are requested, the set has
/// one channel if all of its images are grey, otherwise three. The folders are the classes, sorted by the bytes
/// of their names; the files of a class are sorted by path. Links to folders inside a class are not followed. Image
/// files of other formats count as files that cannot be decoded. Files whose name is not that of an image are ignored.
/// Throws usage if short_side is combined with encoded storage.
ImportResult import_image_folder(const ImageFolderOptions& options, const ImportProgress& progress);

/// Imports the folder tiny-imagenet-200 (or the folder that contains it): train/WNID/images/*.JPEG, or val/images with
/// its labels in val/val_annotations.txt. Classes are the lines of wnids.txt, sorted, as ImageFolder numbers the
/// folders of train. The set has three channels if no others are requested.
ImportResult import_tiny_imagenet(const ImageFolderOptions& options, const ImportProgress& progress);

}  // namespace lockstep::data
