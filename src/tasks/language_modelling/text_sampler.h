// The samples of text that evaluations write while a language model is trained (evaluation.generate): the most probable
// reply to each of a few prompts. The decoder reads the weights of the replica. Its cache and activations are in the
// replica's memory for activations, which is free between steps, so samples need extra memory only if they need more
// than a step.
//
// A reply does not depend on which rank generates it, or with which others.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "generate/decoder.h"
#include "generate/generator.h"
#include "models/llama.h"

namespace lockstep::tasks {

struct SamplePrompts {
  std::vector<std::string> texts;                 // as the user wrote them; empty: no samples are written
  std::vector<std::vector<std::int32_t>> ids{};   // what the model sees
  std::int64_t max_new_tokens = 0, capacity = 0;  // capacity: tokens of the longest prompt with its reply
  std::vector<std::int32_t> end_tokens{};
};

class TextSampler {
 public:
  struct Model {
    const models::LlamaConfig& config;
    models::LlamaOptions options{};
    std::int64_t positions = 0;  // of the table of rotary positions that the graphs share
    DType dtype = DType::fp32;
    bool tf32 = false;
  };
  /// `table`: of graphs of this model that are planned. Backend and table must outlive it.
  TextSampler(const Model& model, SamplePrompts prompts, generate::Decode decode, Backend& backend,
              graph::ParameterTable& table);

  std::size_t activation_bytes() const;  // with the cache
  std::size_t workspace_bytes() const { return decoder_.memory().workspace; }
  /// `bindings`: those of the graphs that are trained. Their memory for activations and their workspace have at least
  /// these sizes.
  void bind(const graph::Bindings& bindings);

  const std::vector<std::string>& prompts() const { return prompts_.texts; }
  /// The replies to the prompts with these numbers. Must not be called during a step; the weights must be up to date.
  /// `goes_on` is called before each step of the decoder; if it returns false, the replies end there.
  std::vector<std::string> generate(std::span<const std::size_t> numbers, const std::function<bool()>& goes_on);

 private:
  SamplePrompts prompts_;
  generate::Decode decode_;
  generate::Decoder decoder_;
};

}  // namespace lockstep::tasks
