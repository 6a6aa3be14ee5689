#include "commands/page_files.h"

#include "commands/report.h"

namespace lockstep::commands {

void write_page(const page::Page& page, const std::string& html, const std::string& figures) {
  const std::string text = page.html();
  write_result(html, text);
  print_text("{}: {} figures, {} kB\n", html, page.figures().size(), (text.size() + 999) / 1000);
  if (figures.empty()) return;
  const page::WrittenFigures written = page::write_figures(page, figures);
  for (const std::string& path : written.paths) print_text("{}\n", path);
  if (!written.has_png)
    print_text("There are no PNG files, because rsvg-convert is not installed (Debian: librsvg2-bin).\n");
}

}  // namespace lockstep::commands
