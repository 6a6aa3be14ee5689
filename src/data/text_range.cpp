#include "data/text_range.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "lockstep/error.h"
#include "text/conversation_encoder.h"

namespace lockstep::data {
namespace {

/// Widens ids that were read into the last bytes of `ids`. No id is overwritten before it is read, since ids never
/// become shorter.
template <typename Stored>
void widen(std::span<std::int32_t> ids) {
  const auto* stored = reinterpret_cast<const std::byte*>(ids.data() + ids.size()) - ids.size() * sizeof(Stored);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    Stored id;
    std::memcpy(&id, stored + i * sizeof id, sizeof id);
    ids[i] = static_cast<std::int32_t>(id);
  }
}

}  // namespace

TextRange::TextRange(const std::string& path, std::int64_t first, std::int64_t end)
    : file_(path), layout_(open_text_file(file_)), first_(first) {
  const std::int64_t n = layout_.n_documents, last = end == 0 ? n : end;
  require(first >= 0 && first < last && last <= n, ErrorCode::data_range,
          "data.start={} and data.end={} are not a range of the {} documents of {}", first, end, n, path);
  check_documents(file_, layout_);
  documents_ = read_documents(file_, layout_, first, last - first + 1);
  if (!layout_.has_answers()) return;
  check_answers(file_, layout_);
  answers_ = read_answers(file_, layout_, {documents_.front(), documents_.back()});
}

std::span<const TokenRange> TextRange::answers_in(const TokenRange& tokens) const {
  const auto first = std::ranges::upper_bound(answers_, tokens.begin, {}, &TokenRange::end);
  const auto last = std::ranges::lower_bound(first, answers_.end(), tokens.end, {}, &TokenRange::begin);
  return {first, last};
}

void TextRange::read_tokens(std::uint64_t begin, std::span<std::int32_t> ids) const {
  const auto width = static_cast<std::size_t>(layout_.token_bytes);
  const auto bytes = std::as_writable_bytes(ids).last(ids.size() * width);
  const std::uint64_t offset = layout_.tokens.offset + begin * width;
  if (const ReadOutcome outcome = file_.try_read(offset, bytes); outcome != ReadOutcome::complete)
    file_.fail_read(outcome, errno, offset, bytes.size(),
                    fmt::format("tokens {} to {}", begin, begin + ids.size() - 1));
  if (width == 2) widen<std::uint16_t>(ids);
  const int vocabulary_size = layout_.description.vocabulary_size;
  const auto is_outside = [&](std::int32_t id) {
    return static_cast<std::uint32_t>(id) >= static_cast<std::uint32_t>(vocabulary_size);
  };
  const auto bad = std::ranges::find_if(ids, is_outside);
  require(bad == ids.end(), ErrorCode::data_damaged,
          "{}: token {} has the id {}, but the vocabulary has {} tokens (0 to {})", file_.path(),
          begin + static_cast<std::uint64_t>(bad - ids.begin()),
          bad == ids.end() ? 0 : static_cast<std::uint32_t>(*bad), vocabulary_size, vocabulary_size - 1);
}

Conversation TextRange::conversation(std::int64_t i) const {
  require(i >= 0 && i < n_documents(), ErrorCode::internal, "{} has no conversation {}", file_.path(), i);
  const TokenRange document = this->document(static_cast<std::size_t>(i));
  Conversation out;
  out.tokens.resize(document.end - document.begin);
  read_tokens(document.begin, out.tokens);
  for (const TokenRange& answer : answers_in(document))
    out.answers.emplace_back(static_cast<std::int64_t>(answer.begin - document.begin),
                             static_cast<std::int64_t>(answer.end - document.begin));
  return out;
}

std::optional<std::int32_t> TextRange::answer_end(const text::Tokenizer& tokenizer) const {
  const TextDescription& of = layout_.description;
  if (of.chat_template.empty()) return std::nullopt;
  try {
    return text::answer_end(text::ChatTemplate(of.chat_template, of.chat_template_source, of.special_tokens),
                            tokenizer);
  } catch (const Error&) {  // one of another program or release, of which training needs only the tokens
    return std::nullopt;
  }
}

}  // namespace lockstep::data
