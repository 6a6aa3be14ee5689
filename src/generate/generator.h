// Generates replies to prompts: greedily, by sampling, or by beam search. Prompts are processed concurrently as far as
// the cache has room; when the replies to one are complete, the next prompt takes its place. A reply does not depend on
// the others: random numbers are functions of (seed, prompt, reply, position). The model draws tokens itself, some
// steps ahead of the generator, which ignores what a reply would have had after its end. Beam search reads the logits.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "generate/beam_search.h"
#include "generate/language_model.h"
#include "generate/reply_text.h"

namespace lockstep::generate {

struct GeneratorOptions {
  SamplingOptions sampling{};
  std::int64_t beams = 1;     // 1: no beam search
  double length_penalty = 1;  // of beams
  std::int64_t replies = 1;   // to each prompt; of beams, the best ones
  std::int64_t max_new_tokens = 128;
  std::uint32_t seed = 1;
  std::vector<std::int32_t> end_tokens{};  // end a reply, and are not part of its text
  std::vector<std::string> stop_words{};   // the same, as text
  /// Whether the text of a reply continues that of its prompt. If not, it is that of its tokens alone, so that a
  /// decoder may strip its leading space.
  bool continues_prompt = true;

  /// Sequences of one prompt that are in the cache.
  std::int64_t group() const { return beams > 1 ? beams : replies; }
};

struct Prompt {
  std::uint32_t number = 0;       // in the job, of all ranks: for random numbers
  std::vector<std::int32_t> ids;  // not empty, and shorter than the capacity of the model
};

struct Reply {
  std::string text;
  std::vector<std::int32_t> tokens;  // including the end token
  std::vector<float> log_probabilities;
  bool is_complete = true;  // goes_on has not ended it
};

/// What happens while replies are generated. Any of the functions may be empty.
struct GeneratorEvents {
  /// Passes on a part of the text of a reply to prompts[prompt], in whole characters; with beams, the whole text at the
  /// end.
  std::function<void(std::size_t prompt, std::size_t reply, const std::string& text)> text;
  /// All replies to prompts[prompt] are complete.
  std::function<void(std::size_t prompt, const std::vector<Reply>& replies)> done;
  /// Called before each step of the model. If it returns false, generation ends with the replies so far, of
  /// beams with none.
  std::function<bool()> goes_on;
};

/// What the model has done since the generator was made.
struct GeneratorTimes {
  std::int64_t prompt_tokens = 0, steps = 0, new_tokens = 0;  // new_tokens: of the steps of decoding
  double prefill_seconds = 0, decode_seconds = 0;
};

class Generator {
 public:
  /// The model must outlive it, and have at least options.group() slots. `decode`: the text of tokens.
  Generator(LanguageModel& model, Decode decode, GeneratorOptions options);
  ~Generator();

  /// The replies to each prompt, in the order of the prompts.
  std::vector<std::vector<Reply>> generate(std::span<const Prompt> prompts, const GeneratorEvents& events = {});
  /// From now on, the cache is kept between prompts: of a prompt that begins like the previous one with its reply, only
  /// the part after the common beginning is added. This is for conversations. The model must have one slot.
  void keep_cache() { keeps_cache_ = true; }
  const GeneratorTimes& times() const { return times_; }

 private:
  struct Sequence;
  struct Group;

  void admit(std::span<const Prompt> prompts, const GeneratorEvents& events);
  void prefill(std::span<Group* const> groups, const GeneratorEvents& events);
  void step_beams();
  /// Queues steps, waits for the oldest one, and adds its tokens to the replies.
  void step(const GeneratorEvents& events);
  void begin_steps();
  void read_step(const GeneratorEvents& events);
  void add_token(Group& group, Sequence& sequence, const Choice& choice, const GeneratorEvents& events);
  DrawnSequence drawn(const Group& group, const Sequence& sequence) const;
  void search(Group& group, std::span<const float> logits);
  void finish(Group& group, const GeneratorEvents& events);
  ReplyText text_after(const Prompt& prompt) const;

  LanguageModel& model_;
  Decode decode_;
  GeneratorOptions options_;
  GeneratorTimes times_;
  bool keeps_cache_ = false;
  std::vector<std::int32_t> cached_;  // keeps_cache_: the tokens in slot 0
  std::vector<std::int32_t> free_slots_;
  std::vector<std::unique_ptr<Group>> groups_;  // being worked on
  // In the order of the tokens of a step; null once finished. Empty: steps must begin.
  std::vector<std::pair<Group*, Sequence*>> stepping_;
  int n_queued_ = 0;  // steps that are not read
  std::size_t next_prompt_ = 0;
  std::vector<std::vector<Reply>> results_;
};

}  // namespace lockstep::generate
