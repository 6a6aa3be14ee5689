#include "tasks/language_modelling/text_sampler.h"

#include <algorithm>
#include <utility>

#include "graph/memory_plan.h"

namespace lockstep::tasks {
namespace {

constexpr std::int64_t kMostSlots = 8;  // prompts that are generated at the same time
constexpr std::int64_t kChunk = 64;     // tokens per prefill step; small because prompts are short

/// Independent of the number of ranks, so that all ranks run the same graphs.
generate::DecoderSizes sizes_of(const SamplePrompts& prompts) {
  return {.slots = std::min(kMostSlots, static_cast<std::int64_t>(prompts.texts.size())),
          .capacity = prompts.capacity,
          .chunk = kChunk};
}

}  // namespace

TextSampler::TextSampler(const Model& model, SamplePrompts prompts, generate::Decode decode,
                         std::shared_ptr<const Questions> questions, Backend& backend, graph::ParameterTable& table)
    : prompts_(std::move(prompts)), decode_(std::move(decode)), questions_(std::move(questions)) {
  const auto make = [&](generate::DecoderSizes sizes) {
    sizes.positions = model.positions;
    return std::make_unique<generate::Decoder>(model.config, sizes, model.dtype, model.tf32, backend, table,
                                               model.options);
  };
  if (!prompts_.texts.empty()) decoder_ = make(sizes_of(prompts_));
  if (!questions_) return;
  backend.fix_algorithms(true);  // as in `lockstep evaluate`, so that the answers have the same bits
  answering_ = make(questions_->decoder_sizes());
  backend.fix_algorithms(false);
}

std::size_t TextSampler::activation_bytes() const {
  std::size_t most = 0;
  for (const auto* decoder : {decoder_.get(), answering_.get()})
    if (decoder != nullptr)
      most = std::max(most, graph::aligned(decoder->memory().activations) + decoder->memory().cache);
  return most;
}

std::size_t TextSampler::workspace_bytes() const {
  std::size_t most = 0;
  for (const auto* decoder : {decoder_.get(), answering_.get()})
    if (decoder != nullptr) most = std::max(most, decoder->memory().workspace);
  return most;
}

void TextSampler::bind(const graph::Bindings& bindings) {
  for (auto* decoder : {decoder_.get(), answering_.get()}) {
    if (decoder == nullptr) continue;
    graph::Bindings lent = bindings;
    lent.cache = bindings.activations + graph::aligned(decoder->memory().activations);
    decoder->bind(lent);
  }
}

generate::Decoder& TextSampler::answering_decoder() {
  answering_->reset();
  return *answering_;
}

std::vector<std::string> TextSampler::generate(std::span<const std::size_t> numbers,
                                               const std::function<bool()>& goes_on) {
  std::vector<generate::Prompt> prompts;
  for (const std::size_t number : numbers)
    prompts.push_back({.number = static_cast<std::uint32_t>(number), .ids = prompts_.ids[number]});
  decoder_->reset();
  generate::Generator generator(*decoder_, decode_,
                                {.max_new_tokens = prompts_.max_new_tokens, .end_tokens = prompts_.end_tokens});
  std::vector<std::string> replies;
  for (const std::vector<generate::Reply>& of_prompt :
       generator.generate(prompts, {.text = {}, .done = {}, .goes_on = goes_on}))
    replies.push_back(of_prompt.empty() ? "" : of_prompt.front().text);
  return replies;
}

}  // namespace lockstep::tasks
