#include "tasks/image_classification/description.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "lockstep/error.h"

namespace lockstep::tasks {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxPixels = 1 << 16;  // of a side
constexpr int kMaxChannels = 64;

/// The values as configured, or else as stored in the train set.
std::vector<float> channel_values(const Config& config, const std::vector<double>& configured,
                                  const std::vector<float>& of_set, const char* key, const data::ImageSetInfo& set) {
  if (configured.empty()) return of_set;
  require(configured.size() == static_cast<std::size_t>(set.channels), ErrorCode::config_invalid,
          "{}{}: found {} values, but {} have {} channels", config.places({key}), key, configured.size(),
          set.path == "synthetic" ? "synthetic images" : "the images of " + set.path, set.channels);
  return {configured.begin(), configured.end()};
}

/// The shortest decimal numbers that identify the floats: 0.4914 instead of 0.49140000343322754.
Json shortest(const std::vector<float>& values) {
  Json out = Json::array();
  for (const float value : values) out.push_back(std::stod(fmt::format("{}", value)));
  return out;
}

/// Reads the members of the object and checks them.
class Members {
 public:
  Members(const nlohmann::json& object, const std::string& source) : object_(object), source_(source) {}

  const nlohmann::json& at(const char* key) const {
    require(object_.is_object() && object_.contains(key), ErrorCode::checkpoint_damaged,
            "{} describes its model incompletely: {} is missing", source_, key);
    return object_[key];
  }
  int pixels(const char* key, int least, int most) const {
    const nlohmann::json& value = at(key);
    const bool fits = value.is_number_integer() && value.get<double>() >= least && value.get<double>() <= most;
    check(fits, key, fmt::format("a whole number from {} to {}", least, most));
    return value.get<int>();
  }
  /// Reads one number for each channel, which must be positive if `positive` is set.
  std::vector<float> channels(const char* key, int n_channels, bool positive) const {
    const nlohmann::json& list = at(key);
    bool fits = list.is_array() && list.size() == static_cast<std::size_t>(n_channels);
    std::vector<float> out;
    for (std::size_t i = 0; fits && i < list.size(); ++i) {
      fits = list[i].is_number();
      if (fits) out.push_back(list[i].get<float>());
      fits = fits && std::isfinite(out.back()) && (!positive || out.back() > 0);
    }
    check(fits, key, fmt::format("a list of {}{} numbers", n_channels, positive ? " positive" : ""));
    return out;
  }
  std::vector<std::string> names(const char* key, int most) const {
    const nlohmann::json& list = at(key);
    bool fits = list.is_array();
    for (std::size_t i = 0; fits && i < list.size(); ++i) fits = list[i].is_string();
    check(fits, key, "a list of texts");
    require(list.size() <= static_cast<std::size_t>(most), ErrorCode::checkpoint_damaged,
            "{} describes its model wrongly: {}: expected at most {} names, one per output of the model, found {}",
            source_, key, most, list.size());
    return list.get<std::vector<std::string>>();
  }
  double positive(const char* key) const {
    const nlohmann::json& value = at(key);
    check(value.is_number() && value.get<double>() > 0 && std::isfinite(value.get<double>()), key, "a positive number");
    return value.get<double>();
  }

 private:
  void check(bool fits, const char* key, const std::string& expected) const {
    require(fits, ErrorCode::checkpoint_damaged, "{} describes its model wrongly: {}: expected {}, found {}", source_,
            key, expected, object_[key].dump().substr(0, 80));
  }

  const nlohmann::json& object_;
  const std::string& source_;
};

}  // namespace

std::string ImageDescription::text() const {
  const std::string size = fmt::format("{}x{}x{}", height, width, channels);
  return resize > 0 ? fmt::format("{}, resized to {} first", size, resize) : size;
}

ImageDescription describe(const Config& config, const data::ImageSetInfo& train) {
  const Config::Data& d = config.data;
  ImageDescription out;
  const int size = evaluation_size(d);
  out.height = size > 0 ? size : train.height;
  out.width = size > 0 ? size : train.width;
  out.channels = train.channels;
  if (size > 0) out.resize = data::resized_side(size, d.validation_resize);
  out.mean = channel_values(config, d.mean, train.mean, "data.mean", train);
  out.stddev = channel_values(config, d.std, train.stddev, "data.std", train);
  if (train.path != "synthetic") out.class_names = train.class_names;
  out.batch_norm_epsilon = config.batch_norm.epsilon;
  return out;
}

std::vector<std::string> keep_configured(const Config::Data& data, ImageDescription& recorded) {
  std::vector<std::string> notes;
  const auto keep = [&](const char* key, const std::vector<double>& configured, std::vector<float>& values) {
    const std::vector<float> wanted(configured.begin(), configured.end());
    if (wanted.empty() || wanted == values) return;
    require(wanted.size() == values.size(), ErrorCode::config_invalid,
            "{}: found {} values, but the model has {} channels", key, wanted.size(), values.size());
    values = wanted;
    notes.push_back(fmt::format("{} of the configuration is used instead of the checkpoint's", key));
  };
  keep("data.mean", data.mean, recorded.mean);
  keep("data.std", data.std, recorded.stddev);
  const int size = evaluation_size(data);
  if (size == 0) return notes;
  const int resize = data::resized_side(size, data.validation_resize);
  if (size == recorded.height && size == recorded.width && resize == recorded.resize) return notes;
  const std::string before = recorded.text();
  recorded.height = recorded.width = size;
  recorded.resize = resize;
  notes.push_back(fmt::format("the configuration's image size is used: {} instead of the checkpoint's {}",
                              recorded.text(), before));
  return notes;
}

Json to_json(const ImageDescription& description) {
  return {{"height", description.height},
          {"width", description.width},
          {"channels", description.channels},
          {"resize", description.resize},
          {"mean", shortest(description.mean)},
          {"std", shortest(description.stddev)},
          {"batch_norm_epsilon", description.batch_norm_epsilon},
          {"class_names", description.class_names}};
}

ImageDescription image_description(const nlohmann::json& inference, int classes, const std::string& source) {
  const Members members(inference, source);
  ImageDescription out;
  out.height = members.pixels("height", 1, kMaxPixels);
  out.width = members.pixels("width", 1, kMaxPixels);
  out.channels = members.pixels("channels", 1, kMaxChannels);
  out.resize = members.pixels("resize", 0, kMaxPixels);
  out.mean = members.channels("mean", out.channels, false);
  out.stddev = members.channels("std", out.channels, true);
  out.batch_norm_epsilon = members.positive("batch_norm_epsilon");
  out.class_names = members.names("class_names", classes);
  return out;
}

}  // namespace lockstep::tasks
