// Writes the figures of a page as files: SVG, and PNG through the program rsvg-convert.
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "base/file.h"
#include "lockstep/error.h"
#include "page/page.h"

extern char** environ;

namespace lockstep::page {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConverter = "rsvg-convert";

/// Returns false if the program is not installed. It is started without a shell, so file names may contain any
/// character.
bool convert(const std::string& svg, const std::string& png) {
  const std::string svg_path = fs::absolute(svg), png_path = fs::absolute(png);
  const char* arguments[] = {kConverter, "--zoom", "2", "--output", png_path.c_str(), svg_path.c_str(), nullptr};
  pid_t pid = -1;
  const int error = ::posix_spawnp(&pid, kConverter, nullptr, nullptr, const_cast<char**>(arguments), environ);
  if (error == ENOENT) return false;
  require(error == 0, ErrorCode::system_call, "cannot start {}: {}", kConverter, system_text(error));
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0)
    require(errno == EINTR, ErrorCode::system_call, "cannot wait for {}: {}", kConverter, system_text(errno));
  constexpr int kNotFound = 127;  // the exit status if the spawn fails only in the new process
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNotFound) return false;
  require(WIFEXITED(status) && WEXITSTATUS(status) == 0, ErrorCode::system_call, "{} failed: {} was not written",
          kConverter, png);
  return true;
}

}  // namespace

WrittenFigures write_figures(const Page& page, const std::string& directory) {
  std::error_code error;
  fs::create_directories(directory, error);
  require(!error, ErrorCode::system_call, "{}", folder_problem(directory, error));
  WrittenFigures written{.paths = {}, .has_png = true};
  for (const Page::Figure& figure : page.figures()) {
    const std::string svg = fmt::format("{}/{}.svg", directory, figure.name);
    const std::string png = fmt::format("{}/{}.png", directory, figure.name);
    replace_file(svg, standalone_svg(figure.chart));
    written.paths.push_back(svg);
    if (written.has_png) written.has_png = convert(svg, png);
    if (written.has_png) written.paths.push_back(png);
  }
  return written;
}

}  // namespace lockstep::page
