#include "scaling/study.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <sstream>

#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/printable.h"
#include "base/process.h"
#include "config/parser.h"
#include "config/table.h"
#include "lockstep/error.h"

namespace lockstep::scaling {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr int kFormat = 1;
constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 24;

Json json_of(const Study& study) {
  Json cases = Json::array();
  for (const Case& each : study.cases)
    cases.push_back({{"name", each.name}, {"ranks", each.ranks}, {"nodes", each.nodes}, {"repeat", each.repeat}});
  Json object{{"format", kFormat}, {"working_directory", study.working_directory}};
  object.update(settings_json(study));
  object["job"] = study.job;
  object["cases"] = cases;
  return object;
}

/// The sizes of a study, "1, 2, 4". It does not matter here whether they are ranks or nodes, since both are compared.
std::string sizes_of(const Study& study) {
  std::vector<std::string> sizes;
  for (const Case& each : study.cases)
    if (each.repeat == 1) sizes.push_back(fmt::format("{} on {}", each.ranks, each.nodes));
  std::ranges::sort(sizes);
  return fmt::format("{}", fmt::join(sizes, ", "));
}

bool is_name(const std::string& name) {
  return !name.empty() && name.find('/') == std::string::npos && name.front() != '.' && !has_control_characters(name);
}

Study study_in(const nlohmann::json& object) {
  Study study;
  study.working_directory = object.at("working_directory");
  study.scaling = object.at("scaling") == "weak" ? Scaling::weak : Scaling::strong;
  study.launcher = object.at("launcher") == "slurm" ? Launcher::slurm : Launcher::local;
  study.batch = object.at("batch");
  study.steps = object.at("steps");
  study.warmup_steps = object.at("warmup_steps");
  study.epochs = object.value("epochs", 0);
  study.repeats = object.at("repeats");
  study.seed = object.at("seed");
  study.job = object.at("job");
  study.build = object.at("build");
  for (const auto& each : object.at("cases"))
    study.cases.push_back(
        {.name = each.at("name"), .ranks = each.at("ranks"), .nodes = each.at("nodes"), .repeat = each.at("repeat")});
  return study;
}

}  // namespace

std::string text_of(Scaling scaling) { return scaling == Scaling::strong ? "strong" : "weak"; }
std::string text_of(Launcher launcher) { return launcher == Launcher::local ? "local" : "slurm"; }

Json settings_json(const Study& study) {
  return {{"scaling", text_of(study.scaling)},
          {"launcher", text_of(study.launcher)},
          {"batch", study.batch},
          {"steps", study.steps},
          {"epochs", study.epochs},
          {"warmup_steps", study.warmup_steps},
          {"repeats", study.repeats},
          {"seed", study.seed},
          {"build", study.build}};
}

std::string build_text(const std::string& versions_json) {
  // Sorted, so that the order of the libraries does not matter.
  const auto object = nlohmann::json::parse(versions_json, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return "";
  const auto text = [&](const char* key) {
    return object.contains(key) && object[key].is_string() ? object[key].get<std::string>() : "unknown";
  };
  const std::string libraries = object.value("libraries", nlohmann::json::object()).dump();
  return fmt::format("{} ({}), {}, libraries {}", text("version"), text("commit"), text("compiler"),
                     hash_text(hash_bytes(std::as_bytes(std::span(libraries)))).substr(0, 8));
}

bool study_exists(const std::string& directory) { return fs::exists(directory + "/study.json"); }

Study read_study(const std::string& directory) {
  require(fs::is_directory(directory), ErrorCode::usage,
          "there is no study {}: expected the directory that `lockstep scaling run --out` has written", directory);
  require(study_exists(directory), ErrorCode::usage,
          "{} is not a scaling study: it has no study.json, which `lockstep scaling run` writes first", directory);
  const std::string path = directory + "/study.json";
  const auto object = parse_json(read_file(path, kMaxBytes), path, ErrorCode::study_damaged);
  require(object.is_object() && object.contains("format"), ErrorCode::study_damaged,
          "{} is not the file of a scaling study", path);
  require(object["format"] == kFormat, ErrorCode::study_damaged, "{} has the format {}, and this program reads {}",
          path, printable(object["format"].dump()), kFormat);
  Study study;
  try {
    study = study_in(object);
  } catch (const nlohmann::json::exception& error) {
    fail(ErrorCode::study_damaged, "{} is damaged: {}", path, printable(error.what()));
  }
  study.directory = fs::absolute(directory).lexically_normal().string();
  while (study.directory.size() > 1 && study.directory.back() == '/') study.directory.pop_back();
  for (const Case& each : study.cases)
    require(is_name(each.name) && each.nodes >= 1 && each.ranks >= each.nodes, ErrorCode::study_damaged,
            "{} is damaged: it has the case {} of {} ranks on {} nodes", path, printable(each.name), each.ranks,
            each.nodes);
  require(!study.cases.empty() && study.warmup_steps >= 0 && (study.epochs > 0 || study.steps > study.warmup_steps),
          ErrorCode::study_damaged, "{} is damaged: it has {} cases of {} steps, of which {} are the warm-up", path,
          study.cases.size(), study.steps, study.warmup_steps);
  return study;
}

void write_study(const Study& study, const Config& config) {
  std::error_code error;
  fs::create_directories(study.directory + "/cases", error);
  require(!error, ErrorCode::system_call, "cannot create the directory of the study: {}",
          folder_problem(study.directory + "/cases", error));
  replace_file(study.configuration_file(), config::to_yaml(config));
  write_cases(study);
}

void write_cases(const Study& study) {
  replace_file(study.file(), json_of(study).dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

std::size_t extend(Study& study, const Study& now) {
  const std::size_t n_before = study.cases.size();
  for (const Case& each : now.cases)
    if (std::ranges::none_of(study.cases, [&](const Case& was) { return was.name == each.name; }))
      study.cases.push_back(each);
  return study.cases.size() - n_before;
}

void require_unchanged(const Study& before, const Study& now, const Config& config) {
  std::string differences;
  const auto compare = [&](const std::string& what, const auto& was, const auto& is) {
    if (was != is) differences += fmt::format("\n  {}: {} before, {} now", what, was, is);
  };
  compare("launcher", text_of(before.launcher), text_of(now.launcher));
  compare("scaling", text_of(before.scaling), text_of(now.scaling));
  const auto is_left_out = [&](const Case& was) {
    return std::ranges::none_of(now.cases,
                                [&](const Case& is) { return is.ranks == was.ranks && is.nodes == was.nodes; });
  };
  if (std::ranges::any_of(before.cases, is_left_out)) compare("ranks", sizes_of(before), sizes_of(now));
  compare("batch", before.batch, now.batch);
  compare("repeats", before.repeats, now.repeats);
  compare("steps", before.steps, now.steps);
  compare("epochs", before.epochs, now.epochs);
  compare("warm-up steps", before.warmup_steps, now.warmup_steps);
  compare("seed", before.seed, now.seed);
  compare("job script", before.job, now.job);
  compare("build", before.build, now.build);
  const Config was = config::parse({before.configuration_file()});
  for (const config::Key& key : config::table()) compare(key.name, key.get(was), key.get(config));
  require(differences.empty(), ErrorCode::resume_changed, "{} is a study with other settings:{}", before.directory,
          differences);
}

namespace {

struct Holder {
  std::string host;
  long pid = 0;
  unsigned long long start_ticks = 0;
};

Holder holder_in(const std::string& text) {
  Holder holder;
  std::istringstream(text) >> holder.host >> holder.pid >> holder.start_ticks;
  return holder;
}

bool is_gone(const Holder& holder) {
  if (holder.host != host_name() || holder.pid <= 0) return false;
  const auto facts = process_facts(holder.pid);
  return !facts || facts->start_ticks != holder.start_ticks;
}

}  // namespace

StudyLock::StudyLock(const std::string& directory) : path_(directory + "/lock") {
  const auto facts = process_facts(::getpid());
  content_ = fmt::format("{} {} {}\n", host_name(), ::getpid(), facts ? facts->start_ticks : 0);
  constexpr int kAttempts = 3;  // another process may acquire the lock that this one has just removed
  for (int i = 0; i < kAttempts; ++i) {
    if (try_once()) return;
    remove_left();
  }
  fail(ErrorCode::run_locked, "{} is in use by another `lockstep scaling run`", directory);
}

bool StudyLock::try_once() {
  const Descriptor file(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (file.get() < 0) {
    require(errno == EEXIST, ErrorCode::system_call, "cannot create {}: {}", path_, system_text(errno));
    return false;
  }
  try {
    write_fully(file.get(), content_, path_);
  } catch (const Error&) {
    ::unlink(path_.c_str());
    throw;
  }
  return true;
}

/// Removes the lock if its process is gone, and throws if the process may still exist.
void StudyLock::remove_left() {
  std::string text;
  try {
    text = read_file(path_);
  } catch (const Error&) {
    return;  // its owner has just removed it
  }
  const Holder holder = holder_in(text);
  require(is_gone(holder), ErrorCode::run_locked,
          "{} says that process {} on {} works on this study; if it no longer exists, remove that file", path_,
          holder.pid, holder.host.empty() ? "an unknown host" : printable(holder.host));
  const std::string aside = fmt::format("{}.{}.{}", path_, host_name(), ::getpid());
  if (::rename(path_.c_str(), aside.c_str()) == 0) ::unlink(aside.c_str());
}

StudyLock::~StudyLock() {
  try {
    if (read_file(path_) == content_) ::unlink(path_.c_str());
  } catch (const std::exception&) {  // the lock is gone already
  }
}

}  // namespace lockstep::scaling
