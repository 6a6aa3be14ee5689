#include "generate/generator.h"

#include <algorithm>

#include "base/clock.h"
#include "lockstep/error.h"

namespace lockstep::generate {

struct Generator::Sequence {
  std::int32_t slot = 0;
  std::int32_t reply_number = 0;
  std::int32_t next = 0;  // the token that the next step adds
  bool is_finished = false;
  Reply reply{};
  ReplyText text;
};

/// The sequences of one prompt: its replies, or its beams.
struct Generator::Group {
  std::size_t index = 0;  // of the prompt in the call to generate()
  const Prompt* prompt = nullptr;
  std::vector<Sequence> sequences{};
  std::unique_ptr<BeamSearch> beams{};
  std::int64_t n_generated = 0;  // tokens of each beam
  std::int64_t limit = 0;        // tokens of a sequence at most
  bool is_finished = false;

  std::int32_t next_position() const {
    return static_cast<std::int32_t>(prompt->ids.size()) + static_cast<std::int32_t>(n_generated) - 1;
  }
};

Generator::Generator(LanguageModel& model, Decode decode, GeneratorOptions options)
    : model_(model), decode_(std::move(decode)), options_(std::move(options)) {
  require(options_.group() > 0 && options_.group() <= model.n_slots() && options_.max_new_tokens > 0,
          ErrorCode::internal, "{} sequences of a prompt in a cache for {}, with up to {} new tokens", options_.group(),
          model.n_slots(), options_.max_new_tokens);
}

Generator::~Generator() = default;

std::vector<std::vector<Reply>> Generator::generate(std::span<const Prompt> prompts, const GeneratorEvents& events) {
  results_.assign(prompts.size(), {});
  groups_.clear();
  free_slots_.clear();
  for (auto slot = static_cast<std::int32_t>(model_.n_slots()); slot-- > 0;) free_slots_.push_back(slot);
  next_prompt_ = 0;
  n_queued_ = 0;
  stepping_.clear();
  model_.set_sampling({options_.sampling, options_.seed});
  while (next_prompt_ < prompts.size() || !groups_.empty()) {
    if (events.goes_on && !events.goes_on()) break;
    admit(prompts, events);
    if (options_.beams > 1)
      step_beams();
    else
      step(events);
    for (const auto& group : groups_)
      if (group->is_finished) finish(*group, events);
    std::erase_if(groups_, [](const auto& group) { return group->is_finished; });
  }
  for (const auto& group : groups_) finish(*group, events);  // only if generation was interrupted
  groups_.clear();
  return std::move(results_);
}

void Generator::admit(std::span<const Prompt> prompts, const GeneratorEvents& events) {
  std::vector<Group*> admitted;
  const auto n = static_cast<std::size_t>(options_.group());
  if (next_prompt_ < prompts.size() && free_slots_.size() >= n) {
    while (n_queued_ > 0) read_step(events);
    stepping_.clear();
  }
  while (next_prompt_ < prompts.size() && free_slots_.size() >= n) {
    const Prompt& prompt = prompts[next_prompt_];
    const auto length = static_cast<std::int64_t>(prompt.ids.size());
    require(length > 0 && length < model_.capacity(), ErrorCode::internal, "a prompt of {} tokens in a cache for {}",
            length, model_.capacity());
    auto group = std::make_unique<Group>();
    group->index = next_prompt_++;
    group->prompt = &prompt;
    // The last token of a reply is not added to the cache.
    group->limit = std::min(options_.max_new_tokens, model_.capacity() - length + 1);
    for (std::size_t i = 0; i < n; ++i) {
      group->sequences.push_back(
          {.slot = free_slots_.back(), .reply_number = static_cast<std::int32_t>(i), .text = text_after(prompt)});
      free_slots_.pop_back();
    }
    if (options_.beams > 1) {
      std::function<bool(std::span<const std::int32_t>)> stops;
      if (!options_.stop_words.empty())
        stops = [this, &prompt](std::span<const std::int32_t> tokens) {
          ReplyText text = text_after(prompt);
          for (const std::int32_t token : tokens) text.add(token);
          return text.is_stopped();
        };
      group->beams =
          std::make_unique<BeamSearch>(BeamOptions{.beams = options_.beams,
                                                   .length_penalty = options_.length_penalty,
                                                   .repetition_penalty = options_.sampling.repetition_penalty,
                                                   .max_new_tokens = group->limit,
                                                   .end_tokens = options_.end_tokens},
                                       prompt.ids, std::move(stops));
    }
    admitted.push_back(group.get());
    groups_.push_back(std::move(group));
  }
  if (!admitted.empty()) prefill(admitted, events);
}

/// The prompt is added to the first slot of a group, and the others read it there.
void Generator::prefill(std::span<Group* const> groups, const GeneratorEvents& events) {
  std::vector<NewToken> tokens;
  for (const Group* group : groups) {
    const std::vector<std::int32_t>& ids = group->prompt->ids;
    std::size_t n_known = 0;
    if (keeps_cache_) {
      while (n_known + 1 < ids.size() && n_known < cached_.size() && cached_[n_known] == ids[n_known]) ++n_known;
      cached_ = ids;
    }
    const std::int32_t slot = group->sequences.front().slot;
    for (std::size_t i = n_known; i < ids.size(); ++i)
      tokens.push_back(
          {.id = ids[i], .slot = slot, .position = static_cast<std::int32_t>(i), .wants_logits = i + 1 == ids.size()});
    if (group->sequences.size() == 1) continue;
    const std::span<std::int32_t> indirection = model_.cache_indirection();
    for (const Sequence& sequence : group->sequences)
      std::ranges::fill(indirection.subspan(static_cast<std::size_t>(sequence.slot * model_.capacity()), ids.size()),
                        slot);
  }
  const auto vocabulary = static_cast<std::size_t>(model_.vocabulary());
  const auto timed = [&](const auto& work) {
    const Clock::time_point begin = Clock::now();
    const auto result = work();
    times_.prefill_seconds += seconds_since(begin);
    times_.prompt_tokens += std::ssize(tokens);
    return result;
  };
  if (options_.beams > 1) {
    const std::span<const float> logits = timed([&] { return model_.prefill(tokens); });
    for (std::size_t g = 0; g < groups.size(); ++g) {
      const std::span<const float> row = logits.subspan(g * vocabulary, vocabulary);
      std::vector<float> of_each;
      for (std::size_t i = 0; i < groups[g]->sequences.size(); ++i)
        of_each.insert(of_each.end(), row.begin(), row.end());
      search(*groups[g], of_each);
    }
    return;
  }
  std::vector<DrawnSequence> all;
  for (std::size_t g = 0; g < groups.size(); ++g)
    for (const Sequence& sequence : groups[g]->sequences) {
      all.push_back(drawn(*groups[g], sequence));
      all.back().logits = static_cast<std::int32_t>(g);
    }
  const std::vector<Choice> choices = timed([&] { return model_.prefill(tokens, all); });
  auto choice = choices.begin();
  for (Group* group : groups)
    for (Sequence& sequence : group->sequences) add_token(*group, sequence, *choice++, events);
}

void Generator::step_beams() {
  std::vector<NewToken> tokens;
  for (const auto& group : groups_) {
    if (group->is_finished) continue;
    for (const Sequence& sequence : group->sequences)
      tokens.push_back({.id = sequence.next, .slot = sequence.slot, .position = group->next_position()});
  }
  if (tokens.empty()) return;
  const Clock::time_point begin = Clock::now();
  const std::span<const float> logits = model_.decode(tokens);
  times_.decode_seconds += seconds_since(begin);
  times_.new_tokens += std::ssize(tokens);
  ++times_.steps;
  const auto of_group = static_cast<std::size_t>(options_.beams * model_.vocabulary());
  std::size_t first = 0;
  for (const auto& group : groups_)
    if (!group->is_finished) search(*group, logits.subspan(of_group * first++, of_group));
}

void Generator::begin_steps() {
  std::vector<DrawnSequence> all;
  for (const auto& group : groups_)
    for (Sequence& sequence : group->sequences) {
      if (sequence.is_finished) continue;
      stepping_.emplace_back(group.get(), &sequence);
      all.push_back(drawn(*group, sequence));
    }
  if (!all.empty()) model_.begin_steps(all);
}

void Generator::step(const GeneratorEvents& events) {
  const Clock::time_point begin = Clock::now();
  if (stepping_.empty()) begin_steps();
  std::int64_t n_useful = 0;  // steps until all replies have their full length
  for (const auto& [group, sequence] : stepping_)
    if (sequence != nullptr) n_useful = std::max(n_useful, group->limit - std::ssize(sequence->reply.tokens));
  // Where a step runs while it is queued, none runs in vain.
  while (n_queued_ < std::min<std::int64_t>(n_useful, LanguageModel::kMostQueued) &&
         (n_queued_ == 0 || !model_.has_result())) {
    model_.queue_step();
    ++n_queued_;
  }
  times_.decode_seconds += seconds_since(begin);
  if (n_queued_ > 0) read_step(events);
}

void Generator::read_step(const GeneratorEvents& events) {
  const Clock::time_point begin = Clock::now();
  const std::span<const Choice> choices = model_.read_step();
  --n_queued_;
  times_.decode_seconds += seconds_since(begin);
  ++times_.steps;
  for (std::size_t i = 0; i < stepping_.size(); ++i) {
    const auto [group, sequence] = stepping_[i];
    if (sequence == nullptr) continue;
    if (keeps_cache_) cached_.push_back(sequence->next);
    ++times_.new_tokens;
    add_token(*group, *sequence, choices[i], events);
    if (sequence->is_finished) stepping_[i] = {};  // its group may be destroyed before the queued steps are read
  }
}

DrawnSequence Generator::drawn(const Group& group, const Sequence& sequence) const {
  const std::vector<std::int32_t>& reply = sequence.reply.tokens;
  DrawnSequence out{.slot = sequence.slot,
                    .prompt = group.prompt->number,
                    .reply = static_cast<std::uint32_t>(sequence.reply_number),
                    .n_drawn = static_cast<std::uint32_t>(reply.size()),
                    .id = sequence.next,
                    .position = static_cast<std::int32_t>(group.prompt->ids.size() + reply.size()) - 1};
  if (options_.sampling.repetition_penalty == 1) return out;
  out.occurred = group.prompt->ids;
  out.occurred.insert(out.occurred.end(), reply.begin(), reply.end());
  return out;
}

ReplyText Generator::text_after(const Prompt& prompt) const {
  return {decode_, options_.continues_prompt ? std::span(prompt.ids) : std::span<const std::int32_t>(),
          options_.stop_words};
}

void Generator::add_token(Group& group, Sequence& sequence, const Choice& choice, const GeneratorEvents& events) {
  require(choice.id >= 0, ErrorCode::not_supported,
          "the outputs of the model are not finite: use another checkpoint, or precision=fp32");
  Reply& reply = sequence.reply;
  reply.tokens.push_back(choice.id);
  reply.log_probabilities.push_back(choice.log_probability);
  sequence.next = choice.id;
  const bool is_end = std::ranges::find(options_.end_tokens, choice.id) != options_.end_tokens.end();
  std::string shown = is_end ? std::string() : sequence.text.add(choice.id);
  sequence.is_finished = is_end || sequence.text.is_stopped() || std::ssize(reply.tokens) >= group.limit;
  if (sequence.is_finished) shown += sequence.text.finish();
  if (events.text && !shown.empty()) events.text(group.index, static_cast<std::size_t>(sequence.reply_number), shown);
  group.is_finished = std::ranges::all_of(group.sequences, [](const Sequence& s) { return s.is_finished; });
}

/// Determines the beams of the next step, and where they find keys and values: at each position in the same slot as
/// their parents.
void Generator::search(Group& group, std::span<const float> logits) {
  ++group.n_generated;
  const std::vector<BeamSearch::Move> moves = group.beams->step(logits);
  group.is_finished = moves.empty();
  if (group.is_finished) return;
  const auto capacity = static_cast<std::size_t>(model_.capacity());
  const std::size_t n_tokens = group.prompt->ids.size() + static_cast<std::size_t>(group.n_generated) - 1;
  const std::span<std::int32_t> indirection = model_.cache_indirection();
  const auto row = [&](const Sequence& sequence) {
    return indirection.subspan(static_cast<std::size_t>(sequence.slot) * capacity, n_tokens);
  };
  std::vector<std::vector<std::int32_t>> before;
  for (const Sequence& sequence : group.sequences) before.emplace_back(row(sequence).begin(), row(sequence).end());
  for (std::size_t i = 0; i < moves.size(); ++i) {
    group.sequences[i].next = moves[i].token;
    std::ranges::copy(before[static_cast<std::size_t>(moves[i].parent)], row(group.sequences[i]).begin());
  }
}

void Generator::finish(Group& group, const GeneratorEvents& events) {
  std::vector<Reply>& replies = results_[group.index];
  for (Sequence& sequence : group.sequences) {
    free_slots_.push_back(sequence.slot);
    if (group.beams) continue;
    if (const std::string rest = sequence.text.finish(); !rest.empty() && events.text)
      events.text(group.index, static_cast<std::size_t>(sequence.reply_number), rest);
    sequence.reply.text = sequence.text.text();
    sequence.reply.is_complete = sequence.is_finished;
    replies.push_back(std::move(sequence.reply));
  }
  if (group.beams && group.is_finished) {
    for (Hypothesis& found : group.beams->replies()) {
      if (std::ssize(replies) == options_.replies) break;
      ReplyText text = text_after(*group.prompt);
      for (const std::int32_t token : found.tokens)
        if (std::ranges::find(options_.end_tokens, token) == options_.end_tokens.end()) text.add(token);
      text.finish();
      if (events.text) events.text(group.index, replies.size(), text.text());
      replies.push_back({.text = text.text(),
                         .tokens = std::move(found.tokens),
                         .log_probabilities = std::move(found.log_probabilities)});
    }
  }
  group.is_finished = true;
  if (events.done) events.done(group.index, replies);
}

}  // namespace lockstep::generate
