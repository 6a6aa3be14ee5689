// What evaluations generate while a language model is trained: the most probable reply to each of a few prompts
// (evaluation.generate), and answers to conversations (evaluation.answers). Each has a decoder, which reads the weights
// of the replica. Its cache and activations are in the replica's memory for activations, which is free between steps,
// so it needs extra memory only if it needs more than a step.
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
#include "tasks/language_modelling/answers.h"

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
  /// `table`: of graphs of this model that are planned. Backend and table must outlive it. `questions` may be null.
  TextSampler(const Model& model, SamplePrompts prompts, generate::Decode decode,
              std::shared_ptr<const Questions> questions, Backend& backend, graph::ParameterTable& table);

  std::size_t activation_bytes() const;  // with the cache
  std::size_t workspace_bytes() const;
  /// `bindings`: those of the graphs that are trained. Their memory for activations and their workspace have at least
  /// these sizes.
  void bind(const graph::Bindings& bindings);

  const std::vector<std::string>& prompts() const { return prompts_.texts; }
  /// The replies to the prompts with these numbers. Must not be called during a step; the weights must be up to date.
  /// `goes_on` is called before each step of the decoder; if it returns false, the replies end there.
  std::vector<std::string> generate(std::span<const std::size_t> numbers, const std::function<bool()>& goes_on);

  /// The conversations of evaluation.answers, or null, and what generates their answers, under the same conditions.
  const Questions* questions() const { return questions_.get(); }
  generate::Decoder& answering_decoder();

 private:
  SamplePrompts prompts_;
  generate::Decode decode_;
  std::shared_ptr<const Questions> questions_;
  std::unique_ptr<generate::Decoder> decoder_, answering_;  // null: there are no prompts, or no questions
};

}  // namespace lockstep::tasks
