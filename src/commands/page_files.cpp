#include "commands/page_files.h"

#include "commands/report.h"

namespace lockstep::commands {

std::string write_page(const page::Page& page, const std::string& html, const std::string& figures) {
  const std::string content = page.html();
  write_result(html, content);
  std::string text = fmt::format("{}: {} figures, {} kB\n", html, page.figures().size(), (content.size() + 999) / 1000);
  if (figures.empty()) return text;
  const page::WrittenFigures written = page::write_figures(page, figures);
  for (const std::string& path : written.paths) text += path + "\n";
  if (!written.has_png)
    text += "There are no PNG files, because rsvg-convert is not installed (Debian: librsvg2-bin).\n";
  return text;
}

}  // namespace lockstep::commands
