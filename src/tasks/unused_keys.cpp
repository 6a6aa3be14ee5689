#include "tasks/unused_keys.h"

#include <span>

#include "lockstep/error.h"
#include "models/family.h"

namespace lockstep::tasks {
namespace {

struct Row {
  const char* key;
  bool (*is_set)(const Config& config);
};

const Config& defaults() {
  static const Config config;
  return config;
}

// A key's name is the path of its member.
// clang-format off
#define KEY(path) {#path, [](const Config& c) { return c.path != defaults().path; }}
// clang-format on

constexpr Row kOfImages[] = {
    KEY(model.depth),
    KEY(model.stem),
    KEY(model.width),
    KEY(model.classes),
    KEY(model.zero_gamma),
    KEY(data.augment),
    KEY(data.crop_padding),
    KEY(data.mean),
    KEY(data.std),
    KEY(data.mixup),
    KEY(data.cutmix),
    KEY(data.random_erase),
    KEY(data.color_jitter),
    KEY(data.validation_size),
    KEY(data.image_size),
    KEY(data.balance),
    KEY(data.validation_resize),
    KEY(train.label_smoothing),
    KEY(train.class_weights),
    KEY(batch_norm.synchronize),
    KEY(batch_norm.momentum),
    KEY(batch_norm.epsilon),
};
constexpr Row kOfText[] = {
    KEY(model.from),
    KEY(model.config),
    KEY(model.recompute),
    KEY(model.base_precision),
    KEY(model.lora.rank),
    KEY(model.ignore_keys),
    KEY(model.license),
    KEY(data.pack),
    KEY(data.cross_documents),
    KEY(data.sequence_length),
    KEY(checkpoint.max_shard_size),
    KEY(evaluation.generate),
    KEY(evaluation.generate_tokens),
};

#undef KEY

}  // namespace

void check_unused_keys(const Config& config) {
  const bool is_text = models::is_language_model(config.model.family);
  for (const Row& row : is_text ? std::span<const Row>(kOfImages) : std::span<const Row>(kOfText))
    require(!row.is_set(config), ErrorCode::config_conflict,
            "{}{} is for {}, and has no effect with model.family={}: remove it{}", config.places({row.key}), row.key,
            is_text ? "networks that classify images" : "language models", config.model.family,
            is_text ? "" : ", or set model.family=llama");
}

}  // namespace lockstep::tasks
