// Import of JPEG files: class folders as torchvision's ImageFolder takes them, and Tiny ImageNet as it is distributed.
#pragma once

#include "data/import.h"

namespace lockstep::data {

enum class ImageStorage { automatic, decoded, jpeg };

struct ImageFolderOptions : ImportOptions {
  ImageStorage storage = ImageStorage::automatic;
  bool skip_bad = false;  // leave out what cannot be decoded; else it ends the import
};

/// `source`/CLASS/**/*.jpg, .jpeg in any case. Classes are the folders, sorted by the bytes of their names; files of a
/// class are sorted by path. Links to folders inside a class are not followed. Other image files count as ones that
/// cannot be decoded; files that are no images by their name are not looked at.
ImportResult import_image_folder(const ImageFolderOptions& options, const ImportProgress& progress);

/// The folder tiny-imagenet-200 (or the one that holds it): train/WNID/images/*.JPEG, or val/images with its labels in
/// val/val_annotations.txt. Classes are the lines of wnids.txt, sorted, as ImageFolder numbers the folders of train.
ImportResult import_tiny_imagenet(const ImageFolderOptions& options, const ImportProgress& progress);

}  // namespace lockstep::data
