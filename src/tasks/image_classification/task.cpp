#include "tasks/task.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "data/augment.h"
#include "data/image_set.h"
#include "layers/layers.h"
#include "lockstep/error.h"
#include "lockstep/log.h"
#include "models/family.h"
#include "tasks/image_classification/class_tally.h"
#include "tasks/image_classification/description.h"

namespace lockstep::tasks {
namespace {

constexpr int kSyntheticSize = 32;      // pixels
constexpr int kColours = 3, kGrey = 1;  // channels

enum class Split { train, validation };

bool augments_by(const Config& config, const char* what) {
  return std::ranges::find(config.data.augment, what) != config.data.augment.end();
}

/// One value of data.mean or data.std asks for grey images.
int configured_channels(const Config::Data& data) {
  return data.mean.size() == 1 || data.std.size() == 1 ? kGrey : kColours;
}

/// `largest`: the shape of the packed field.
RegionLimits region_limits(const Shape& largest) {
  return {.max_height = static_cast<int>(largest[0]),
          .max_width = static_cast<int>(largest[1]),
          .place_bytes = static_cast<int>(data::kPackedUnitBytes)};
}

/// The augmentation that readers apply to images of the train set.
data::AugmentOptions augmentation_of(const Config& config) {
  data::AugmentOptions out{.trivial_augment = augments_by(config, "trivial_augment"), .seed = config.run.seed};
  if (const std::vector<double>& ranges = config.data.color_jitter; !ranges.empty())
    out.colours = {.brightness = ranges[0], .contrast = ranges[1], .saturation = ranges[2], .hue = ranges[3]};
  return out;
}

/// `channels` is for synthetic images.
std::shared_ptr<const data::ImageSet> open_set(const Config& config, Split split, int channels) {
  const Config::Data& d = config.data;
  const bool is_train = split == Split::train;
  const std::string& path = is_train ? d.train : d.validation;
  const data::ImageShaping shaping{.image_size = is_train ? d.image_size : evaluation_size(d),
                                   .resized_crop = is_train && augments_by(config, "resized_crop"),
                                   .seed = config.run.seed,
                                   .resize = is_train ? 0 : d.validation_resize};
  const data::AugmentOptions augmented = is_train ? augmentation_of(config) : data::AugmentOptions{};
  if (path != "synthetic")
    return data::augment_image_set(data::open_image_set(path, is_train ? d.start : 0, is_train ? d.end : 0, shaping),
                                   augmented);
  const std::int64_t all = is_train ? d.synthetic_samples : std::max<std::int64_t>(1, d.synthetic_samples / 10);
  const std::int64_t start = is_train ? d.start : 0, end = is_train && d.end > 0 ? d.end : all;
  require(start < end && end <= all, ErrorCode::data_range,
          "{}data.start={} and data.end={} are not a range of the {} synthetic samples (data.synthetic_samples)",
          config.places({"data.start", "data.end", "data.synthetic_samples"}), d.start, d.end, all);
  const int size = shaping.image_size > 0 ? shaping.image_size : kSyntheticSize;
  return data::augment_image_set(
      data::shape_image_set(data::make_synthetic_set(config.run.seed, end - start, size, size, channels,
                                                     config.model.classes, is_train ? "train" : "test", start),
                            shaping),
      augmented);
}

/// Outputs without a class can be intended, for example in a model that will be trained further, but usually they are a
/// mistake. A set may be opened more than once; the warning is given once.
void warn_of_unused_outputs(const data::ImageSetInfo& set, const Config::Model& model) {
  static std::string last;
  if (set.classes >= model.classes || set.path == last) return;
  last = set.path;
  log::warning("model.classes is {}, but {} has {} classes: no sample has one of the other {}; set model.classes={}",
               model.classes, set.path, set.classes, model.classes - set.classes, set.classes);
}

void check_fits_model(const data::ImageSetInfo& set, const Config::Model& model) {
  require(set.classes <= model.classes, ErrorCode::model_mismatch,
          "{} has {} classes, but the model has {}: set model.classes={}", set.path, set.classes, model.classes,
          set.classes);
}

/// The class names of a source, for a comparison of two sources. Empty names, and those of synthetic images, match all
/// others.
struct ClassNames {
  const std::string& source;
  const std::vector<std::string>& names;
  bool exist() const { return source != "synthetic" && !names.empty(); }
};

/// If a split lacks a class folder, the numbers of all later classes differ.
void check_same_classes(const ClassNames& first, const ClassNames& second) {
  if (!first.exist() || !second.exist() || first.names == second.names) return;
  const auto [in_first, in_second] = std::ranges::mismatch(first.names, second.names);
  const auto name = [](const auto& names, auto at) { return at == names.end() ? "missing" : fmt::format("'{}'", *at); };
  fail(ErrorCode::model_mismatch,
       "the classes of {} and {} differ: class {} is {} in the first and {} in the second; import one again from a "
       "folder with the same class folders as the other, or give the data set of the same classes",
       first.source, second.source, in_first - first.names.begin(), name(first.names, in_first),
       name(second.names, in_second));
}

void check_fit_together(const data::ImageSetInfo& train, const data::ImageSetInfo& validation,
                        const Config::Data& config) {
  const bool has_own_size = config.validation_size > 0;
  require(has_own_size || (train.height == validation.height && train.width == validation.width),
          ErrorCode::model_mismatch,
          "{} has images of {}x{} pixels, but {} has images of {}x{}: set data.image_size={} to resize both",
          train.path, train.width, train.height, validation.path, validation.width, validation.height,
          std::min(train.height, train.width));
  require(train.channels == validation.channels, ErrorCode::model_mismatch,
          "{} has images of {} channel(s), but {} has images of {}: import one of them again with --channels",
          train.path, train.channels, validation.path, validation.channels);
  check_same_classes({train.path, train.class_names}, {validation.path, validation.class_names});
}

const Measure& accuracy_measure() {
  static const Measure accuracy{.key = "accuracy",
                                .unit = "%",
                                .scale = 100,
                                .step_digits = 1,
                                .epoch_digits = 2,
                                .result_digits = 2,
                                .greater_is_better = true,
                                .of = [](const LossSums& sums) { return mean(sums.correct, sums.count); }};
  return accuracy;
}

class ImageClassification final : public Task {
 public:
  explicit ImageClassification(const Config& config) : config_(config) {}
  ImageClassification(const Config& config, std::shared_ptr<const data::ImageSet> train,
                      std::shared_ptr<const data::ImageSet> validation)
      : config_(config), train_set_(std::move(train)), validation_set_(std::move(validation)) {
    check();
  }

  void open_train_set() override {
    require(!config_.data.train.empty(), ErrorCode::config_invalid,
            "{}data.train: expected the path of a data set, or synthetic, found nothing",
            config_.places({"data.train"}));
    train_set_ = open_set(config_, Split::train, configured_channels(config_.data));
    check();
    warn_of_unused_outputs(train_set_->info(), config_.model);
  }
  void open_validation_set() override {
    if (config_.data.validation.empty()) return;
    const int channels = train_set_ ? train_set_->info().channels
                         : adopted_ ? adopted_->description.channels
                                    : configured_channels(config_.data);
    validation_set_ = open_set(config_, Split::validation, channels);
    check();
    if (!train_set_ || train_set_->info().classes != validation_set_->info().classes)
      warn_of_unused_outputs(validation_set_->info(), config_.model);
  }
  std::shared_ptr<const data::Dataset> train_set() const override { return train_set_; }
  std::vector<data::Field> evaluation_fields() const override {
    if (validation_set_) return validation_set_->fields();
    std::vector<data::Field> fields = train_set_->fields();
    const ImageDescription set = description();
    for (data::Field& field : fields)
      if (field.name == data::kImageField && field.packing == data::Packing::fixed)
        field.shape = {set.height, set.width, set.channels};
    return fields;
  }
  std::shared_ptr<const data::Dataset> validation_set() const override { return validation_set_; }
  std::string describe_samples() const override {
    const data::ImageSetInfo& set = train_set_->info();
    return fmt::format("{}x{}x{}, {} classes", set.height, set.width, set.channels, set.classes);
  }

  double nominal_count(std::int64_t n_samples) const override { return static_cast<double>(n_samples); }
  float statistics_momentum() const override { return static_cast<float>(config_.batch_norm.momentum); }

  /// image -> normalised input -> erased in part -> mixed with another -> model -> logits, label -> cross entropy
  graph::ActivationId wire(graph::Graph& graph, const Wiring& wiring) const override {
    const ImageDescription set = description();
    const bool has_regions = wiring.fields.contains(data::kRegionField);
    const graph::ActivationId input = layers::image_input(
        graph,
        {.height = graph.training() ? train_set_->info().height : set.height,
         .width = graph.training() ? train_set_->info().width : set.width,
         .channels = set.channels,
         .mean = set.mean,
         .stddev = set.stddev,
         .crop_padding = augments_by(config_, "crop") ? config_.data.crop_padding : 0,
         .flip = augments_by(config_, "flip"),
         .seed = config_.run.seed,
         .regions = has_regions ? region_limits(wiring.shapes.at(data::kImageField)) : RegionLimits{}},
        wiring.fields.at(data::kImageField), wiring.fields.at(data::kSampleIdField),
        has_regions ? layers::ImageRegionTensors{.regions = wiring.fields.at(data::kRegionField),
                                                 .places = wiring.fields.at(data::kPlaceField)}
                    : layers::ImageRegionTensors{});
    const graph::TensorId labels = wiring.fields.at(data::kLabelField);
    const graph::ActivationId erased =
        layers::random_erase(graph, input, {.probability = config_.data.random_erase, .seed = config_.run.seed},
                             wiring.fields.at(data::kSampleIdField));
    const layers::MixedImages mixed = layers::mix_images(
        graph, erased,
        {.mixup_alpha = config_.data.mixup, .cutmix_alpha = config_.data.cutmix, .seed = config_.run.seed}, labels,
        wiring.fields.at(data::kSampleIdField));
    const graph::ActivationId logits = models::family_of(config_.model.family)
                                           .build(graph, mixed.images, config_.model,
                                                  {.epsilon = static_cast<float>(set.batch_norm_epsilon),
                                                   .synchronize = config_.batch_norm.synchronize,
                                                   .global_batch = wiring.global_batch,
                                                   .n_micro_batches = wiring.n_micro_batches});
    layers::cross_entropy(graph, logits, labels, wiring.sums_offset,
                          {.label_smoothing = static_cast<float>(config_.train.label_smoothing),
                           .class_weights = {config_.train.class_weights.begin(), config_.train.class_weights.end()},
                           .mixed = mixed});
    return logits;
  }

  std::span<const Measure> measures() const override {
    static const Measure measures[] = {loss_measure(), accuracy_measure()};
    return measures;
  }
  const CountUnit& count_unit() const override {
    static const CountUnit unit{.name = "samples", .rate_key = "samples_per_second", .rate_unit = "img/s"};
    return unit;
  }
  const Measure& quality_measure() const override { return accuracy_measure(); }

  std::unique_ptr<Tally> make_tally() const override {
    std::vector<std::string> names = description().class_names;
    if (names.empty() && validation_set_ && validation_set_->info().path != "synthetic")
      names = validation_set_->info().class_names;
    return std::make_unique<ClassTally>(config_.model.classes, names);
  }

  ModelName model_name() const override {
    const Config::Model& m = config_.model;
    return {.file_name = fmt::format("{}{}", m.family, m.depth),
            .title = fmt::format("{}-{}", m.family, m.depth),
            .details = fmt::format("{} stem, {} classes", m.stem, m.classes)};
  }
  nlohmann::ordered_json model_stamp() const override {
    const Config::Model& m = config_.model;
    nlohmann::ordered_json stamp{{"family", m.family}, {"depth", m.depth}, {"stem", m.stem}, {"classes", m.classes}};
    if (m.width != Config::Model{}.width) stamp["width"] = m.width;  // checkpoints of ordinary networks do not change
    return stamp;
  }
  nlohmann::ordered_json inference_stamp() const override { return to_json(description()); }
  std::vector<std::string> adopt(const nlohmann::json& inference, const std::string& source) override {
    ImageDescription recorded = image_description(inference, config_.model.classes, source);
    std::vector<std::string> notes = keep_configured(config_.data, recorded);
    // The validation set is then opened with the size of the checkpoint.
    if (recorded.resize > 0) {
      config_.data.image_size = recorded.height;
      config_.data.validation_size = 0;
      config_.data.validation_resize = recorded.resize;
    }
    adopted_ = {.description = std::move(recorded), .source = source};
    check();
    return notes;
  }
  bool is_head(const std::string& parameter) const override { return parameter.starts_with("fc."); }

 private:
  void check() const {
    if (adopted_) return check_fits_adopted();
    if (train_set_) check_fits_model(train_set_->info(), config_.model);
    if (validation_set_) check_fits_model(validation_set_->info(), config_.model);
    if (train_set_ && validation_set_) check_fit_together(train_set_->info(), validation_set_->info(), config_.data);
  }
  void check_fits_adopted() const {
    if (!validation_set_) return;
    const data::ImageSetInfo& set = validation_set_->info();
    const ImageDescription& input = adopted_->description;
    require(set.classes <= config_.model.classes, ErrorCode::model_mismatch,
            "{} has {} classes, but the model of {} has outputs for {}: give a data set with the classes of the model",
            set.path, set.classes, adopted_->source, config_.model.classes);
    require(set.height == input.height && set.width == input.width, ErrorCode::model_mismatch,
            "{} is of a model for images of {}x{} pixels, but {} has images of {}x{}: set data.image_size={} to resize "
            "them",
            adopted_->source, input.width, input.height, set.path, set.width, set.height, input.height);
    require(set.channels == input.channels, ErrorCode::model_mismatch,
            "{} is of a model for images of {} channel(s), but {} has images of {}: import it again with --channels {}",
            adopted_->source, input.channels, set.path, set.channels, input.channels);
    check_same_classes({adopted_->source, input.class_names}, {set.path, set.class_names});
  }
  ImageDescription description() const {
    return adopted_ ? adopted_->description : describe(config_, train_set_->info());
  }

  struct Adopted {
    ImageDescription description;
    std::string source;  // the file that records it
  };

  Config config_;
  std::optional<Adopted> adopted_;
  std::shared_ptr<const data::ImageSet> train_set_, validation_set_;
};

}  // namespace

std::unique_ptr<Task> make_image_classification(const Config& config) {
  return std::make_unique<ImageClassification>(config);
}

std::unique_ptr<Task> make_image_classification(const Config& config, std::shared_ptr<const data::ImageSet> train,
                                                std::shared_ptr<const data::ImageSet> validation) {
  return std::make_unique<ImageClassification>(config, std::move(train), std::move(validation));
}

}  // namespace lockstep::tasks
