// What a checkpoint records for inference, besides the weights and the keys of the model: how an image becomes the
// input of the network, and what its outputs mean. It holds no path, time or number of ranks, so that reproducible
// checkpoints stay equal.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "data/image_set.h"
#include "lockstep/config.h"

namespace lockstep::tasks {

struct ImageDescription {
  int height = 0, width = 0, channels = 0;  // of the network's input, pixels
  /// The shorter side of an image in pixels, before its centre is taken (data/image_shape.h). 0: images are stored in
  /// the size of the input, and are not resized.
  int resize = 0;
  std::vector<float> mean, stddev;       // (C), of values in [0, 1]
  std::vector<std::string> class_names;  // empty: the classes only have numbers
  double batch_norm_epsilon = 1e-5;

  /// "32x32x3, resized to 36 first"
  std::string text() const;
  bool operator==(const ImageDescription&) const = default;
};

/// Height and width of the images of an evaluation according to the configuration; 0: as they are stored.
inline int evaluation_size(const Config::Data& data) {
  return data.validation_size > 0 ? data.validation_size : data.image_size;
}

/// The description of a model that is trained on `train` with this configuration. Throws config_invalid if data.mean or
/// data.std has another number of channels.
ImageDescription describe(const Config& config, const data::ImageSetInfo& train);

/// Changes a recorded description where the configuration asks for another size, mean or standard deviation. Returns
/// one sentence for each change.
std::vector<std::string> keep_configured(const Config::Data& data, ImageDescription& recorded);

/// The member `inference` of a checkpoint's state.
nlohmann::ordered_json to_json(const ImageDescription& description);
/// `classes`: the outputs of the model. Throws checkpoint_damaged, with `source` in the message, if a value is missing
/// or impossible.
ImageDescription image_description(const nlohmann::json& inference, int classes, const std::string& source);

}  // namespace lockstep::tasks
