// lockstep report memory FILE...: reports peak, mean and mode of the memory that GPUs and processes used, from the CSV
// files of RUN/usage (src/run/usage_log.h) or from files that nvidia-smi wrote.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "commands/commands.h"
#include "commands/report.h"

namespace lockstep::commands {
namespace {

constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 30;

std::string_view trimmed(std::string_view text) {
  const auto begin = text.find_first_not_of(" \t\r");
  return begin == std::string_view::npos ? "" : text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

std::vector<std::string_view> fields_of(std::string_view line) {
  std::vector<std::string_view> fields;
  for (std::size_t begin = 0; begin <= line.size();) {
    const std::size_t end = std::min(line.find(',', begin), line.size());
    fields.push_back(trimmed(line.substr(begin, end - begin)));
    begin = end + 1;
  }
  return fields;
}

/// Formats a line for a message: truncated, and without bytes that a terminal would interpret.
std::string shown(std::string_view line) {
  std::string text(line.substr(0, 120));
  std::ranges::replace_if(
      text, [](unsigned char c) { return c < 0x20 || c >= 0x7f; }, '?');
  return text;
}

/// Parses the whole text as a number, optionally followed by the unit " MiB".
template <typename T>
std::optional<T> number(std::string_view text) {
  if (text.ends_with("MiB")) text = trimmed(text.substr(0, text.size() - 3));
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || !(value >= 0 && value < T(1 << 30)))
    return std::nullopt;
  return value;
}

/// The columns with the GPU or rank, and with its memory. Their names are ours or those of nvidia-smi, which may end
/// with "[MiB]".
struct Columns {
  std::size_t number = 0, memory = 0;
  bool is_of_processes = false;
};

Columns columns_of(const std::string& path, std::string_view header) {
  const std::vector<std::string_view> names = fields_of(header);
  const auto find = [&](std::initializer_list<std::string_view> accepted_names) -> std::optional<std::size_t> {
    for (std::size_t i = 0; i < names.size(); ++i)
      if (std::ranges::find(accepted_names, trimmed(names[i].substr(0, names[i].find('[')))) != accepted_names.end())
        return i;
    return std::nullopt;
  };
  const auto gpu = find({"gpu", "index"}), rank = find({"rank"});
  const auto of_gpu = find({"memory_used_mib", "memory.used"}), of_process = find({"rss_mib"});
  if (gpu && of_gpu) return {.number = *gpu, .memory = *of_gpu};
  require(
      rank && of_process, ErrorCode::usage,
      "{}:1: expected the names of columns, with gpu or index and memory_used_mib or memory.used, or rank and rss_mib, "
      "found \"{}\"",
      path, shown(header));
  return {.number = *rank, .memory = *of_process, .is_of_processes = true};
}

struct Use {
  int number = 0;  // of the GPU, or rank
  std::size_t samples = 0;
  double peak_mib = 0, mean_mib = 0, mode_mib = 0;
};

struct Log {
  std::string path, name;  // "gpu_memory_log"
  bool is_of_processes = false;
  std::vector<Use> uses{};
};

/// `counts`: how often each amount occurred, in ascending order.
Use use_of(int number, const std::map<double, std::size_t>& counts) {
  Use use{.number = number, .peak_mib = counts.rbegin()->first};
  std::size_t most = 0;
  for (const auto& [mib, count] : counts) {
    use.mean_mib += mib * static_cast<double>(count);
    use.samples += count;
    if (count <= most) continue;  // among equally frequent amounts, the smallest wins
    most = count;
    use.mode_mib = mib;
  }
  use.mean_mib /= static_cast<double>(use.samples);
  return use;
}

/// The file's name without ".csv". Our own file names also lose the host.
std::string name_of(const std::string& path) {
  std::string stem = std::filesystem::path(path).stem().string();
  for (const std::string_view ours : {"gpu_memory_log", "process_log"})
    if (stem.starts_with(std::string(ours) + "_")) return std::string(ours);
  return stem;
}

Log log_of(const std::string& path) {
  std::string text = read_file(path, kMaxBytes);
  text.resize(text.rfind('\n') == std::string::npos ? 0 : text.rfind('\n'));  // the last line may not be complete yet
  require(!trimmed(text).empty(), ErrorCode::usage,
          "{}: expected a line of column names and lines of numbers, found nothing", path);
  Log log{.path = path, .name = name_of(path)};
  std::map<int, std::map<double, std::size_t>> counts;
  std::string_view rest = text, header;
  Columns columns;
  for (int line_number = 1; !rest.empty(); ++line_number) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = trimmed(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line_number == 1) {
      header = line;
      columns = columns_of(path, header);
      log.is_of_processes = columns.is_of_processes;
      continue;
    }
    if (line.empty() || line == header) continue;  // a repeated header: nvidia-smi was started again with the same file
    const std::vector<std::string_view> fields = fields_of(line);
    const bool is_whole = fields.size() > std::max(columns.number, columns.memory);
    const auto whose = is_whole ? number<int>(fields[columns.number]) : std::nullopt;
    const auto mib = is_whole ? number<double>(fields[columns.memory]) : std::nullopt;
    require(whose && mib, ErrorCode::usage,
            "{}:{}: expected the columns {} with the number of a {} and MiB, found \"{}\"", path, line_number,
            shown(header), columns.is_of_processes ? "rank" : "GPU", shown(line));
    ++counts[*whose][*mib];
  }
  require(!counts.empty(), ErrorCode::usage, "{}: expected lines of numbers below the column names, found none", path);
  for (const auto& [whose, of_it] : counts) log.uses.push_back(use_of(whose, of_it));
  return log;
}

/// The help of the command names the files that it reads.
Log read_log(const std::string& path) {
  try {
    return log_of(path);
  } catch (const Error& e) {
    fail(ErrorCode::usage, "{}; see `lockstep report memory --help`", e.what());
  }
}

nlohmann::ordered_json json_of(const std::vector<Log>& logs) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const Log& log : logs)
    for (const Use& use : log.uses)
      all.push_back({{"file", log.path},
                     {"name", log.name},
                     {log.is_of_processes ? "rank" : "gpu", use.number},
                     {"samples", use.samples},
                     {"peak_mib", use.peak_mib},
                     {"mean_mib", use.mean_mib},
                     {"mode_mib", use.mode_mib}});
  return {{"memory", all}};
}

std::string text_of(const std::vector<Log>& logs) {
  std::string text;
  for (const Log& log : logs) {
    if (logs.size() > 1) text += log.path + "\n";
    for (const Use& use : log.uses)
      text += fmt::format("[{} - {} {}] Peak = {:.10g} MiB, Avg = {:.2f} MiB, Mode = {:.10g} MiB\n", log.name,
                          log.is_of_processes ? "rank" : "GPU", use.number, use.peak_mib, use.mean_mib, use.mode_mib);
  }
  return text;
}

}  // namespace

void add_report_memory(CLI::App& report_command, Run& run) {
  struct CommandLine {
    std::vector<std::string> files;
    std::string json;
  };
  auto options = std::make_shared<CommandLine>();
  CLI::App* command =
      report_command.add_subcommand("memory", "Report peak, mean and mode of the memory that GPUs and processes used");
  command
      ->add_option("FILE", options->files,
                   "Files of RUN/usage, which log.usage_seconds enables, or of `nvidia-smi "
                   "--query-gpu=timestamp,index,memory.used --format=csv -l 5`")
      ->required();
  command->footer(
      "The mode is the most frequent amount; of equally frequent amounts, the smallest. A last line without line feed "
      "is\n"
      "ignored, since it is still being written.");
  add_json(*command, options->json);
  command->callback([options, &run] {
    run = [options] {
      check_outputs({options->json}, options->files);
      std::vector<Log> logs;
      for (const std::string& path : options->files) logs.push_back(read_log(path));
      report(options->json, json_of(logs), text_of(logs));
      return kExitDone;
    };
  });
}

}  // namespace lockstep::commands
