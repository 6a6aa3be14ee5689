#include "text/multiple_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/json.h"
#include "lockstep/error.h"
#include "text/jinja.h"

namespace lockstep::text {
namespace {

using Json = nlohmann::json;

constexpr const char* kExpected =
    "expected {\"context\": TEXT, \"choices\": [TEXT, ...], \"answer\": NUMBER}, or the members of HellaSwag, ARC or "
    "PIQA";

void replace_all(std::string& text, std::string_view what, std::string_view by) {
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + by.size()))
    text.replace(at, what.size(), by);
}

/// re.sub("\[.*?\]", "", text): a dot does not match the end of a line.
std::string without_brackets(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::size_t close = text[i] == '[' ? text.find_first_of("]\n", i) : std::string_view::npos;
    if (close != std::string_view::npos && text[close] == ']')
      i = close;
    else
      out += text[i];
  }
  return out;
}

// -------------------------------------------------------------------------------------------------- the lines

class Line {
 public:
  Line(const Json& object, const std::string& place) : object_(object), place_(place) {}

  bool has(const char* key) const { return object_.contains(key); }

  std::string text(const char* key) const { return text_of(at(key), key); }
  std::string text_of(const Json& value, const std::string& name) const {
    require(value.is_string(), ErrorCode::data_source, "{}: {}: expected a text, found {}", place_, name, shown(value));
    return value.get<std::string>();
  }
  std::vector<std::string> texts(const Json& list, const std::string& name) const {
    require(list.is_array() && !list.empty(), ErrorCode::data_source, "{}: {}: expected a list of texts, found {}",
            place_, name, shown(list));
    std::vector<std::string> out;
    for (const Json& value : list) out.push_back(text_of(value, name));
    return out;
  }
  const Json& at(const char* key) const {
    const auto found = object_.find(key);
    require(found != object_.end(), ErrorCode::data_source, "{}: there is no \"{}\"; {}", place_, key, kExpected);
    return *found;
  }
  /// Reads a number, or a string that contains one.
  std::size_t index(const char* key, std::size_t n_choices) const {
    const Json& value = at(key);
    std::int64_t number = -1;
    if (value.is_number_integer()) number = value.get<std::int64_t>();
    if (value.is_string()) {
      const auto& digits = value.get_ref<const std::string&>();
      const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
      if (error != std::errc() || end != digits.data() + digits.size()) number = -1;
    }
    require(number >= 0 && number < static_cast<std::int64_t>(n_choices), ErrorCode::data_source,
            "{}: {}: expected the number of the right choice, 0 to {}, found {}", place_, key, n_choices - 1,
            shown(value));
    return static_cast<std::size_t>(number);
  }
  static std::string shown(const Json& value) {
    std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
    constexpr std::size_t kMost = 60;
    return text.size() <= kMost ? text : text.substr(0, kMost) + "...";
  }

 private:
  const Json& object_;
  const std::string& place_;
};

/// The brackets are artifacts of the WikiHow part of HellaSwag.
std::string hellaswag_text(std::string_view text) {
  std::string out(jinja::stripped(text));
  replace_all(out, " [title]", ". ");
  out = without_brackets(out);
  replace_all(out, "  ", " ");
  return out;
}

ChoiceQuestion hellaswag(const Line& line) {
  const std::string context =
      line.has("ctx_a") ? line.text("ctx_a") + " " + jinja::capitalized(line.text("ctx_b")) : line.text("ctx");
  ChoiceQuestion out{.context = hellaswag_text(line.text("activity_label") + ": " + context), .choices = {}};
  for (const std::string& ending : line.texts(line.at("endings"), "endings"))
    out.choices.push_back(hellaswag_text(ending));
  out.answer = line.index("label", out.choices.size());
  return out;
}

ChoiceQuestion arc(const Line& line, const std::string& place) {
  const Json& question = line.at("question");
  const bool is_nested = question.is_object();
  const Line inner(question, place);
  const std::string stem = is_nested ? inner.text("stem") : line.text("question");
  const Json& choices = is_nested ? inner.at("choices") : line.at("choices");
  ChoiceQuestion out{.context = "Question: " + stem + "\nAnswer:", .choices = {}};
  std::vector<std::string> labels;
  if (choices.is_array()) {
    for (const Json& choice : choices) {
      require(choice.is_object(), ErrorCode::data_source, "{}: choices: expected objects with text and label, found {}",
              place, Line::shown(choice));
      const Line one(choice, place);
      out.choices.push_back(one.text("text"));
      labels.push_back(one.text("label"));
    }
  } else {
    require(choices.is_object(), ErrorCode::data_source,
            "{}: choices: expected an object with the lists text and label, found {}", place, Line::shown(choices));
    const Line lists(choices, place);
    out.choices = lists.texts(lists.at("text"), "choices.text");
    labels = lists.texts(lists.at("label"), "choices.label");
  }
  const std::string key = line.text("answerKey");
  const auto found = std::ranges::find(labels, key);
  require(!out.choices.empty() && labels.size() == out.choices.size() && found != labels.end(), ErrorCode::data_source,
          "{}: answerKey is \"{}\", which is not the label of one of {} choices", place, key, out.choices.size());
  out.answer = static_cast<std::size_t>(found - labels.begin());
  return out;
}

ChoiceQuestion piqa(const Line& line) {
  return {.context = "Question: " + line.text("goal") + "\nAnswer:",
          .choices = {line.text("sol1"), line.text("sol2")},
          .answer = line.index("label", 2)};
}

}  // namespace

ChoiceQuestion parse_choice_question(std::string_view line, const std::string& place) {
  const Json object = parse_json(line, place, ErrorCode::data_source);
  require(object.is_object(), ErrorCode::data_source, "{}: {}, found {}", place, kExpected, Line::shown(object));
  const Line reader(object, place);
  if (reader.has("endings")) return hellaswag(reader);
  if (reader.has("answerKey")) return arc(reader, place);
  if (reader.has("sol1")) return piqa(reader);
  ChoiceQuestion out{.context = reader.text("context"), .choices = reader.texts(reader.at("choices"), "choices")};
  out.answer = reader.index("answer", out.choices.size());
  return out;
}

ChoiceTokens encode_choice(const Tokenizer& tokenizer, std::string_view context, std::string_view choice) {
  const std::size_t length = jinja::stripped(context, false, true).size();
  const std::string whole = fmt::format("{} {}", context, choice);
  ChoiceTokens out;
  if (length == 0) {
    const std::optional<std::int32_t> before =
        tokenizer.begin_token() ? tokenizer.begin_token() : tokenizer.end_token();
    if (before) out.ids.push_back(*before);
    out.first = out.ids.size();
    std::vector<std::int32_t> ids;
    tokenizer.encode(whole, ids, TemplateTokens::omit);
    // A tokenizer that puts this token before every text has already added it.
    out.ids.insert(out.ids.end(), ids.begin() + (before && !ids.empty() && ids.front() == *before ? 1 : 0), ids.end());
    return out;
  }
  std::vector<std::int32_t> ids;
  tokenizer.encode(context.substr(0, length), out.ids);
  tokenizer.encode(whole, ids);
  out.first = out.ids.size();
  // A token may extend across the end of the context. In this case, the harness also uses the tokens of the context
  // alone.
  if (ids.size() > out.first) out.ids.insert(out.ids.end(), ids.begin() + std::ssize(out.ids), ids.end());
  return out;
}

}  // namespace lockstep::text
