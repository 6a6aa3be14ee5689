#include "generate/reply_text.h"

#include <algorithm>

namespace lockstep::generate {
namespace {

constexpr std::size_t kContext = 6;  // tokens of the prompt
constexpr std::string_view kReplacement = "\xef\xbf\xbd";
/// A character has at most 4 bytes. If a U+FFFD remains after more tokens than that, it is not the beginning of a
/// character.
constexpr std::size_t kMaxTokensOfCharacter = 4;

}  // namespace

ReplyText::ReplyText(Decode decode, std::span<const std::int32_t> prompt, std::vector<std::string> stop_words)
    : decode_(std::move(decode)), stop_words_(std::move(stop_words)) {
  const std::span<const std::int32_t> context = prompt.last(std::min(prompt.size(), kContext));
  tokens_.assign(context.begin(), context.end());
  decoded_ = tokens_.size();
  std::erase_if(stop_words_, [](const std::string& word) { return word.empty(); });
}

std::string ReplyText::add(std::int32_t token) {
  if (is_stopped_) return {};
  tokens_.push_back(token);
  const std::span<const std::int32_t> all(tokens_);
  const std::string before = decode_(all.subspan(begin_, decoded_ - begin_)), with = decode_(all.subspan(begin_));
  const bool may_go_on = with.ends_with(kReplacement) && tokens_.size() - decoded_ < kMaxTokensOfCharacter;
  if (may_go_on || with.size() <= before.size()) return {};
  begin_ = decoded_;
  decoded_ = tokens_.size();
  return release(std::string_view(with).substr(before.size()), /*is_last=*/false);
}

std::string ReplyText::finish() {
  if (is_stopped_) return {};
  const std::span<const std::int32_t> all(tokens_);
  const std::string before = decode_(all.subspan(begin_, decoded_ - begin_)), with = decode_(all.subspan(begin_));
  decoded_ = tokens_.size();
  return release(with.size() > before.size() ? std::string_view(with).substr(before.size()) : std::string_view(),
                 /*is_last=*/true);
}

std::string ReplyText::release(std::string_view decoded, bool is_last) {
  held_ += decoded;
  std::size_t stop = std::string::npos;
  for (const std::string& word : stop_words_) stop = std::min(stop, held_.find(word));
  std::size_t n_kept = 0;
  if (stop != std::string::npos) {
    is_stopped_ = true;
  } else if (!is_last) {
    for (const std::string& word : stop_words_)
      for (std::size_t n = std::min(word.size() - 1, held_.size()); n > n_kept; --n)
        if (std::string_view(held_).ends_with(std::string_view(word).substr(0, n))) n_kept = n;
  }
  std::string shown = held_.substr(0, is_stopped_ ? stop : held_.size() - n_kept);
  held_ = is_stopped_ ? std::string() : held_.substr(shown.size());
  text_ += shown;
  return shown;
}

}  // namespace lockstep::generate
