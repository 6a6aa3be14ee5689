#include "config/key_types.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "base/hub_cache.h"
#include "config/yaml_text.h"

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

Key row(std::string name, std::string type, std::string accepts) {
  Key key;
  key.name = std::move(name);
  key.type = std::move(type);
  key.accepts = std::move(accepts);
  return key;
}

}  // namespace

template <typename T>
Key integer(std::string name, Field<T> field, std::int64_t low, std::int64_t high) {
  high = std::min(high, static_cast<std::int64_t>(std::numeric_limits<T>::max()));
  Key key = row(std::move(name), "a whole number,", fmt::format("{} to {}", low, high));
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
template Key integer(std::string, Field<int>, std::int64_t, std::int64_t);
template Key integer(std::string, Field<std::int64_t>, std::int64_t, std::int64_t);
template Key integer(std::string, Field<std::uint32_t>, std::int64_t, std::int64_t);

Key real(std::string name, Field<double> field, Range range) {
  Key key = row(std::move(name), "a number,", range.accepts);
  key.set = [field, range](Config& config, const Value& value) {
    return value.is_list ? Fit::wrong_type : parse_real(value.text, range, field(config));
  };
  key.get = [field](const Config& config) { return shortest(value_of(field, config)); };
  return key;
}

template <typename T>
Key choice_of(std::string name, Field<T> field, std::vector<std::pair<std::string, T>> choices) {
  std::vector<std::string> words;
  for (const auto& [word, meant] : choices) words.push_back(word);
  Key key = row(std::move(name), "one of", fmt::format("{}", fmt::join(words, " | ")));
  key.choices = std::move(words);
  key.set = [field, choices](Config& config, const Value& value) {
    if (value.is_list) return Fit::wrong_type;
    const auto found = std::ranges::find(choices, value.text, &std::pair<std::string, T>::first);
    if (found == choices.end()) return Fit::out_of_range;
    field(config) = found->second;
    return Fit::good;
  };
  key.get = [field, choices](const Config& config) -> std::string {
    const auto found = std::ranges::find(choices, value_of(field, config), &std::pair<std::string, T>::second);
    return found == choices.end() ? "?" : found->first;
  };
  return key;
}
template Key choice_of(std::string, Field<bool>, std::vector<std::pair<std::string, bool>>);
template Key choice_of(std::string, Field<int>, std::vector<std::pair<std::string, int>>);
template Key choice_of(std::string, Field<Precision>, std::vector<std::pair<std::string, Precision>>);

Key choice(std::string name, Field<std::string> field, const std::vector<std::string>& choices) {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const std::string& word : choices) pairs.emplace_back(word, word);
  return choice_of(std::move(name), field, std::move(pairs));
}

Key boolean(std::string name, Field<bool> field) {
  Key key = row(std::move(name), "one of", "true | false");
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

Key text(std::string name, Field<std::string> field) {
  Key key = row(std::move(name), "text", "");
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

Key path(std::string name, Field<std::string> field) {
  Key key = text(std::move(name), field);
  key.type = "a path";
  key.is_path = true;
  return key;
}

Key model_path(std::string name, Field<std::string> field) {
  Key key = path(std::move(name), field);
  key.type = "a path, or the name of a model on the Hub";
  key.set = [field, set = key.set](Config& config, const Value& value) {
    const Fit fit = set(config, value);
    if (fit == Fit::good) field(config) = find_model(value.text);
    return fit;
  };
  return key;
}

Key list_of_choices(std::string name, Field<std::vector<std::string>> field, std::vector<std::string> choices) {
  Key key = row(std::move(name), "a list of", fmt::format("some of [{}], each at most once", fmt::join(choices, ", ")));
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

Key list_of_texts(std::string name, Field<std::vector<std::string>> field) {
  Key key = row(std::move(name), "a list", "[TEXT, ...], none of them empty");
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

Key list_of_numbers(std::string name, Field<std::vector<double>> field, Range range) {
  Key key = row(std::move(name), "a list", "[NUMBER, ...], each " + range.accepts);
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

Key auto_or_list(std::string name, Field<std::vector<double>> field, Range range) {
  Key key = list_of_numbers(std::move(name), field, range);
  key.type = "one of";
  key.accepts = "auto | " + key.accepts;
  key.choices = {"auto"};
  key.is_list = false;
  key.set = [field, set = key.set](Config& config, const Value& value) {
    if (value.is_list)
      return value.items.empty() || value.items.size() > kMaxChannels ? Fit::out_of_range : set(config, value);
    if (value.text != "auto") return Fit::wrong_type;
    field(config).clear();
    return Fit::good;
  };
  key.get = [field, get = key.get](const Config& config) {
    return value_of(field, config).empty() ? "auto" : get(config);
  };
  return key;
}

template <typename T>
Key auto_or_integer(std::string name, Field<T> field, T auto_value, std::int64_t low, std::int64_t high) {
  Key key = integer(std::move(name), field, low, high);
  key.type = "one of";
  key.accepts = "auto | " + key.accepts;
  key.choices = {"auto"};
  key.set = [field, auto_value, set = key.set](Config& config, const Value& value) {
    if (value.is_list || value.text != "auto") return set(config, value);
    field(config) = auto_value;
    return Fit::good;
  };
  key.get = [field, auto_value, get = key.get](const Config& config) {
    return value_of(field, config) == auto_value ? "auto" : get(config);
  };
  return key;
}
template Key auto_or_integer(std::string, Field<int>, int, std::int64_t, std::int64_t);
template Key auto_or_integer(std::string, Field<std::int64_t>, std::int64_t, std::int64_t, std::int64_t);

}  // namespace lockstep::config
