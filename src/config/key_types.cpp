#include "config/key_types.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "config/quoted.h"

namespace lockstep::config {
namespace {

constexpr int kMaxChannels = 4;

/// The whole text as a number; no value if it is not a number. Independent of the locale.
template <typename T>
std::optional<T> number(std::string_view text) {
  if (text.starts_with('+')) text.remove_prefix(1);
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

bool is_whole_number(std::string_view text) {
  if (text.starts_with('+') || text.starts_with('-')) text.remove_prefix(1);
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

Fit parse_real(const std::string& text, const Range& range, double& result) {
  const auto value = number<double>(text);
  if (!value || !std::isfinite(*value)) return Fit::wrong_type;
  const bool holds = (range.low_excluded ? *value > range.low : *value >= range.low) &&
                     (range.high_excluded ? *value < range.high : *value <= range.high);
  if (!holds) return Fit::out_of_range;
  result = *value;
  return Fit::good;
}

/// The members of Config are read through the same accessors that set them.
template <typename T>
const T& value_of(Field<T> field, const Config& config) {
  return field(const_cast<Config&>(config));
}

/// The shortest text that is read back as the same number: "1.0e-08", since YAML 1.1 reads "1e-08" as a string.
std::string shortest(double value) {
  std::string text = fmt::format("{}", value);
  const auto exponent = text.find('e');
  if (exponent != std::string::npos && text.find('.') == std::string::npos) text.insert(exponent, ".0");
  return text;
}

std::string list_of(const std::vector<double>& values) {
  std::string list;
  for (const double value : values) list += (list.empty() ? "" : ", ") + shortest(value);
  return "[" + list + "]";
}

Key row(std::string name, std::string type, std::string accepts, About about) {
  Key key;
  key.name = std::move(name);
  key.type = std::move(type);
  key.accepts = std::move(accepts);
  key.effect = about.effect;
  key.unit = std::move(about.unit);
  key.meaning = std::move(about.meaning);
  return key;
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

}  // namespace

template <typename T>
Key integer(std::string name, Field<T> field, std::int64_t low, About about, std::int64_t high) {
  high = std::min(high, static_cast<std::int64_t>(std::numeric_limits<T>::max()));
  Key key = row(std::move(name), "a whole number,", fmt::format("{} to {}", low, high), std::move(about));
  key.set = [field, low, high](Config& config, const Value& value) {
    if (value.is_list || !is_whole_number(value.text)) return Fit::wrong_type;
    const auto parsed = number<std::int64_t>(value.text);  // empty: more than 64 bits
    if (!parsed || *parsed < low || *parsed > high) return Fit::out_of_range;
    field(config) = static_cast<T>(*parsed);
    return Fit::good;
  };
  key.get = [field](const Config& config) { return fmt::format("{}", value_of(field, config)); };
  return key;
}
template Key integer(std::string, Field<int>, std::int64_t, About, std::int64_t);
template Key integer(std::string, Field<std::int64_t>, std::int64_t, About, std::int64_t);
template Key integer(std::string, Field<std::uint32_t>, std::int64_t, About, std::int64_t);

Key real(std::string name, Field<double> field, Range range, About about) {
  Key key = row(std::move(name), "a number,", range.accepts, std::move(about));
  key.set = [field, range](Config& config, const Value& value) {
    return value.is_list ? Fit::wrong_type : parse_real(value.text, range, field(config));
  };
  key.get = [field](const Config& config) { return shortest(value_of(field, config)); };
  return key;
}

template <typename T>
Key choice_of(std::string name, Field<T> field, std::vector<std::pair<std::string, T>> choices, About about) {
  std::vector<std::string> words;
  for (const auto& [word, meant] : choices) words.push_back(word);
  Key key = row(std::move(name), "one of", fmt::format("{}", fmt::join(words, " | ")), std::move(about));
  key.choices = std::move(words);
  key.set = [field, choices](Config& config, const Value& value) {
    if (value.is_list) return Fit::wrong_type;
    for (const auto& [word, meant] : choices) {
      if (word != value.text) continue;
      field(config) = meant;
      return Fit::good;
    }
    return Fit::out_of_range;
  };
  key.get = [field, choices](const Config& config) -> std::string {
    for (const auto& [word, meant] : choices) {
      if (meant == value_of(field, config)) return word;
    }
    return "?";
  };
  return key;
}
template Key choice_of(std::string, Field<bool>, std::vector<std::pair<std::string, bool>>, About);
template Key choice_of(std::string, Field<int>, std::vector<std::pair<std::string, int>>, About);
template Key choice_of(std::string, Field<Precision>, std::vector<std::pair<std::string, Precision>>, About);

Key choice(std::string name, Field<std::string> field, const std::vector<std::string>& choices, About about) {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const std::string& word : choices) pairs.emplace_back(word, word);
  return choice_of(std::move(name), field, std::move(pairs), std::move(about));
}

Key boolean(std::string name, Field<bool> field, About about) {
  Key key = row(std::move(name), "one of", "true | false", std::move(about));
  key.choices = {"true", "false"};
  key.set = [field](Config& config, const Value& value) {
    const std::string lowered = value.is_list ? "" : lower(value.text);
    const bool is_true = lowered == "true" || lowered == "yes" || lowered == "on";
    const bool is_false = lowered == "false" || lowered == "no" || lowered == "off";
    if (!is_true && !is_false) return Fit::wrong_type;
    field(config) = is_true;
    return Fit::good;
  };
  key.get = [field](const Config& config) { return value_of(field, config) ? "true" : "false"; };
  return key;
}

Key text(std::string name, Field<std::string> field, About about) {
  Key key = row(std::move(name), "text", "", std::move(about));
  key.is_text = true;
  key.set = [field](Config& config, const Value& value) {
    if (value.is_list) return Fit::wrong_type;
    if (value.text.find('\0') != std::string::npos) return Fit::out_of_range;  // system calls would stop there
    field(config) = value.text;
    return Fit::good;
  };
  key.get = [field](const Config& config) { return quoted(value_of(field, config)); };
  return key;
}

Key path(std::string name, Field<std::string> field, About about) {
  Key key = text(std::move(name), field, std::move(about));
  key.type = "a path";
  key.is_path = true;
  return key;
}

Key list_of_choices(std::string name, Field<std::vector<std::string>> field, std::vector<std::string> choices,
                    About about) {
  Key key = row(std::move(name), "a list of", fmt::format("some of [{}], each at most once", fmt::join(choices, ", ")),
                std::move(about));
  key.choices = choices;
  key.is_list = true;
  key.set = [field, choices](Config& config, const Value& value) {
    if (!value.is_list && !value.text.empty()) return Fit::wrong_type;
    for (auto item = value.items.begin(); item != value.items.end(); ++item) {
      const bool is_known = std::find(choices.begin(), choices.end(), *item) != choices.end();
      const bool is_repeated = std::find(value.items.begin(), item, *item) != item;
      if (!is_known || is_repeated) return Fit::out_of_range;
    }
    field(config) = value.items;
    return Fit::good;
  };
  key.get = [field](const Config& config) { return fmt::format("[{}]", fmt::join(value_of(field, config), ", ")); };
  return key;
}

Key list_of_texts(std::string name, Field<std::vector<std::string>> field, About about) {
  Key key = row(std::move(name), "a list", "[TEXT, ...], none of them empty", std::move(about));
  key.is_list = true;
  key.set = [field](Config& config, const Value& value) {
    std::vector<std::string> items = value.items;
    if (!value.is_list && !value.text.empty()) items = {value.text};
    if (std::find(items.begin(), items.end(), "") != items.end()) return Fit::out_of_range;
    field(config) = std::move(items);
    return Fit::good;
  };
  key.get = [field](const Config& config) {
    std::vector<std::string> items;
    for (const std::string& item : value_of(field, config)) items.push_back(quoted(item));
    return fmt::format("[{}]", fmt::join(items, ", "));
  };
  return key;
}

Key list_of_numbers(std::string name, Field<std::vector<double>> field, Range range, About about) {
  Key key = row(std::move(name), "a list", "[NUMBER, ...], each " + range.accepts, std::move(about));
  key.is_list = true;
  key.set = [field, range](Config& config, const Value& value) {
    if (!value.is_list && !value.text.empty()) return Fit::wrong_type;
    std::vector<double> parsed(value.items.size());
    for (std::size_t i = 0; i < parsed.size(); ++i) {
      const Fit fit = parse_real(value.items[i], range, parsed[i]);
      if (fit != Fit::good) return fit;
    }
    field(config) = std::move(parsed);
    return Fit::good;
  };
  key.get = [field](const Config& config) { return list_of(value_of(field, config)); };
  return key;
}

Key auto_or_list(std::string name, Field<std::vector<double>> field, Range range, About about) {
  Key key = row(std::move(name), "one of", "auto | [NUMBER, ...], each " + range.accepts, std::move(about));
  key.choices = {"auto"};
  key.set = [field, range](Config& config, const Value& value) {
    if (!value.is_list && value.text != "auto") return Fit::wrong_type;
    std::vector<double> parsed;
    for (const std::string& item : value.items) {
      const Fit fit = parse_real(item, range, parsed.emplace_back());
      if (fit != Fit::good) return fit;
    }
    if (parsed.size() > kMaxChannels || (value.is_list && parsed.empty())) return Fit::out_of_range;
    field(config) = parsed;
    return Fit::good;
  };
  key.get = [field](const Config& config) {
    const std::vector<double>& values = value_of(field, config);
    return values.empty() ? "auto" : list_of(values);
  };
  return key;
}

template <typename T>
Key auto_or_integer(std::string name, Field<T> field, T auto_value, std::int64_t low, std::int64_t high, About about) {
  Key key = row(std::move(name), "one of", fmt::format("auto | {} to {}", low, high), std::move(about));
  key.choices = {"auto"};
  key.set = [field, auto_value, low, high](Config& config, const Value& value) {
    const bool is_auto = !value.is_list && value.text == "auto";
    if (value.is_list || (!is_auto && !is_whole_number(value.text))) return Fit::wrong_type;
    const auto parsed = is_auto ? std::nullopt : number<std::int64_t>(value.text);
    if (!is_auto && (!parsed || *parsed < low || *parsed > high)) return Fit::out_of_range;
    field(config) = is_auto ? auto_value : static_cast<T>(*parsed);
    return Fit::good;
  };
  key.get = [field, auto_value](const Config& config) {
    const T count = value_of(field, config);
    return count == auto_value ? "auto" : fmt::format("{}", count);
  };
  return key;
}
template Key auto_or_integer(std::string, Field<int>, int, std::int64_t, std::int64_t, About);
template Key auto_or_integer(std::string, Field<std::int64_t>, std::int64_t, std::int64_t, std::int64_t, About);

}  // namespace lockstep::config
