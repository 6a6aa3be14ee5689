#include "comm/nccl_log.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <system_error>
#include <utility>

namespace lockstep::comm {
namespace {

/// The text after `mark` in the line; empty if the line does not contain `mark`.
std::string text_after(const std::string& line, const std::string& mark) {
  const auto at = line.find(mark);
  if (at == std::string::npos) return "";
  std::string rest = line.substr(at + mark.size());
  rest.erase(0, rest.find_first_not_of(' '));
  while (!rest.empty() && rest.back() == ' ') rest.pop_back();
  return rest;
}

/// NCCL replaces %h and %p in the path of its log.
std::string escaped(const std::string& path) {
  std::string out;
  for (const char c : path) out += c == '%' ? "%%" : std::string(1, c);
  return out;
}

std::string read_from(const std::string& path, std::size_t begin) {
  std::ifstream in(path, std::ios::binary);
  in.seekg(static_cast<std::streamoff>(begin));
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

NcclLog::NcclLog(const std::string& folder, int rank) {
  if (std::getenv("NCCL_DEBUG") != nullptr || std::getenv("NCCL_DEBUG_FILE") != nullptr) return;
  std::error_code error;
  if (!folder.empty() && std::filesystem::is_directory(folder, error)) {
    path_ = fmt::format("{}/nccl.{}.log", folder, rank);
    previous_ = fmt::format("{}/nccl.{}.previous.log", folder, rank);
    std::filesystem::rename(path_, previous_, error);  // otherwise NCCL would overwrite it
  } else {
    const std::filesystem::path temporary = std::filesystem::temp_directory_path(error);
    if (error) return;
    path_ = (temporary / fmt::format("lockstep-nccl.{}.log", ::getpid())).string();
    is_temporary_ = true;
  }
  ::setenv("NCCL_DEBUG", "INFO", 1);
  has_set_level_ = true;
  has_set_subsystems_ = std::getenv("NCCL_DEBUG_SUBSYS") == nullptr;
  if (has_set_subsystems_) ::setenv("NCCL_DEBUG_SUBSYS", "INIT,NET", 1);
  ::setenv("NCCL_DEBUG_FILE", escaped(path_).c_str(), 1);
}

NcclLog::~NcclLog() {
  restore_environment();
  if (is_temporary_) remove();
}

void NcclLog::restore_environment() {
  if (has_set_subsystems_) ::unsetenv("NCCL_DEBUG_SUBSYS");
  if (has_set_level_) {
    ::unsetenv("NCCL_DEBUG");
    ::unsetenv("NCCL_DEBUG_FILE");
  }
  has_set_level_ = has_set_subsystems_ = false;
}

void NcclLog::remove() {
  std::error_code gone;
  if (!path_.empty()) std::filesystem::remove(path_, gone);  // NCCL continues to write to the unlinked file
  if (!previous_.empty()) std::filesystem::remove(previous_, gone);
}

std::string NcclLog::network() const { return path_.empty() ? "" : network_in_nccl_log(read_from(path_, 0)); }

std::vector<std::string> NcclLog::new_warnings() {
  std::vector<std::string> warnings;
  std::error_code missing;
  if (path_.empty() || std::filesystem::file_size(path_, missing) <= n_read_bytes_ || missing) return warnings;
  std::istringstream lines(read_from(path_, n_read_bytes_));
  for (std::string line; std::getline(lines, line) && !lines.eof();) {  // the last line may not be complete yet
    n_read_bytes_ += line.size() + 1;
    if (std::string warning = warning_in_nccl_log(line); !warning.empty()) warnings.push_back(std::move(warning));
  }
  return warnings;
}

// NCCL 2.20 to 2.30:  [2026-11-23 08:26:43] node1:7:9 [0] transport/net_ib.cc:1295 NCCL WARN NET/IB: Got completion ...
std::string warning_in_nccl_log(const std::string& line) { return text_after(line, "NCCL WARN "); }

// The lines of NCCL 2.20 to 2.30:  NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [RO]; OOB eth0:10.0.0.5<0>
//                                  NCCL INFO NET/Socket : Using [0]eth0:10.0.0.5<0>
//                                  NCCL INFO Using network IB      (since 2.27 also: Assigned NET plugin IB to comm)
std::string network_in_nccl_log(const std::string& text) {
  std::istringstream lines(text);
  std::string name, line;
  while (std::getline(lines, line)) {
    if (const std::string used = text_after(line, "NCCL INFO Using network "); !used.empty()) name = used;
    const std::string assigned = text_after(line, "Assigned NET plugin ");
    if (const auto end = assigned.find(" to comm"); end != std::string::npos) name = assigned.substr(0, end);
  }
  if (name.empty()) return "";
  std::istringstream again(text);
  while (std::getline(again, line))
    if (const std::string devices = text_after(line, "NET/" + name + " : Using"); !devices.empty())
      return fmt::format("network {} ({})", name, devices);
  return "network " + name;
}

}  // namespace lockstep::comm
