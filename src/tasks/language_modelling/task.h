// Language modelling: windows of tokens; a decoder predicts each token from those before it. The measures are loss and
// perplexity.
#pragma once

#include <memory>

#include "data/text_set.h"
#include "tasks/task.h"

namespace lockstep::tasks {

std::unique_ptr<Task> make_language_modelling(const Config& config);
/// With given sets; `validation` may be null. Throws if they do not fit the model.
std::unique_ptr<Task> make_language_modelling(const Config& config, std::shared_ptr<const data::TextSet> train,
                                              std::shared_ptr<const data::TextSet> validation);

}  // namespace lockstep::tasks
