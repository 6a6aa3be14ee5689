#include "doctor/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/numbers.h"
#include "base/printable.h"
#include "base/utf8.h"

namespace lockstep::doctor {
namespace {

/// Merges passing checks that have the same name and a number each into one line: "4 ranks", "1.84 to 1.92 TFLOP/s".
std::vector<Check> merged(const std::vector<Check>& checks) {
  std::vector<Check> lines;
  std::vector<bool> is_done(checks.size(), false);
  for (std::size_t i = 0; i < checks.size(); ++i) {
    if (is_done[i]) continue;
    Check line = checks[i];
    double least = line.number.value_or(0), greatest = least;
    std::size_t n = 1;
    for (std::size_t j = i + 1; j < checks.size(); ++j) {
      const Check& other = checks[j];
      const bool is_alike = other.name == line.name && other.status == line.status && other.expected == line.expected &&
                            other.unit == line.unit && other.number.has_value() == line.number.has_value() &&
                            (line.number || other.value == line.value) && other.remedy == line.remedy;
      if (!is_alike || line.status == Status::fail || line.status == Status::warn) continue;
      is_done[j] = true;
      ++n;
      least = std::min(least, other.number.value_or(0));
      greatest = std::max(greatest, other.number.value_or(0));
    }
    if (n > 1) {
      const bool is_rank = line.scope.starts_with("rank "),
                 is_pair = line.scope.find(" and rank ") != std::string::npos;
      line.scope = fmt::format("{} {}", n, is_pair ? "pairs" : is_rank ? "ranks" : "nodes");
      if (line.number && three_digits(least) != three_digits(greatest))
        line.value = fmt::format("{} to {} {}", three_digits(least), three_digits(greatest), line.unit);
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

/// A UTF-8 character takes one column on a terminal.
std::string cell(const std::string& text, std::size_t width) {
  return text + std::string(width - std::min(width, n_characters(text)) + 2, ' ');
}

}  // namespace

std::string name(Status status) {
  constexpr std::array kNames = {"pass", "unknown", "warn", "fail"};
  return kNames[static_cast<std::size_t>(status)];
}

void add(std::vector<Check>& checks, Check check) {
  if (check.status == Status::pass) check.remedy.clear();
  checks.push_back(std::move(check));
}

std::string rank_name(int rank, const std::string& host) { return fmt::format("rank {} on {}", rank, host); }

std::string SlowestRank::sentence() const {
  return fmt::format("The slowest rank is {}: its {} is {:.0f} % slower than the median of all ranks.",
                     rank_name(rank, printable(host)), what, 100 * slower);
}

bool Report::has_failed() const {
  return std::ranges::any_of(checks, [](const Check& check) { return check.status == Status::fail; });
}

namespace {

std::string problem_lines(const std::vector<Check>& checks) {
  std::string text;
  for (const Check& check : checks) {
    if (check.status != Status::warn && check.status != Status::fail) continue;
    text += fmt::format("{}{}: {}, {}: {}{}. {}", text.empty() ? "" : "\n", name(check.status), printable(check.name),
                        printable(check.scope), printable(check.value),
                        check.expected.empty() ? "" : fmt::format(" (expected: {})", printable(check.expected)),
                        printable_lines(check.remedy));
  }
  return text;
}

}  // namespace

std::string Report::problems() const { return problem_lines(checks); }

std::string Report::problems_of(int rank, const std::string& host) const {
  std::vector<Check> of_rank;
  for (const Check& check : checks)
    if (check.scope == rank_name(rank, host) || check.scope == host) of_rank.push_back(check);
  return problem_lines(of_rank);
}

const Check* Report::slowest_link() const {
  constexpr double kPairs = 4;  // a pair says more than an all-reduce, which is about as slow as its slowest link
  const auto order = [](const Check& c) { return c.times_slower * (c.name.starts_with("pair") ? kPairs : 1); };
  const auto slowest = std::ranges::max_element(checks, {}, order);
  return slowest == checks.end() || slowest->times_slower == 0 ? nullptr : &*slowest;
}

std::vector<std::string> Report::slowest_sentences() const {
  std::vector<std::string> sentences;
  if (slowest) sentences.push_back(slowest->sentence());
  if (const Check* link = slowest_link()) {
    const bool is_worse = !slowest || link->times_slower * (1 - slowest->slower) > 1;
    sentences.insert(is_worse ? sentences.end() : sentences.begin(),
                     fmt::format("The slowest link is {} ({}): it is {} times slower than it should be.",
                                 printable(link->scope), link->name, three_digits(link->times_slower)));
  }
  return sentences;
}

std::string Report::text() const {
  std::vector<Check> lines = merged(checks);
  for (Check& line : lines)
    for (std::string* field : {&line.name, &line.scope, &line.value, &line.expected}) *field = printable(*field);
  const Check header{.name = "check", .scope = "where", .value = "found", .expected = "expected"};
  constexpr std::size_t kWidest = 48;  // a longer text shifts the rest of its line
  const auto width = [&](std::string Check::*field) {
    std::size_t most = n_characters(header.*field);
    for (const Check& line : lines)
      if (n_characters(line.*field) <= kWidest) most = std::max(most, n_characters(line.*field));
    return most;
  };
  const std::size_t names = width(&Check::name), scopes = width(&Check::scope), values = width(&Check::value);
  const auto row = [&](const std::string& status, const Check& line) {
    std::string text =
        cell(status, 7) + cell(line.name, names) + cell(line.scope, scopes) + cell(line.value, values) + line.expected;
    text.erase(text.find_last_not_of(' ') + 1);
    return text + "\n";
  };
  std::string text = row("", header);
  for (const Check& line : lines) {
    text += row(name(line.status), line);
    if (line.status != Status::pass && !line.remedy.empty())
      text += fmt::format("         remedy: {}\n", printable_lines(line.remedy));
  }
  for (const std::string& note : notes) text += fmt::format("{}\n", printable_lines(note));
  for (const std::string& sentence : slowest_sentences()) text += sentence + "\n";
  const auto count = [&](Status status) { return std::ranges::count(checks, status, &Check::status); };
  return text + fmt::format("{}: {} passed, {} warned, {} failed, {} unknown\n", counted(checks.size(), "check"),
                            count(Status::pass), count(Status::warn), count(Status::fail), count(Status::unknown));
}

nlohmann::ordered_json Report::json() const {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Check& check : checks) {
    nlohmann::ordered_json object{{"check", check.name},  {"where", check.scope},       {"status", name(check.status)},
                                  {"found", check.value}, {"expected", check.expected}, {"remedy", check.remedy}};
    if (check.number) {
      object["number"] = *check.number;
      object["unit"] = check.unit;
    }
    list.push_back(std::move(object));
  }
  nlohmann::ordered_json object{{"passed", !has_failed()}, {"checks", std::move(list)}, {"notes", notes}};
  if (slowest)
    object["slowest_rank"] = {{"rank", slowest->rank},
                              {"host", slowest->host},
                              {"measure", slowest->what},
                              {"slower_than_median", slowest->slower}};
  if (const Check* link = slowest_link())
    object["slowest_link"] = {{"where", link->scope}, {"check", link->name}, {"times_slower", link->times_slower}};
  return object;
}

}  // namespace lockstep::doctor
