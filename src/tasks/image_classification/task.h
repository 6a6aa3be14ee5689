// Image classification: batches of labelled images, cross entropy over classes, and the accuracy that is reported.
#pragma once

#include <memory>

#include "data/image_set.h"
#include "tasks/task.h"

namespace lockstep::tasks {

std::unique_ptr<Task> make_image_classification(const Config& config);
/// On sets that are already open; `validation` may be null. Throws if they do not fit the model or each other.
std::unique_ptr<Task> make_image_classification(const Config& config, std::shared_ptr<const data::ImageSet> train,
                                                std::shared_ptr<const data::ImageSet> validation);

}  // namespace lockstep::tasks
