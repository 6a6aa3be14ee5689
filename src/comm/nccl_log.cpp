#include "comm/nccl_log.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

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

}  // namespace

NcclLog::NcclLog() {
  if (std::getenv("NCCL_DEBUG") != nullptr || std::getenv("NCCL_DEBUG_FILE") != nullptr) return;
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::temp_directory_path(error);
  if (error) return;
  path_ = (folder / fmt::format("lockstep-nccl.{}.log", ::getpid())).string();
  ::setenv("NCCL_DEBUG", "INFO", 1);
  sets_subsystems_ = std::getenv("NCCL_DEBUG_SUBSYS") == nullptr;
  if (sets_subsystems_) ::setenv("NCCL_DEBUG_SUBSYS", "INIT,NET", 1);
  ::setenv("NCCL_DEBUG_FILE", path_.c_str(), 1);
}

NcclLog::~NcclLog() {
  if (path_.empty()) return;
  std::error_code gone;
  std::filesystem::remove(path_, gone);  // NCCL keeps writing to the unnamed file
  ::unsetenv("NCCL_DEBUG");
  ::unsetenv("NCCL_DEBUG_FILE");
  if (sets_subsystems_) ::unsetenv("NCCL_DEBUG_SUBSYS");
}

std::string NcclLog::network() const {
  if (path_.empty()) return "";
  std::ifstream in(path_);
  return network_in_nccl_log({std::istreambuf_iterator<char>(in), {}});
}

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
